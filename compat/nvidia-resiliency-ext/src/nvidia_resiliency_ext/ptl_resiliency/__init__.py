# Made from names/*.yaml by `make generated`.
"""Callbacks for Lightning."""

from __future__ import annotations

from nvidia_resiliency_ext.ptl_resiliency.fault_tolerance_callback import (
    FaultToleranceCallback as FaultToleranceCallback,
)
from nvidia_resiliency_ext.ptl_resiliency.fault_tolerance_callback import (
    SimulatedFaultParams as SimulatedFaultParams,
)
from nvidia_resiliency_ext.ptl_resiliency.fault_tolerance_sections_callback import (
    FaultToleranceSectionsCallback as FaultToleranceSectionsCallback,
)
from nvidia_resiliency_ext.ptl_resiliency.straggler_det_callback import (
    StragglerDetectionCallback as StragglerDetectionCallback,
)
