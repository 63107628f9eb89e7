# Made from names/*.yaml by `make generated`.
"""Restart inside the process, under the names of NVRx."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from nvidia_resiliency_ext.inprocess import abort as abort
    from nvidia_resiliency_ext.inprocess import attribution as attribution
    from nvidia_resiliency_ext.inprocess import completion as completion
    from nvidia_resiliency_ext.inprocess import compose as compose
    from nvidia_resiliency_ext.inprocess import exception as exception
    from nvidia_resiliency_ext.inprocess import finalize as finalize
    from nvidia_resiliency_ext.inprocess import health_check as health_check
    from nvidia_resiliency_ext.inprocess import initialize as initialize
    from nvidia_resiliency_ext.inprocess import monitor_process as monitor_process
    from nvidia_resiliency_ext.inprocess import monitor_thread as monitor_thread
    from nvidia_resiliency_ext.inprocess import nested_restarter as nested_restarter
    from nvidia_resiliency_ext.inprocess import param_utils as param_utils
    from nvidia_resiliency_ext.inprocess import progress_watchdog as progress_watchdog
    from nvidia_resiliency_ext.inprocess import rank_assignment as rank_assignment
    from nvidia_resiliency_ext.inprocess import rank_filter as rank_filter
    from nvidia_resiliency_ext.inprocess import sibling_monitor as sibling_monitor
    from nvidia_resiliency_ext.inprocess import state as state
    from nvidia_resiliency_ext.inprocess import store as store
    from nvidia_resiliency_ext.inprocess import terminate as terminate
    from nvidia_resiliency_ext.inprocess import tools as tools
    from nvidia_resiliency_ext.inprocess import utils as utils
    from nvidia_resiliency_ext.inprocess import wrap as wrap
    from nvidia_resiliency_ext.inprocess.compose import Compose as Compose
    from nvidia_resiliency_ext.inprocess.state import FrozenState as FrozenState
    from nvidia_resiliency_ext.inprocess.state import Mode as Mode
    from nvidia_resiliency_ext.inprocess.state import State as State
    from nvidia_resiliency_ext.inprocess.wrap import CallWrapper as CallWrapper
    from nvidia_resiliency_ext.inprocess.wrap import Wrapper as Wrapper

_MODULES = {
    "Compose": "compose",
    "FrozenState": "state",
    "Mode": "state",
    "State": "state",
    "CallWrapper": "wrap",
    "Wrapper": "wrap",
    "abort": "",
    "attribution": "",
    "completion": "",
    "compose": "",
    "exception": "",
    "finalize": "",
    "health_check": "",
    "initialize": "",
    "monitor_process": "",
    "monitor_thread": "",
    "nested_restarter": "",
    "param_utils": "",
    "progress_watchdog": "",
    "rank_assignment": "",
    "rank_filter": "",
    "sibling_monitor": "",
    "state": "",
    "store": "",
    "terminate": "",
    "tools": "",
    "utils": "",
    "wrap": "",
}

__all__ = [*_MODULES]  # noqa: PLE0604 - all of them are text

__getattr__ = lazy_names(__name__, _MODULES)
