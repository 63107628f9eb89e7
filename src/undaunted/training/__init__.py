"""A session around a training loop: it says what the loop does, and stops all ranks together.

Beside it, checks for silent corruption: `Replay` and `Replicas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from undaunted.training.attempts import Rerun as Rerun
    from undaunted.training.attempts import check as check
    from undaunted.training.replay import Mismatch as Mismatch
    from undaunted.training.replay import NotReproducibleError as NotReproducibleError
    from undaunted.training.replay import Replay as Replay
    from undaunted.training.replay import Saved as Saved
    from undaunted.training.replicas import Difference as Difference
    from undaunted.training.replicas import Replicas as Replicas
    from undaunted.training.replicas import ReplicasDifferError as ReplicasDifferError
    from undaunted.training.session import Session as Session
    from undaunted.training.signals import ignore_stop_signals as ignore_stop_signals
    from undaunted.training.stopping import Stop as Stop
    from undaunted.training.stopping import StopReason as StopReason

_MODULES = {
    "Difference": "replicas",
    "Mismatch": "replay",
    "NotReproducibleError": "replay",
    "Replay": "replay",
    "Replicas": "replicas",
    "ReplicasDifferError": "replicas",
    "Saved": "replay",
    "Rerun": "attempts",
    "Session": "session",
    "Stop": "stopping",
    "StopReason": "stopping",
    "check": "attempts",
    "ignore_stop_signals": "signals",
}

__all__ = [
    "Difference",
    "Mismatch",
    "NotReproducibleError",
    "Replay",
    "Replicas",
    "ReplicasDifferError",
    "Rerun",
    "Saved",
    "Session",
    "Stop",
    "StopReason",
    "check",
    "ignore_stop_signals",
]


def __dir__() -> list[str]:
    return __all__


__getattr__ = lazy_names(__name__, _MODULES)
