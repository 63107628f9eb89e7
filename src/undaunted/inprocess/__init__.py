"""Restart inside the process: a function that runs again everywhere after a fault anywhere.

    from undaunted import inprocess

    @inprocess.Wrapper(initialize=inprocess.initialize.RetryController(max_iterations=3))
    def train(): ...

Names and modules are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from undaunted.inprocess import abort as abort
    from undaunted.inprocess import attribution as attribution
    from undaunted.inprocess import completion as completion
    from undaunted.inprocess import exception as exception
    from undaunted.inprocess import finalize as finalize
    from undaunted.inprocess import health_check as health_check
    from undaunted.inprocess import initialize as initialize
    from undaunted.inprocess import monitor_process as monitor_process
    from undaunted.inprocess import nested_restarter as nested_restarter
    from undaunted.inprocess import param_utils as param_utils
    from undaunted.inprocess import progress_watchdog as progress_watchdog
    from undaunted.inprocess import rank_assignment as rank_assignment
    from undaunted.inprocess import state as state
    from undaunted.inprocess import terminate as terminate
    from undaunted.inprocess import utils as utils
    from undaunted.inprocess import wrap as wrap
    from undaunted.inprocess.compose import Compose as Compose
    from undaunted.inprocess.state import FrozenState as FrozenState
    from undaunted.inprocess.state import Mode as Mode
    from undaunted.inprocess.state import State as State
    from undaunted.inprocess.wrap import CallWrapper as CallWrapper
    from undaunted.inprocess.wrap import Wrapper as Wrapper

_MODULES = {
    "CallWrapper": "wrap",
    "Compose": "compose",
    "FrozenState": "state",
    "Mode": "state",
    "State": "state",
    "Wrapper": "wrap",
    "abort": "",
    "attribution": "",
    "completion": "",
    "exception": "",
    "finalize": "",
    "health_check": "",
    "initialize": "",
    "monitor_process": "",
    "nested_restarter": "",
    "param_utils": "",
    "progress_watchdog": "",
    "rank_assignment": "",
    "state": "",
    "terminate": "",
    "utils": "",
    "wrap": "",
}

# Where names are now that only programs written for NVRx use.
_MOVED = {
    "monitor_thread": "undaunted.inprocess.exception has RankShouldRestart",
    "rank_filter": "nvidia_resiliency_ext.inprocess.rank_filter has it",
    "store": "nvidia_resiliency_ext.inprocess.store has it, BarrierTimeout is in exception",
    "sibling_monitor": "nvidia_resiliency_ext.inprocess.sibling_monitor has it",
    "tools": "undaunted.shared_utils.inject_fault has what was in it",
}

__all__ = [*_MODULES]  # noqa: PLE0604 - all of them are text

_get = lazy_names(__name__, _MODULES)


def __getattr__(name: str) -> object:
    if name in _MOVED:
        raise ImportError(f"undaunted.inprocess.{name} is not there any more: {_MOVED[name]}")
    return _get(name)
