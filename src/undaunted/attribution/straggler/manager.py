"""`NVRxStragglerDetectionManager`, as in Megatron Bridge: times training steps and logs reports.

Names, defaults and lines are those of Megatron Bridge: loops written for it, and programs that read
its logs, work unchanged. It knows nothing of Megatron, and needs no GPU.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from undaunted.attribution.straggler.detector import CallableId, Detector, check_intervals
from undaunted.attribution.straggler.report import check, is_number, is_whole
from undaunted.base import torch_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from undaunted.attribution.straggler.report import Report, StragglerId

_FLAG = (True, False)


@dataclass(kw_only=True)
class NVRxStragglerDetectionConfig:
    """The content of reports, and the thresholds of warnings.

    Attributes:
        enabled: whether anything is done at all.
        report_time_interval: about the time between reports, seconds.
        calc_relative_gpu_perf: compare ranks.
        calc_individual_gpu_perf: compare each rank with its own best.
        num_gpu_perf_scores_to_print: how many of the best and of the worst ranks are logged; 0 =
            none, only warnings are.
        gpu_relative_perf_threshold, gpu_individual_perf_threshold: a rank with a score below is a
            straggler; 0 to 1.
        stop_if_detected: `check_stragglers` returns True on all ranks when there is one.
        enable_logging: log the least, median and greatest score as well.
        profiling_interval: every so many steps, one is timed.
        logger_name: of the logger of all lines.
    """

    enabled: bool = False
    report_time_interval: float = 300.0
    calc_relative_gpu_perf: bool = True
    calc_individual_gpu_perf: bool = True
    num_gpu_perf_scores_to_print: int = 5
    gpu_relative_perf_threshold: float = 0.7
    gpu_individual_perf_threshold: float = 0.7
    stop_if_detected: bool = False
    enable_logging: bool = True
    profiling_interval: int = 1
    logger_name: str = "megatron.bridge.NVRxStragglerDetection"

    def finalize(self) -> None:
        """Check the values, if enabled.

        Raises:
            ValueError: nothing is to be computed, or a value is of a wrong kind or range.
        """
        check("enabled", self.enabled, self.enabled in _FLAG, "True or False")
        if not self.enabled:
            return
        for name in (
            "calc_relative_gpu_perf",
            "calc_individual_gpu_perf",
            "stop_if_detected",
            "enable_logging",
        ):
            check(name, getattr(self, name), getattr(self, name) in _FLAG, "True or False")
        if not (self.calc_relative_gpu_perf or self.calc_individual_gpu_perf):
            raise ValueError(
                "calc_relative_gpu_perf and calc_individual_gpu_perf are both off: turn one on"
            )
        check_intervals(self.report_time_interval, self.profiling_interval)
        for name in ("gpu_relative_perf_threshold", "gpu_individual_perf_threshold"):
            threshold = getattr(self, name)
            check(name, threshold, is_number(threshold) and 0 <= threshold <= 1, "0 to 1")
        number = self.num_gpu_perf_scores_to_print
        fits = is_whole(number) and number >= 0
        check("num_gpu_perf_scores_to_print", number, fits, "a whole number; 0 = none")
        check("logger_name", self.logger_name, isinstance(self.logger_name, str), "a text")


class _Step:
    """Has the training step as an attribute, for `Detector.wrap_callables` to replace."""

    def __init__(self, train_step: Callable[..., Any]) -> None:
        self.train_step = train_step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.train_step(*args, **kwargs)


class NVRxStragglerDetectionManager:
    """Times the training step, logs reports on rank 0, and says when to stop.

    Args:
        config: see `NVRxStragglerDetectionConfig`.

    Attributes:
        heading: what goes before the scores of each kind, in one line of the log with them.
        time_level: at which it is logged how long a report took.
    """

    heading = "GPU %s performance:\n%s"
    time_level = logging.DEBUG

    def __init__(self, config: NVRxStragglerDetectionConfig) -> None:
        self.config = config
        self.logger = logging.getLogger(config.logger_name)
        self.initialized = False
        self.wrapped_function: _Step | None = None
        self.stragglers: list[int] = []
        self.scores_to_compute = [
            name
            for name, wanted in (
                ("relative_perf_scores", config.calc_relative_gpu_perf),
                ("individual_perf_scores", config.calc_individual_gpu_perf),
            )
            if wanted
        ]

    def initialize(self) -> None:
        """Initialize the `Detector`, if enabled.

        Raises:
            RuntimeError: it was called before.
            ValueError: a value of the configuration is wrong.
        """
        if self.initialized:
            raise RuntimeError("NVRxStragglerDetectionManager is already initialized.")
        self.config.finalize()
        if not self.config.enabled:
            self.logger.debug("NVRx straggler detection is disabled.")
            return
        Detector.initialize(
            scores_to_compute=self.scores_to_compute,
            gather_on_rank0=True,
            profiling_interval=self.config.profiling_interval,
            report_time_interval=self.config.report_time_interval,
        )
        self.initialized = True
        self.logger.info(
            "NVRx straggler detection enabled (report_interval=%ss)",
            self.config.report_time_interval,
        )

    def wrap_train_step_function(self, train_step_func: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step to call instead, which is timed. Never raises."""
        if not (self.initialized and self.config.enabled):
            return train_step_func
        if self.wrapped_function is not None:
            self.logger.warning("Train step function already wrapped. Skipping.")
            return self.wrapped_function
        step = _Step(train_step_func)
        try:
            Detector.wrap_callables([CallableId(step, "train_step")])
        except Exception as error:  # noqa: BLE001 - training goes on without
            self.logger.warning(
                "Failed to wrap train step function with NVRx: %s. Continuing without wrapping.",
                error,
            )
            return train_step_func
        self.wrapped_function = step
        return step

    def check_stragglers(self, global_rank: int) -> bool:
        """Report, if it is time; call it at the end of each step, on every rank.

        Returns:
            On all ranks alike: whether to stop, because there are stragglers and
            `stop_if_detected` is on.
        """
        if not (self.initialized and self.config.enabled):
            return False
        began = time.perf_counter()
        report = Detector.generate_report_if_interval_elapsed()
        found = report is not None and global_rank == 0 and self._said(report)
        if not Detector.is_interval_elapsed():
            return False
        took = time.perf_counter() - began
        self.logger.log(self.time_level, "Straggler report processing time: %.3f sec.", took)
        if not (self.config.stop_if_detected and torch_ranks.gather(found)[0]):
            return False
        self.logger.error("Detected stragglers. Training should be stopped.")
        return True

    def shutdown(self) -> None:
        """Shut the `Detector` down; the step is what it was."""
        if self.initialized:
            Detector.shutdown()
        self.initialized = False
        self.wrapped_function = None

    def _said(self, report: Report) -> bool:
        """Log a report; return whether there are stragglers."""
        found = report.identify_stragglers(
            gpu_rel_threshold=self.config.gpu_relative_perf_threshold,
            gpu_indiv_threshold=self.config.gpu_individual_perf_threshold,
        )
        self.stragglers = []
        for kind, wanted, scores, warning in (
            (
                "relative",
                self.config.calc_relative_gpu_perf,
                report.gpu_relative_perf_scores,
                "have worse relative performance",
            ),
            (
                "individual",
                self.config.calc_individual_gpu_perf,
                report.gpu_individual_perf_scores,
                "performance dropped",
            ),
        ):
            if not wanted:
                continue
            if slow := found[f"straggler_gpus_{kind}"]:
                self.stragglers += sorted(one.rank for one in slow)
                self.logger.warning(warning_line(warning, slow))
            if self.config.num_gpu_perf_scores_to_print > 0:
                body = score_lines(
                    scores, report.rank_to_node, self.config.num_gpu_perf_scores_to_print
                )
                self.logger.info(self.heading, kind, body)
            if self.config.enable_logging:
                self.log_summary(f"gpu_{kind}_perf", scores)
        return bool(self.stragglers)

    def log_summary(self, name: str, scores: Mapping[int, float]) -> None:
        """Log what programs read of the scores of a kind."""
        self.logger.info(summary_line(name, scores))


