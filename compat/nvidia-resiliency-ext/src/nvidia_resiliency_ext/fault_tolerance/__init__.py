"""In-job restart, under the names of NVRx."""

from __future__ import annotations

from nvidia_resiliency_ext.fault_tolerance.config import FaultToleranceConfig
from nvidia_resiliency_ext.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_client import (
    RankMonitorClient,
    RankMonitorClientError,
)
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import RankMonitorServer
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_state_machine import (
    InvalidStateTransitionException,
    RankMonitorState,
    RankMonitorStateMachine,
)

__all__ = [
    "FaultToleranceConfig",
    "InvalidStateTransitionException",
    "RankMonitorClient",
    "RankMonitorClientError",
    "RankMonitorServer",
    "RankMonitorState",
    "RankMonitorStateMachine",
    "WorkloadAction",
    "WorkloadControlRequest",
]
