"""The making of each fault: plans, triggers and injectors.

``inject(kind, ...)`` makes one fault here and now; ``undaunted run --inject-fault PLAN`` makes them
by rank, iteration or time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from undaunted.faults.injectors import InjectedError, inject
    from undaunted.faults.plan import KINDS, FaultPlan, FaultPlanError

__all__ = ["KINDS", "FaultPlan", "FaultPlanError", "InjectedError", "inject"]

_MODULES = {
    "InjectedError": "injectors",
    "inject": "injectors",
    "KINDS": "plan",
    "FaultPlan": "plan",
    "FaultPlanError": "plan",
}

__getattr__ = lazy_names(__name__, _MODULES)
