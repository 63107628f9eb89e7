"""The common base of managers of local checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from undaunted.checkpointing.local.ckpt_managers.local_manager import (
    CheckpointingException as CheckpointingException,
)
from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
from undaunted.checkpointing.local.ckpt_managers.local_manager import (
    SameMachineReplicationException as SameMachineReplicationException,
)

if TYPE_CHECKING:
    from undaunted.checkpointing.local.replication.strategies import ReplicationStrategy


class BaseCheckpointManager(ABC):
    """A manager of local checkpoints, `LocalCheckpointManager` or one of the program's own.

    Args:
        session_id: tells the checkpoints of different runs apart.
        repl_strategy: who keeps copies for whom; None = nobody.
    """

    def __init__(self, session_id: str, repl_strategy: ReplicationStrategy | None = None) -> None:
        self.session_id = session_id
        self.repl_strategy = repl_strategy
        self.latest_iteration = -1

    @abstractmethod
    def save(self, state_dict: Any, iteration: int, is_async: bool = False) -> Any:
        """See `LocalCheckpointManager.save`."""

    @abstractmethod
    def find_latest(self) -> int:
        """See `LocalCheckpointManager.find_latest`."""

    @abstractmethod
    def load(self) -> tuple[Any, Any]:
        """See `LocalCheckpointManager.load`."""


BaseCheckpointManager.register(LocalCheckpointManager)
