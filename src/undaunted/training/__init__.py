"""A session around a training loop: it says what the loop does, and stops all ranks together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.training.session import Session as Session
    from undaunted.training.signals import ignore_stop_signals as ignore_stop_signals
    from undaunted.training.stopping import Stop as Stop
    from undaunted.training.stopping import StopReason as StopReason

_MODULES = {
    "Session": "session",
    "Stop": "stopping",
    "StopReason": "stopping",
    "ignore_stop_signals": "signals",
}

__all__ = ["Session", "Stop", "StopReason", "ignore_stop_signals"]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        import importlib

        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
