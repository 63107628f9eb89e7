"""Ranks are watched by heartbeats."""

from __future__ import annotations

from undaunted.integrations.lightning.fault_tolerance import (
    FaultToleranceCallback as FaultToleranceCallback,
)
from undaunted.integrations.lightning.fault_tolerance import (
    SimulatedFaultParams as SimulatedFaultParams,
)
