# Made from names/*.yaml by `make generated`.
"""In-job restart, under the names of NVRx."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from nvidia_resiliency_ext.fault_tolerance import config as config
    from nvidia_resiliency_ext.fault_tolerance import cycle_info_writer as cycle_info_writer
    from nvidia_resiliency_ext.fault_tolerance import data as data
    from nvidia_resiliency_ext.fault_tolerance import dict_utils as dict_utils
    from nvidia_resiliency_ext.fault_tolerance import ipc_connector as ipc_connector
    from nvidia_resiliency_ext.fault_tolerance import launcher as launcher
    from nvidia_resiliency_ext.fault_tolerance import progress_tracker as progress_tracker
    from nvidia_resiliency_ext.fault_tolerance import rank_monitor_client as rank_monitor_client
    from nvidia_resiliency_ext.fault_tolerance import rank_monitor_server as rank_monitor_server
    from nvidia_resiliency_ext.fault_tolerance import (
        rank_monitor_state_machine as rank_monitor_state_machine,
    )
    from nvidia_resiliency_ext.fault_tolerance import timeouts_calc as timeouts_calc
    from nvidia_resiliency_ext.fault_tolerance import utils as utils
    from nvidia_resiliency_ext.fault_tolerance.config import (
        FaultToleranceConfig as FaultToleranceConfig,
    )
    from nvidia_resiliency_ext.fault_tolerance.data import WorkloadAction as WorkloadAction
    from nvidia_resiliency_ext.fault_tolerance.data import (
        WorkloadControlRequest as WorkloadControlRequest,
    )
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_client import (
        RankMonitorClient as RankMonitorClient,
    )
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_client import (
        RankMonitorClientError as RankMonitorClientError,
    )
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import (
        RankMonitorServer as RankMonitorServer,
    )
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_state_machine import (
        InvalidStateTransitionException as InvalidStateTransitionException,
    )
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_state_machine import (
        RankMonitorState as RankMonitorState,
    )
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_state_machine import (
        RankMonitorStateMachine as RankMonitorStateMachine,
    )

_MODULES = {
    "FaultToleranceConfig": "config",
    "WorkloadAction": "data",
    "WorkloadControlRequest": "data",
    "RankMonitorClient": "rank_monitor_client",
    "RankMonitorClientError": "rank_monitor_client",
    "RankMonitorServer": "rank_monitor_server",
    "InvalidStateTransitionException": "rank_monitor_state_machine",
    "RankMonitorState": "rank_monitor_state_machine",
    "RankMonitorStateMachine": "rank_monitor_state_machine",
    "config": "",
    "cycle_info_writer": "",
    "data": "",
    "dict_utils": "",
    "ipc_connector": "",
    "launcher": "",
    "progress_tracker": "",
    "rank_monitor_client": "",
    "rank_monitor_server": "",
    "rank_monitor_state_machine": "",
    "timeouts_calc": "",
    "utils": "",
}

__all__ = [*_MODULES]  # noqa: PLE0604 - all of them are text

__getattr__ = lazy_names(__name__, _MODULES)
