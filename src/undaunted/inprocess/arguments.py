"""The arguments of `Wrapper`, checked."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from undaunted.base.sizes import whole
from undaunted.inprocess.abort import AbortTorchDistributed
from undaunted.inprocess.compose import Compose
from undaunted.inprocess.core.messages import Limits
from undaunted.inprocess.param_utils import enforce_type, enforce_value
from undaunted.inprocess.rank_assignment import ActivateAllRanks, ShiftRanks

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.abort import Abort
    from undaunted.inprocess.completion import Completion
    from undaunted.inprocess.finalize import Finalize
    from undaunted.inprocess.health_check import HealthCheck
    from undaunted.inprocess.initialize import Initialize
    from undaunted.inprocess.rank_assignment import RankAssignment
    from undaunted.inprocess.terminate import Terminate

_SECOND = timedelta(seconds=1)
_ABORT = AbortTorchDistributed()
_ASSIGNMENT = Compose(ActivateAllRanks(), ShiftRanks())
_PLUGINS = (
    "initialize",
    "abort",
    "finalize",
    "health_check",
    "rank_assignment",
    "rank_filter",
    "completion",
    "terminate",
)
_REQUIRED = ("rank_assignment",)
_PATHS = ("monitor_process_logfile", "monitor_process_pidfile")
# Each duration of a chain must be shorter than the next one.
_CHAINS = (
    ("soft_timeout", "hard_timeout", "barrier_timeout"),
    ("heartbeat_interval", "heartbeat_timeout", "barrier_timeout"),
    ("progress_watchdog_interval", "soft_timeout"),
)


@dataclasses.dataclass(kw_only=True, eq=False)
class Arguments:
    """The arguments of a restart of a function.

    Plug-ins are instances of the classes named below, or any callables.

    Args:
        store_factory: called with ``store_kwargs``, returns a store of torch in which guards meet,
            and that iterations share. None = every iteration has a fresh one.
        store_kwargs: for ``store_factory``. By default ``host_name`` and ``port`` are where
            rank 0's guard listens (``MASTER_ADDR``, and a free port; not used under
            `undaunted run`, and on one machine), ``timeout`` that of the iterations' stores
            (300 s).
        initialize: called at the beginning of every iteration.
        abort: aborts communication, in another thread; its exceptions are ignored.
        finalize: called in every rank after a fault; its exceptions are fatal for the rank.
        health_check: called at the beginning of iterations, and after a fault; then its
            exceptions are fatal for the rank.
        rank_assignment: gives ranks to the processes that are left.
        rank_filter: outdated: applied to the state after ``rank_assignment``.
        monitor_thread_interval: not used, as nothing is polled.
        monitor_process_interval: not used, for the same reason.
        heartbeat_interval: how often guards tell each other that they are there.
        progress_watchdog_interval: how often a rank shows that its interpreter turns.
        soft_timeout: if a rank makes no progress for this long, all ranks are restarted.
        hard_timeout: if a rank makes no progress for this long, its process is ended.
        heartbeat_timeout: a rank that is cut off for this long leaves, or is ended.
        barrier_timeout: longest wait for ranks at the beginning of an iteration.
        completion_timeout: longest time between the first and the last return.
        last_call_wait: not used: all faults up to the next iteration are handled together,
            without a wait.
        termination_grace_time: between SIGTERM and SIGKILL.
        monitor_process_logfile: absolute path of the guards' logs; ``{rank}`` is the rank.
        monitor_process_pidfile: absolute path of a file with the guard's pid; likewise.
        enabled: False = functions are returned as they are.
        completion: called when all ranks have completed the function; its exceptions are only
            logged.
        terminate: called in a rank that leaves.
        max_identical_faults: the same exception, raised at the same line this often in a row
            without progress, ends the call with `RestartAbort` in all ranks. Progress is a
            `CallWrapper.ping`, a higher number of ``undaunted.step``, or an iteration of
            ``soft_timeout``. From the second time on it is called again after a pause of 1 s,
            2 s, ... 5 s. None = it is restarted for ever, without a pause.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: arguments contradict each other, a path is not absolute, or torch was built
            without ``torch.distributed``.
    """

    store_factory: Callable[..., Any] | None = None
    store_kwargs: dict[str, Any] | None = None
    initialize: Initialize | Callable[..., Any] | None = None
    abort: Abort | Callable[..., Any] | None = _ABORT
    finalize: Finalize | Callable[..., Any] | None = None
    health_check: HealthCheck | Callable[..., Any] | None = None
    rank_assignment: RankAssignment | Callable[..., Any] = _ASSIGNMENT
    rank_filter: Callable[..., Any] | None = None
    monitor_thread_interval: timedelta = _SECOND
    monitor_process_interval: timedelta = _SECOND
    heartbeat_interval: timedelta = _SECOND
    progress_watchdog_interval: timedelta = _SECOND
    soft_timeout: timedelta = 60 * _SECOND
    hard_timeout: timedelta = 90 * _SECOND
    heartbeat_timeout: timedelta = 30 * _SECOND
    barrier_timeout: timedelta = 120 * _SECOND
    completion_timeout: timedelta = 120 * _SECOND
    last_call_wait: timedelta = _SECOND
    termination_grace_time: timedelta = 5 * _SECOND
    monitor_process_logfile: str | None = None
    monitor_process_pidfile: str | None = None
    enabled: bool = True
    completion: Completion | Callable[..., Any] | None = None
    terminate: Terminate | Callable[..., Any] | None = None
    max_identical_faults: int | None = 3

    def __post_init__(self) -> None:
        """Check the arguments."""
        self._check_types()
        self._check_relations()

    @functools.cached_property
    def restart_health_check(self) -> Callable[..., Any] | None:
        """The checks after a fault: `health_check`, and checks of this rank's hardware.

        That is its GPU, NVLink and network card, which are found by ``LOCAL_RANK``.
        """
        return _with_device_checks(self.health_check)

    def limits(self) -> Limits:
        """Return the limits for guard and controller, in seconds."""
        names = Limits.__struct_fields__
        return Limits(**{name: getattr(self, name).total_seconds() for name in names})

    def make_base_store(self) -> Any:
        """Return the store of ``store_factory``; None = there is none."""
        if self.store_factory is None:
            return None
        return self.store_factory(**(self.store_kwargs or {}))

    def _check_types(self) -> None:
        if not (self.store_factory is None or callable(self.store_factory)):
            raise TypeError(f"store_factory must be a callable or None, not {self.store_factory!r}")
        enforce_type("store_kwargs", self.store_kwargs, (dict, type(None)))
        for name in _PLUGINS:
            _check_plugin(name, getattr(self, name))
        for field in dataclasses.fields(self):
            if isinstance(field.default, timedelta):
                enforce_type(field.name, getattr(self, field.name), timedelta)
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


def _check_plugin(name: str, value: object) -> None:
    """Accept any callable, but no class where an instance is wanted."""
    if value is None and name not in _REQUIRED:
        return
    if isinstance(value, type) or not callable(value):
        wanted = "".join(word.title() for word in name.split("_"))
        none = "" if name in _REQUIRED else " or None"
        raise TypeError(
            f"{name} must be an instance of {wanted} or another callable{none}, not {value!r} of "
            f"type {type(value).__name__}"
        )


def _has_distributed() -> bool:
    import torch.distributed

    return bool(torch.distributed.is_available())


def _with_device_checks(health_check: Callable[..., Any] | None) -> Callable[..., Any] | None:
    device = whole(os.environ.get("LOCAL_RANK"))
    if device is None:
        return health_check
    from undaunted.inprocess.health_check import (
        ChainedGPUHealthCheck,
        ChainedNicHealthCheck,
        ChainedNVLHealthCheck,
    )

    users: tuple[Any, ...] = () if health_check is None else (health_check,)
    if isinstance(health_check, Compose):
        users = health_check.instances
    composed: Callable[..., Any] = Compose(
        *users,
        ChainedGPUHealthCheck(device_index=device),
        ChainedNVLHealthCheck(device_index=device),
        ChainedNicHealthCheck(device_index=device),
    )
    return composed
