"""In-job restart, under the names of NVRx."""

from __future__ import annotations

from importlib import import_module

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

# Importing the package imports them in NVRx, so that programs use them as attributes.
_MODULES = ("dict_utils", "ipc_connector", "timeouts_calc", "utils")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
