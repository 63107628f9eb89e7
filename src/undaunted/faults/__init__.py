"""How each fault is made: plans, triggers and injectors.

``inject(kind, ...)`` makes one fault here and now; ``undaunted run --inject-fault PLAN`` makes them
by rank, iteration or time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from undaunted.faults.injectors import InjectedError, inject
    from undaunted.faults.plan import KINDS, FaultPlan, FaultPlanError

__all__ = ["KINDS", "FaultPlan", "FaultPlanError", "InjectedError", "inject"]

_HOME = {
    "InjectedError": "injectors",
    "inject": "injectors",
    "KINDS": "plan",
    "FaultPlan": "plan",
    "FaultPlanError": "plan",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