def warning_line(what: str, slow: set[StragglerId]) -> str:
    """Return the warning about some ranks."""
    ranks = sorted(one.rank for one in slow)
    return f"STRAGGLER DETECTION WARNING: Some GPUs {what}. Affected ranks: {ranks}"


def score_lines(scores: Mapping[int, float], nodes: Mapping[int, str], number: int) -> str:
    """Return a line for each of the worst and of the best ranks, or for all when these are few."""
    best_first = sorted(((score, rank) for rank, score in scores.items()), key=_order, reverse=True)
    worst_first = best_first[::-1]

    def lines(ranks: list[tuple[float, int]]) -> list[str]:
        return [f"  Rank={rank} Node={nodes[rank]} Score={score:.2f}" for score, rank in ranks]

    if len(scores) <= 2 * number:
        return "\n".join(lines(worst_first))
    return "\n".join(
        [
            f" Worst performing {number}/{len(scores)} ranks:",
            *lines(worst_first[:number]),
            f" Best performing {number}/{len(scores)} ranks:",
            *lines(best_first[:number]),
        ]
    )


def _order(scored: tuple[float, int]) -> tuple[bool, float, int]:
    """NaN has no order: it comes last, best first."""
    score, rank = scored
    known = not math.isnan(score)
    return known, score if known else 0.0, rank


def summary(name: str, scores: Mapping[int, float]) -> dict[str, float]:
    """Return the least, the lower median and the greatest score, for programs."""
    known = [score for score in scores.values() if not math.isnan(score)] or [math.nan]
    return {
        f"{name}/min": min(known),
        f"{name}/median": statistics.median_low(known),
        f"{name}/max": max(known),
    }


def summary_line(name: str, scores: Mapping[int, float]) -> str:
    """Return the line with the `summary`."""
    return f"{name} scores: {summary(name, scores)}"


def check_nvrx_straggler_detection(manager: NVRxStragglerDetectionManager | None) -> bool:
    """Return whether to stop; False without a manager. Call it at the end of each step."""
    return manager is not None and manager.check_stragglers(torch_ranks.place()[0])


def safe_shutdown_nvrx_straggler_manager(
    manager: NVRxStragglerDetectionManager | None, logger_name: str = "nvrx_straggler"
) -> None:
    """Shut a manager down, if there is one. Never raises: an error is logged."""
    try:
        if manager is not None:
            manager.shutdown()
    except Exception as error:  # noqa: BLE001 - training is over anyway
        logging.getLogger(logger_name).warning(
            "Error shutting down NVRx straggler manager: %s", error
        )
