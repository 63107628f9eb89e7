"""`load_dcp`: the way from checkpoints of ``torch.distributed.checkpoint`` to undaunted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undaunted.agreement.connect import connect
from undaunted.checkpointing.dcp.loading import load_foreign
from undaunted.checkpointing.errors import AGREED

if TYPE_CHECKING:
    import os

    from torch.distributed import ProcessGroup


def load_dcp(
    state_dict: dict[str, Any],
    folder: str | os.PathLike[str],
    *,
    process_group: ProcessGroup | None = None,
    timeout: float = 1800.0,
) -> None:
    """Fill a state from a folder that ``torch.distributed.checkpoint.save`` has written.

    Works as ``Checkpointer.load``: in place, on any number of ranks, with modules and optimizers as
    they are. The folder has no checksums, so that its content cannot be checked; but nothing in it
    can run code, as types that are not plain data have to be allowed with
    ``torch.serialization.add_safe_globals``. All ranks call this together.

    Args:
        state_dict: what is to be filled.
        folder: with ``.metadata`` in it.
        process_group: the ranks that load; None means all, or this process alone where
            ``torch.distributed`` is not initialized.
        timeout: seconds that ranks wait for each other.

    Raises:
        CheckpointError: on all ranks, when it cannot be loaded on one; the state may be filled in
            part. A `StructureError` when the folder does not have what the state needs, a
            `DamagedCheckpointError` when a file is missing, cut short or no checkpoint.
    """
    connected = connect(process_group, timeout, AGREED, may_be_alone=True)
    try:
        load_foreign(state_dict, str(folder), agreement=connected.main, timeout_s=timeout)
    finally:
        connected.close()
