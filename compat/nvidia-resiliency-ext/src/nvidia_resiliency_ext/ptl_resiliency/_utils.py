"""Simulated faults."""

from __future__ import annotations

from undaunted.fault_tolerance.simulated_faults import SimulatedFaultParams as SimulatedFaultParams
from undaunted.fault_tolerance.simulated_faults import (
    parse_simulated_fault_params as parse_simulated_fault_params,
)
from undaunted.fault_tolerance.simulated_faults import (
    setup_simulated_fault as setup_simulated_fault,
)
