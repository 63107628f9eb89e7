"""Local checkpoints in files on the node's own disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undaunted.checkpointing.local.ckpt_managers import local_manager

if TYPE_CHECKING:
    import os

    from undaunted.checkpointing.local.replication.strategies import ReplicationStrategy


class LocalCheckpointManager(local_manager.LocalCheckpointManager):
    """Undaunted's, which saves and loads states of the program's own classes as well.

    A value that is neither plain data nor a tensor is pickled, as NVRx does with all; reading it
    back runs code, so nobody else may write to the disk. ``allow_pickle=False`` refuses it.

    Args:
        root_local_ckpt_dir: see undaunted's.
        session_id: see there.
        repl_strategy: see there.
        settings: see there; ``allow_pickle`` is True by default.
    """

    def __init__(
        self,
        root_local_ckpt_dir: str | os.PathLike[str],
        session_id: str = "",
        repl_strategy: ReplicationStrategy | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("allow_pickle", True)
        super().__init__(root_local_ckpt_dir, session_id, repl_strategy, **settings)
