"""Configuration classes of Megatron Bridge, with its fields and defaults.

The type of a field has the rule for its values. Values are checked when an object is made, and
again by `finalize`, which Megatron Bridge calls after overrides of the command line.
"""

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple, get_args

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


def _whole(least: int, *, none: bool = False) -> _Rule:
    return _Rule(
        lambda value: (value is None and none) or (is_whole(value) and value >= least),
        f"a whole number from {least}{' or None' if none else ''}",
    )


def _is_signal(value: Any) -> bool:
    handled = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    return is_whole(value) and value in handled


def _is_above_0(value: Any) -> bool:
    return is_number(value) and 0 < value < math.inf


_Flag = Annotated[bool, _Rule(lambda value: isinstance(value, bool), "True or False")]
_Seconds = Annotated[float, _Rule(_is_above_0, "a number of seconds above 0")]
_Factor = Annotated[float, _Rule(_is_above_0, "a number above 0")]
_From0 = Annotated[int, _whole(0)]
_From0OrNone = Annotated[int | None, _whole(0, none=True)]
_From1OrNone = Annotated[int | None, _whole(1, none=True)]
_Signal = Annotated[int, _Rule(_is_signal, "a signal that can be handled, such as signal.SIGTERM")]
_Delay = Annotated[
    int,
    _Rule(lambda value: is_number(value) and 0 <= value < math.inf, "a number of seconds from 0"),
]
_Path = Annotated[str | None, _Rule(lambda _: True, "a path")]


def _rule(kind: Any) -> _Rule:
    given = getattr(kind, "__metadata__", ())
    words = get_args(kind)
    return given[0] if given else _Rule(words.__contains__, f"one of {', '.join(words)}")


class _Checked:
    def __post_init__(self) -> None:
        self.finalize()

    def finalize(self) -> None:
        """Check the values.

        Raises:
            ValueError: one cannot be meant; the text says which, and what to give.
        """
        for field in fields(self):  # type: ignore[arg-type] # all of its classes are dataclasses
            rule, value = _rule(field.type), getattr(self, field.name)
            check(field.name, value, rule.fits(value), rule.give)


@dataclass(kw_only=True)
class FaultToleranceConfig(_Checked):
    """The settings of sections and calculated limits; not the launcher's settings.

    Attributes:
        enable_ft_package: whether anything is done at all.
        calc_ft_timeouts: calculate limits of sections from what was measured, and keep them.
        simulate_fault: for tests: have one rank fail.
        simulated_fault_type: ``rank_hung`` (SIGSTOP), ``rank_killed`` (SIGKILL), or ``random``: one
            of both.
        simulated_fault_rank: global rank of the one to fail; None = a random one.
        simulated_fault_base_delay: seconds until then; up to a fifth more, by chance.
    """

    enable_ft_package: _Flag = False
    calc_ft_timeouts: _Flag = False
    simulate_fault: _Flag = False
    simulated_fault_type: Literal["rank_hung", "rank_killed", "random"] = "random"
    simulated_fault_rank: _From0OrNone = None
    simulated_fault_base_delay: _Delay = 0


@dataclass(kw_only=True)
class InProcessRestartConfig(_Checked):
    """Restart inside the process; times are seconds.

    Those that are not named here are arguments of `undaunted.inprocess.Wrapper`.

    Attributes:
        enabled: whether the function is wrapped at all.
        max_iterations: how often the function may be called; None = any number of times.
        granularity: ``node``: a node that has lost a rank takes no part any more; ``rank``.
        active_world_size: how many ranks call the function, the others are a reserve; None = all.
        empty_cuda_cache: free torch's cache of device memory between two calls.
        max_rank_faults: how often the function may raise in a rank; None = any number of times.
        monitor_process_logdir: directory of the guards' logs; None = none are written.
    """

    enabled: _Flag = False
    max_iterations: _From1OrNone = None
    monitor_thread_interval: _Seconds = 1.0
    monitor_process_interval: _Seconds = 1.0
    progress_watchdog_interval: _Seconds = 1.0
    heartbeat_interval: _Seconds = 30
    soft_timeout: _Seconds = 60
    hard_timeout: _Seconds = 90
    heartbeat_timeout: _Seconds = 60
    barrier_timeout: _Seconds = 120
    completion_timeout: _Seconds = 120
    last_call_wait: _Seconds = 1
    termination_grace_time: _Seconds = 1
    granularity: Literal["node", "rank"] = "node"
    active_world_size: _From1OrNone = None
    empty_cuda_cache: _Flag = True
    max_rank_faults: _From0OrNone = None
    monitor_process_logdir: _Path = None


@dataclass(kw_only=True)
class RerunStateMachineConfig(_Checked):
    """The settings of the machine that computes suspicious results again.

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
    check_for_nan_in_loss: _Flag = True
    check_for_spiky_loss: _Flag = False
    spiky_loss_factor: _Factor = 10.0
    error_injection_rate: _From0 = 0
    error_injection_type: Literal["transient_error", "persistent_error", "correct_result"] = (
        "transient_error"
    )


@dataclass(kw_only=True)
class TrainingConfig(_Checked):
    """The early end of a loop: these fields of Megatron Bridge's class of this name, no others.

    Attributes:
        exit_signal_handler: whether a signal ends the loop, see `signals`.
        exit_signal: which one.
        exit_signal_handler_for_dataloader: whether workers of data loaders live on at that signal.
        exit_interval: end after an iteration that this number divides; None = do not.
        exit_duration_in_mins: end after so many minutes; None = do not.
    """

    exit_signal_handler: _Flag = False
    exit_signal: _Signal = signal.SIGTERM
    exit_signal_handler_for_dataloader: _Flag = False
    exit_interval: _From1OrNone = None
    exit_duration_in_mins: _From1OrNone = None
