"""What all managers of local checkpoints have."""

from __future__ import annotations

from undaunted.checkpointing.local.ckpt_managers.base_manager import (
    BaseCheckpointManager as BaseCheckpointManager,
)
from undaunted.checkpointing.local.ckpt_managers.base_manager import (
    CheckpointingException as CheckpointingException,
)
from undaunted.checkpointing.local.ckpt_managers.base_manager import (
    SameMachineReplicationException as SameMachineReplicationException,
)
