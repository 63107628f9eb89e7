"""Configuration classes of Megatron Bridge, with its fields and defaults.

Values are checked when an object is made, and again by `finalize`, which Megatron Bridge calls
after overrides of the command line.
"""

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, get_args

from undaunted.attribution.straggler.manager import NVRxStragglerDetectionConfig
from undaunted.attribution.straggler.report import check, is_number, is_whole

__all__ = [
    "FaultToleranceConfig",
    "InProcessRestartConfig",
    "NVRxStragglerDetectionConfig",
    "RerunStateMachineConfig",
    "TrainingConfig",
]


class _Rule(NamedTuple):
    fits: Callable[[Any], bool]
    give: str


def _whole(least: int) -> _Rule:
    return _Rule(lambda value: is_whole(value) and value >= least, f"a whole number from {least}")


def _or_none(rule: _Rule) -> _Rule:
    return _Rule(lambda value: value is None or rule.fits(value), f"{rule.give} or None")


_FLAG = _Rule(lambda value: isinstance(value, bool), "True or False")
_ABOVE_0 = _Rule(lambda value: is_number(value) and 0 < value < math.inf, "a number above 0")
_SECONDS = _ABOVE_0._replace(give="a number of seconds above 0")
# Of fields that are neither flags nor words nor seconds, nor whole numbers from 1 or None.
_RULES = {
    "simulated_fault_rank": _or_none(_whole(0)),
    "simulated_fault_base_delay": _Rule(
        lambda value: is_number(value) and 0 <= value < math.inf, "a number of seconds from 0"
    ),
    "max_rank_faults": _or_none(_whole(0)),
    "monitor_process_logdir": _Rule(lambda _: True, "a path"),
    "spiky_loss_factor": _ABOVE_0,
    "error_injection_rate": _whole(0),
    "exit_signal": _Rule(
        lambda value: (
            is_whole(value) and value in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        ),
        "a signal that can be handled, such as signal.SIGTERM",
    ),
}


def _rule(name: str, kind: Any) -> _Rule:
    if name in _RULES:
        return _RULES[name]
    if kind is bool or kind is float:
        return _FLAG if kind is bool else _SECONDS
    words = get_args(kind)
    if kind == int | None:
        return _or_none(_whole(1))
    return _Rule(lambda value: value in words, f"one of {', '.join(words)}")


class _Checked:
    def __post_init__(self) -> None:
        self.finalize()

    def finalize(self) -> None:
        """Check the values.

        Raises:
            ValueError: one cannot be meant; the text says which, and what to give.
        """
        for field in fields(self):  # type: ignore[arg-type] # all of its classes are dataclasses
            rule, value = _rule(field.name, field.type), getattr(self, field.name)
            check(field.name, value, rule.fits(value), rule.give)


@dataclass(kw_only=True)
class FaultToleranceConfig(_Checked):
    """Whether hangs are found by sections, and limits calculated; not the launcher's settings.

    Attributes:
        enable_ft_package: whether anything is done at all.
        calc_ft_timeouts: calculate limits of sections from what was measured, and keep them.
        simulate_fault: for tests: have one rank fail.
        simulated_fault_type: ``rank_hung`` (SIGSTOP), ``rank_killed`` (SIGKILL), or ``random``: one
            of both.
        simulated_fault_rank: global rank of the one to fail; None = a random one.
        simulated_fault_base_delay: seconds until then; up to a fifth more, by chance.
    """

    enable_ft_package: bool = False
    calc_ft_timeouts: bool = False
    simulate_fault: bool = False
    simulated_fault_type: Literal["rank_hung", "rank_killed", "random"] = "random"
    simulated_fault_rank: int | None = None
    simulated_fault_base_delay: int = 0


@dataclass(kw_only=True)
class InProcessRestartConfig(_Checked):
    """Restart inside the process; times are seconds. See `undaunted.inprocess.Wrapper`.

    Attributes:
        enabled: whether the function is wrapped at all.
        max_iterations: how often the function may be called; None = any number of times.
        monitor_thread_interval, monitor_process_interval: not used, as nothing is polled.
        progress_watchdog_interval: how often a rank shows that its interpreter turns.
        heartbeat_interval: how often guards tell each other that they are there.
        soft_timeout: if a rank makes no progress for this long, all ranks are restarted.
        hard_timeout: if a rank makes no progress for this long, its process is ended.
        heartbeat_timeout: a node that is silent for this long is lost.
        barrier_timeout: longest wait for ranks at the beginning of an iteration.
        completion_timeout: longest time between the first and the last return.
        last_call_wait: not used.
        termination_grace_time: between SIGTERM and SIGKILL.
        granularity: ``node``: a node that has lost a rank takes no part any more; ``rank``.
        active_world_size: how many ranks call the function, the others are a reserve; None = all.
        empty_cuda_cache: free torch's cache of device memory between two calls.
        max_rank_faults: how often the function may raise in a rank; None = any number of times.
        monitor_process_logdir: directory of the guards' logs; None = none are written.
    """

    enabled: bool = False
    max_iterations: int | None = None
    monitor_thread_interval: float = 1.0
    monitor_process_interval: float = 1.0
    progress_watchdog_interval: float = 1.0
    heartbeat_interval: float = 30
    soft_timeout: float = 60
    hard_timeout: float = 90
    heartbeat_timeout: float = 60
    barrier_timeout: float = 120
    completion_timeout: float = 120
    last_call_wait: float = 1
    termination_grace_time: float = 1
    granularity: Literal["node", "rank"] = "node"
    active_world_size: int | None = None
    empty_cuda_cache: bool = True
    max_rank_faults: int | None = None
    monitor_process_logdir: str | None = None


@dataclass(kw_only=True)
class RerunStateMachineConfig(_Checked):
    """Whether suspicious results are computed again.

    Attributes:
        rerun_mode: ``disabled``; ``validate_results``; ``report_determinism_stats``, or the older
            name of it, ``report_stats``. Megatron-LM's default is ``validate_results``.
        check_for_nan_in_loss: whether a loss that is not a number is suspicious.
        check_for_spiky_loss: whether an unusually large one is.
        spiky_loss_factor: times the largest one of the first iterations.
        error_injection_rate: for tests: of so many checks one is wrong on purpose; 0 = none.
        error_injection_type: which kind: ``transient_error``, ``persistent_error``,
            ``correct_result``.
    """

    rerun_mode: Literal[
        "disabled", "validate_results", "report_stats", "report_determinism_stats"
    ] = "disabled"
    check_for_nan_in_loss: bool = True
    check_for_spiky_loss: bool = False
    spiky_loss_factor: float = 10.0
    error_injection_rate: int = 0
    error_injection_type: Literal["transient_error", "persistent_error", "correct_result"] = (
        "transient_error"
    )


@dataclass(kw_only=True)
class TrainingConfig(_Checked):
    """When a loop ends early: of Megatron Bridge's class of this name these fields, no others.

    Attributes:
        exit_signal_handler: whether a signal ends the loop, see `signals`.
        exit_signal: which one.
        exit_signal_handler_for_dataloader: whether workers of data loaders live on at that signal.
        exit_interval: end after an iteration that this number divides; None = do not.
        exit_duration_in_mins: end after so many minutes; None = do not.
    """

    exit_signal_handler: bool = False
    exit_signal: int = signal.SIGTERM
    exit_signal_handler_for_dataloader: bool = False
    exit_interval: int | None = None
    exit_duration_in_mins: int | None = None


DURATIONS = tuple(field.name for field in fields(InProcessRestartConfig) if field.type is float)
"""Fields of `InProcessRestartConfig` in seconds; the wrapper of functions calls them the same."""
