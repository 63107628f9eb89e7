"""In-job restart: the launcher and its agent, and what a monitored rank calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from undaunted.fault_tolerance.config import FaultToleranceConfig as FaultToleranceConfig
    from undaunted.fault_tolerance.data import WorkloadAction as WorkloadAction
    from undaunted.fault_tolerance.data import WorkloadControlRequest as WorkloadControlRequest
    from undaunted.fault_tolerance.launch import LaunchError as LaunchError
    from undaunted.fault_tolerance.launch import elastic_launch as elastic_launch
    from undaunted.fault_tolerance.launch_config import LaunchConfig as LaunchConfig
    from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClient as RankMonitorClient
    from undaunted.fault_tolerance.rank_monitor_client import (
        RankMonitorClientError as RankMonitorClientError,
    )
    from undaunted.fault_tolerance.simulated_faults import (
        SimulatedFaultParams as SimulatedFaultParams,
    )
    from undaunted.fault_tolerance.simulated_faults import (
        parse_simulated_fault_params as parse_simulated_fault_params,
    )
    from undaunted.fault_tolerance.simulated_faults import (
        setup_simulated_fault as setup_simulated_fault,
    )

_MODULES = {
    "RankMonitorClient": "rank_monitor_client",
    "RankMonitorClientError": "rank_monitor_client",
    "FaultToleranceConfig": "config",
    "LaunchConfig": "launch_config",
    "LaunchError": "launch",
    "elastic_launch": "launch",
    "SimulatedFaultParams": "simulated_faults",
    "parse_simulated_fault_params": "simulated_faults",
    "setup_simulated_fault": "simulated_faults",
    "WorkloadAction": "data",
    "WorkloadControlRequest": "data",
}

__all__ = [
    "FaultToleranceConfig",
    "LaunchConfig",
    "LaunchError",
    "RankMonitorClient",
    "RankMonitorClientError",
    "SimulatedFaultParams",
    "WorkloadAction",
    "WorkloadControlRequest",
    "elastic_launch",
    "parse_simulated_fault_params",
    "setup_simulated_fault",
]

__getattr__ = lazy_names(__name__, _MODULES)
