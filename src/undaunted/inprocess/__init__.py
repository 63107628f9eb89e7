"""Restart inside the process: a function that runs again everywhere after a fault anywhere.

    from undaunted import inprocess

    @inprocess.Wrapper(initialize=inprocess.initialize.RetryController(max_iterations=3))
    def train(): ...

Names and modules are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.inprocess import abort as abort
    from undaunted.inprocess import attribution as attribution
    from undaunted.inprocess import completion as completion
    from undaunted.inprocess import exception as exception
    from undaunted.inprocess import finalize as finalize
    from undaunted.inprocess import health_check as health_check
    from undaunted.inprocess import initialize as initialize
    from undaunted.inprocess import monitor_process as monitor_process
    from undaunted.inprocess import monitor_thread as monitor_thread
    from undaunted.inprocess import nested_restarter as nested_restarter
    from undaunted.inprocess import param_utils as param_utils
    from undaunted.inprocess import progress_watchdog as progress_watchdog
    from undaunted.inprocess import rank_assignment as rank_assignment
    from undaunted.inprocess import rank_filter as rank_filter
    from undaunted.inprocess import sibling_monitor as sibling_monitor
    from undaunted.inprocess import state as state
    from undaunted.inprocess import store as store
    from undaunted.inprocess import terminate as terminate
    from undaunted.inprocess import tools as tools
    from undaunted.inprocess import utils as utils
    from undaunted.inprocess import wrap as wrap
    from undaunted.inprocess.call import CallWrapper as CallWrapper
    from undaunted.inprocess.compose import Compose as Compose
    from undaunted.inprocess.state import FrozenState as FrozenState
    from undaunted.inprocess.state import Mode as Mode
    from undaunted.inprocess.state import State as State
    from undaunted.inprocess.wrap import Wrapper as Wrapper

_MODULE_OF = {
    "CallWrapper": "call",
    "Compose": "compose",
    "FrozenState": "state",
    "Mode": "state",
    "State": "state",
    "Wrapper": "wrap",
}
_MODULES = (
    "abort",
    "attribution",
    "completion",
    "exception",
    "finalize",
    "health_check",
    "initialize",
    "monitor_process",
    "monitor_thread",
    "nested_restarter",
    "param_utils",
    "progress_watchdog",
    "rank_assignment",
    "rank_filter",
    "sibling_monitor",
    "state",
    "store",
    "terminate",
    "tools",
    "utils",
    "wrap",
)

__all__ = [*_MODULE_OF, *_MODULES]  # noqa: PLE0604 - all of them are text


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _MODULE_OF:
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
