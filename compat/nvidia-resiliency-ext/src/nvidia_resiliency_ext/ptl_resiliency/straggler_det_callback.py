"""`StragglerDetectionCallback`, as in NVRx: training steps of ranks are timed and compared."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING, Any

from undaunted.attribution.straggler.detector import Detector
from undaunted.attribution.straggler.manager import NVRxStragglerDetectionConfig, summary
from undaunted.integrations.lightning.changes import around
from undaunted.integrations.lightning.checkpoints import folder_of, save_at_stop, wait_for_saves
from undaunted.integrations.lightning.framework import of_lightning
from undaunted.integrations.megatron.straggler import NVRxStragglerDetectionManager

if TYPE_CHECKING:
    from collections.abc import Mapping


class StragglerDetectionCallback(of_lightning("callbacks", "Callback")):  # type: ignore[misc]
    """Times training steps, logs how ranks compare, and can end training for a slow one.

    Args:
        report_time_interval: about the time between reports, seconds.
        calc_relative_gpu_perf: compare ranks.
        calc_individual_gpu_perf: compare each rank with its own best.
        num_gpu_perf_scores_to_print: how many of the best and of the worst ranks are logged; 0 =
            none, only warnings are.
        gpu_relative_perf_threshold: a rank with a score below is a straggler; 0 to 1.
        gpu_individual_perf_threshold: likewise.
        stop_if_detected: save a checkpoint and end all ranks with 1 when there is a straggler. The
            launcher learns which rank it was.
        enable_ptl_logging: give least, median and greatest score to the module's loggers.
        profiling_interval: every so many steps, one is timed.
        logger_name: of the logger of all lines.

    Raises:
        ImportError: Lightning is not there.
        ValueError: a value cannot be meant.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - those of NVRx
        self,
        report_time_interval: float,
        calc_relative_gpu_perf: bool,
        calc_individual_gpu_perf: bool,
        num_gpu_perf_scores_to_print: int,
        gpu_relative_perf_threshold: float,
        gpu_individual_perf_threshold: float,
        stop_if_detected: bool,
        enable_ptl_logging: bool,
        profiling_interval: int = 1,
        logger_name: str | None = "nemo_logger.StragglerDetectionCallback",
    ) -> None:
        super().__init__()
        self._config = NVRxStragglerDetectionConfig(
            enabled=True,
            report_time_interval=report_time_interval,
            calc_relative_gpu_perf=calc_relative_gpu_perf,
            calc_individual_gpu_perf=calc_individual_gpu_perf,
            num_gpu_perf_scores_to_print=num_gpu_perf_scores_to_print,
            gpu_relative_perf_threshold=gpu_relative_perf_threshold,
            gpu_individual_perf_threshold=gpu_individual_perf_threshold,
            stop_if_detected=stop_if_detected,
            enable_logging=enable_ptl_logging,
            profiling_interval=profiling_interval,
            logger_name=logger_name or "",
        )
        self._config.finalize()
        self._manager: _Manager | None = None
        self._fit = contextlib.ExitStack()

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Begin, if the trainer is to fit."""
        if stage != "fit":
            return
        self._leave()  # a `fit` that did not say that it had ended
        self._manager = _Manager(self._config, module)
        self._manager.initialize()
        self._fit.callback(self._manager.shutdown)
        name = f"{type(trainer.strategy).__name__}.training_step"
        self._fit.enter_context(
            around(trainer.strategy, "training_step", lambda: Detector.detection_section(name))
        )

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """A batch is over."""
        if self._manager is not None and self._manager.check_stragglers(trainer.global_rank):
            trainer.should_stop = True
            _save_last(trainer)
            sys.exit(1)

    def teardown(self, _: Any, __: Any, stage: str) -> None:
        """End."""
        if stage == "fit":
            self._leave()

    def on_exception(self, *_: Any) -> None:
        """End, by an exception."""
        self._leave()

    def _leave(self) -> None:
        self._manager = None
        self._fit.close()


class _Manager(NVRxStragglerDetectionManager):
    """Has scores in the logs of the module."""

    heading = "\nGPU %s performance:\n%s"
    time_level = logging.INFO

    def __init__(self, config: NVRxStragglerDetectionConfig, module: Any) -> None:
        super().__init__(config)
        self._module = module

    def log_summary(self, name: str, scores: Mapping[int, float]) -> None:
        self._module.log_dict(summary(name, scores), batch_size=1, rank_zero_only=True)


def _save_last(trainer: Any) -> None:
    """Save as the first ModelCheckpoint saves its last one, if it does, and else as a stop does."""
    saver = trainer.checkpoint_callback
    if saver is None:
        return
    if getattr(saver, "save_last", None):
        saver._save_last_checkpoint(trainer, saver._monitor_candidates(trainer))  # noqa: SLF001 - it is not public
        wait_for_saves(trainer)
    else:
        save_at_stop(trainer, folder_of(trainer))
