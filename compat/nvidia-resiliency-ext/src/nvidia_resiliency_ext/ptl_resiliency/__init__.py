"""Callbacks for Lightning."""

from __future__ import annotations

from undaunted.integrations.lightning.fault_tolerance import (
    FaultToleranceCallback as FaultToleranceCallback,
)
from undaunted.integrations.lightning.fault_tolerance import (
    FaultToleranceSectionsCallback as FaultToleranceSectionsCallback,
)
from undaunted.integrations.lightning.fault_tolerance import (
    SimulatedFaultParams as SimulatedFaultParams,
)
from undaunted.integrations.lightning.straggler import (
    StragglerDetectionCallback as StragglerDetectionCallback,
)
