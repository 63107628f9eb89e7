"""The arguments of `Wrapper`: their types, and the conditions between them."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.barriers import StoreMixin
from undaunted.inprocess.core.messages import Limits
from undaunted.inprocess.param_utils import enforce_subclass, enforce_type, enforce_value

if TYPE_CHECKING:
    from collections.abc import Callable

_PLUGINS = {
    "initialize": "Initialize",
    "abort": "Abort",
    "finalize": "Finalize",
    "health_check": "HealthCheck",
    "rank_assignment": "RankAssignment",
    "rank_filter": "RankFilter",
    "completion": "Completion",
    "terminate": "Terminate",
}
_REQUIRED = ("rank_assignment",)
_DURATIONS = (
    "monitor_thread_interval",
    "monitor_process_interval",
    "heartbeat_interval",
    "progress_watchdog_interval",
    "soft_timeout",
    "hard_timeout",
    "heartbeat_timeout",
    "barrier_timeout",
    "completion_timeout",
    "last_call_wait",
    "termination_grace_time",
)
_PATHS = ("monitor_process_logfile", "monitor_process_pidfile")
# Each duration of a chain must be shorter than the next one.
_CHAINS = (
    ("soft_timeout", "hard_timeout", "barrier_timeout"),
    ("heartbeat_interval", "heartbeat_timeout", "barrier_timeout"),
    ("progress_watchdog_interval", "soft_timeout"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """The arguments of one `Wrapper`, checked.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: arguments contradict each other, a path is not absolute, or torch was built
            without ``torch.distributed``.
    """

    store_factory: type[StoreMixin]
    store_kwargs: dict[str, Any] | None
    initialize: Callable[..., Any] | None
    abort: Callable[..., Any] | None
    finalize: Callable[..., Any] | None
    health_check: Callable[..., Any] | None
    rank_assignment: Callable[..., Any]
    rank_filter: Callable[..., Any] | None
    completion: Callable[..., Any] | None
    terminate: Callable[..., Any] | None
    monitor_thread_interval: timedelta
    monitor_process_interval: timedelta
    heartbeat_interval: timedelta
    progress_watchdog_interval: timedelta
    soft_timeout: timedelta
    hard_timeout: timedelta
    heartbeat_timeout: timedelta
    barrier_timeout: timedelta
    completion_timeout: timedelta
    last_call_wait: timedelta
    termination_grace_time: timedelta
    monitor_process_logfile: str | None
    monitor_process_pidfile: str | None
    enabled: bool
    max_identical_faults: int | None = 3

    def __post_init__(self) -> None:
        self._check_types()
        self._check_relations()

    def limits(self) -> Limits:
        """Return the limits for guard and controller, in seconds."""
        names = Limits.__struct_fields__
        return Limits(**{name: getattr(self, name).total_seconds() for name in names})

    def _check_types(self) -> None:
        enforce_subclass("store_factory", self.store_factory, StoreMixin)
        enforce_type("store_kwargs", self.store_kwargs, (dict, type(None)))
        for name, wanted in _PLUGINS.items():
            _check_plugin(name, getattr(self, name), wanted)
        for name in _DURATIONS:
            enforce_type(name, getattr(self, name), timedelta)
        for name in _PATHS:
            enforce_type(name, getattr(self, name), (str, type(None)))
        enforce_type("enabled", self.enabled, bool)
        enforce_type("max_identical_faults", self.max_identical_faults, (int, type(None)))

    def _check_relations(self) -> None:
        for chain in _CHAINS:
            values = {name: getattr(self, name) for name in chain}
            durations = list(values.values())
            holds = all(a < b for a, b in itertools.pairwise(durations))
            enforce_value(" < ".join(chain), holds, **values)
        for name in _PATHS:
            path = getattr(self, name)
            holds = path is None or PurePosixPath(path).is_absolute()
            enforce_value(f"os.path.isabs({name})", holds, **{name: path})
        limit = self.max_identical_faults
        enforce_value(
            "max_identical_faults > 0", limit is None or limit > 0, max_identical_faults=limit
        )
        enforce_value("torch.distributed.is_available()", _has_distributed())


def _check_plugin(name: str, value: object, wanted: str) -> None:
    """Accept any callable, but no class where an instance is wanted."""
    if value is None and name not in _REQUIRED:
        return
    if isinstance(value, type) or not callable(value):
        none = "" if name in _REQUIRED else " or None"
        raise TypeError(
            f"{name} must be an instance of {wanted} or another callable{none}, not {value!r} of "
            f"type {type(value).__name__}"
        )


def _has_distributed() -> bool:
    import torch.distributed

    return bool(torch.distributed.is_available())
