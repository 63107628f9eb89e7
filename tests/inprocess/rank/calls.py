"""Calls of wrapped functions in the test's own process."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.barriers import StoreMixin
from undaunted.inprocess.compose import Compose
from undaunted.inprocess.parameters import Parameters
from undaunted.inprocess.rank_assignment import ActivateAllRanks, ShiftRanks
from undaunted.inprocess.wrap import CallWrapper

if TYPE_CHECKING:
    from collections.abc import Callable


def parameters(**changes: Any) -> Parameters:
    second = timedelta(seconds=1)
    values: dict[str, Any] = dict.fromkeys(
        (
            "store_kwargs",
            "initialize",
            "abort",
            "finalize",
            "health_check",
            "rank_filter",
            "completion",
            "terminate",
            "monitor_process_logfile",
            "monitor_process_pidfile",
        )
    )
    values |= {
        "store_factory": StoreMixin,
        "rank_assignment": Compose(ActivateAllRanks(), ShiftRanks()),
        "monitor_thread_interval": second,
        "monitor_process_interval": second,
        "heartbeat_interval": second,
        "progress_watchdog_interval": second / 10,
        "soft_timeout": 60 * second,
        "hard_timeout": 90 * second,
        "heartbeat_timeout": 30 * second,
        "barrier_timeout": 120 * second,
        "completion_timeout": 120 * second,
        "last_call_wait": second,
        "termination_grace_time": second,
        "enabled": True,
    }
    return Parameters(**(values | changes))


def call(fn: Callable[..., Any], *args: Any, check: Any = None, **changes: Any) -> Any:
    """Call ``fn`` as a wrapper with these parameters would."""
    wrapper: Any = SimpleNamespace(
        parameters=parameters(**changes), restart_health_check=check, make_base_store=lambda: None
    )
    with CallWrapper(wrapper) as wrapped:
        return wrapped(fn, args, {})
