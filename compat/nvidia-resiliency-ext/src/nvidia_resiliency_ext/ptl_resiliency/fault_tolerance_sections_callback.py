"""Ranks are watched by sections."""

from __future__ import annotations

from undaunted.integrations.lightning.fault_tolerance import (
    FaultToleranceSectionsCallback as FaultToleranceSectionsCallback,
)
from undaunted.integrations.lightning.fault_tolerance import (
    SimulatedFaultParams as SimulatedFaultParams,
)
