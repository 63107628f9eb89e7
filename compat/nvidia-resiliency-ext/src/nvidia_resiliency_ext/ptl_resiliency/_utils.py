"""Simulated faults, and whether a module is installed."""

from __future__ import annotations

import importlib.util

from undaunted.fault_tolerance.simulated_faults import SimulatedFaultParams as SimulatedFaultParams
from undaunted.fault_tolerance.simulated_faults import (
    parse_simulated_fault_params as parse_simulated_fault_params,
)
from undaunted.fault_tolerance.simulated_faults import (
    setup_simulated_fault as setup_simulated_fault,
)


def is_module_available(module: str) -> bool:
    """Return whether a module can be imported; packages around it are."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
