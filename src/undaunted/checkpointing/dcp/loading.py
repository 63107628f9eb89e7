"""Filling a state from a checkpoint: every byte is checked, and all ranks agree on how it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from undaunted.agreement.connect import connect
from undaunted.agreement.failures import Failure
from undaunted.base.garbage import collection_paused
from undaunted.checkpointing.dcp import filling
from undaunted.checkpointing.dcp.reader import (
    Foreign,
    Planner,
    Reader,
    Source,
    Verified,
    may_be_beside,
)
from undaunted.checkpointing.dcp.states import check_mapping
from undaunted.checkpointing.errors import AGREED, CheckpointError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.checkpoint.metadata import Metadata

    from undaunted.agreement.agreement import Agreeing
    from undaunted.checkpointing.files.storage import Readable
    from undaunted.checkpointing.format.manifest import Manifest


def load(
    state_dict: dict[str, Any],
    storage: Readable,
    manifest: Manifest,
    *,
    agreement: Agreeing,
    threads: int,
    timeout_s: float,
    expect: Callable[[int], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Fill a state from a checkpoint; all ranks call this for the same checkpoint.

    Tensors are filled in place, whatever the world size and distribution they were saved with.
    Objects with ``state_dict`` and ``load_state_dict`` are given everything that was saved of them.
    Everything else is replaced in ``state_dict``. When this raises, the tensors may be filled in
    part.

    Args:
        state_dict: of the structure that was saved, or a part of it.
        storage: where the checkpoint is.
        manifest: of the checkpoint.
        agreement: of all ranks that load.
        threads: how many read at the same time.
        timeout_s: for the agreements; all ranks have to have read within it.
        expect: called with the number of bytes that this rank is going to read.
        progress: called with the number of bytes after each block, by any thread.

    Raises:
        DamagedCheckpointError: a block is not what was written; names the tensors in it.
        StructureError: the checkpoint does not have what the state needs.
        CheckpointError: something else went wrong on a rank. Each of these on all ranks.
    """
    source = Verified(storage, manifest, threads, progress)
    fill(state_dict, source, agreement, timeout_s, expect)


@collection_paused()  # until all that was made for it is gone
def fill(
    state_dict: dict[str, Any],
    source: Source,
    agreement: Agreeing,
    timeout_s: float,
    expect: Callable[[int], None] = lambda _: None,
) -> None:
    """Fill a state from a source; see :func:`load`."""
    beside = may_be_beside(several=agreement.world_size > 1)
    loading = _Loading(state_dict, source, expect, beside)
    known = _together("wanted", loading.look, agreement, timeout_s, filling.compare)
    _together("read", lambda: loading.read(known), agreement, timeout_s)
    _together("filled", loading.hand_over, agreement, timeout_s)


def _together(
    name: str,
    part: Callable[[], bytes],
    agreement: Agreeing,
    timeout_s: float,
    decide: Callable[[Sequence[bytes]], bytes] = lambda _: b"",
) -> bytes:
    """Do a part; what goes wrong on one rank is raised on all."""
    outcome: bytes | Failure
    cause: Exception | None = None
    try:
        outcome = part()
    except Exception as error:  # noqa: BLE001 - all ranks are told, and this one raises as well
        known = error if isinstance(error, CheckpointError) else CheckpointError(_told(error))
        outcome, cause = Failure.of(known), error
    try:
        return agreement.round(name, outcome, decide, timeout_s)
    except CheckpointError as told:
        raise told from cause


def _told(error: Exception) -> str:
    return f"the checkpoint cannot be loaded: {type(error).__name__}: {error}"


class _Loading:
    """One load on one rank."""

    def __init__(
        self,
        state_dict: dict[str, Any],
        source: Source,
        expect: Callable[[int], None],
        beside: bool,
    ) -> None:
        """Args: see `fill`; whether other ranks may be on this machine."""
        self._given = state_dict
        self._source = source
        self._reader = Reader(source, beside=beside, expect=expect)
        self._metadata: Metadata | None = None
        self._filling: filling.Filling | None = None

    def look(self) -> bytes:
        """Compare the state with the metadata; returns what the other ranks have to know."""
        check_mapping(self._given)
        metadata = self._metadata = self._reader.read_metadata()
        with torch.no_grad():  # else DTensors make nodes of a graph
            self._filling = filling.Filling(self._given, metadata, self._source.path)
        return self._filling.told()

    def read(self, nobodys: bytes) -> bytes:
        """Fill the tensors, and read everything else."""
        assert self._filling is not None
        with torch.no_grad():
            self._filling.settle(nobodys)
        planner = Planner(self._source, self._filling.place, nested=self._filling.nested)
        planner.set_up_planner(self._filling.wanted, self._metadata)
        self._reader.set_up_storage_reader(self._metadata)
        self._reader.read_data(planner.create_local_plan(), planner)
        return b""

    def hand_over(self) -> bytes:
        """Give everything to those it belongs to."""
        assert self._filling is not None
        self._filling.hand_over()
        return b""


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
        fill(state_dict, Foreign(str(folder)), connected.main, timeout)
    finally:
        connected.close()
