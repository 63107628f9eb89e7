"""Checkpoints that are asynchronous, never torn and never lost.

    from undaunted.checkpointing import Checkpointer

    checkpoints = Checkpointer("checkpoints")
    checkpoints.save(step, {"model": model, "optimizer": optimizer})

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from undaunted.checkpointing.checkpointer import Checkpointer as Checkpointer
    from undaunted.checkpointing.dcp.loading import load_dcp as load_dcp
    from undaunted.checkpointing.errors import CheckpointError as CheckpointError
    from undaunted.checkpointing.errors import DamagedCheckpointError as DamagedCheckpointError
    from undaunted.checkpointing.errors import NoCheckpointError as NoCheckpointError
    from undaunted.checkpointing.errors import OccupiedError as OccupiedError
    from undaunted.checkpointing.errors import SaveError as SaveError
    from undaunted.checkpointing.errors import StaleEpochError as StaleEpochError
    from undaunted.checkpointing.errors import StateError as StateError
    from undaunted.checkpointing.errors import StructureError as StructureError
    from undaunted.checkpointing.errors import WriterError as WriterError
    from undaunted.checkpointing.per_rank import PerRank as PerRank
    from undaunted.checkpointing.per_rank import RandomState as RandomState
    from undaunted.checkpointing.trust import choose as choose

_MODULES = {
    "CheckpointError": "errors",
    "Checkpointer": "checkpointer",
    "DamagedCheckpointError": "errors",
    "NoCheckpointError": "errors",
    "OccupiedError": "errors",
    "PerRank": "per_rank",
    "RandomState": "per_rank",
    "SaveError": "errors",
    "StaleEpochError": "errors",
    "StateError": "errors",
    "StructureError": "errors",
    "WriterError": "errors",
    "choose": "trust",
    "load_dcp": "dcp.loading",
}

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "DamagedCheckpointError",
    "NoCheckpointError",
    "OccupiedError",
    "PerRank",
    "RandomState",
    "SaveError",
    "StaleEpochError",
    "StateError",
    "StructureError",
    "WriterError",
    "choose",
    "load_dcp",
]

__getattr__ = lazy_names(__name__, _MODULES)
