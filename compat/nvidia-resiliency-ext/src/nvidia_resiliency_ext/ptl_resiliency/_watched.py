"""The common part of the two callbacks for fault tolerance: begin, end, and limits that are kept.

Both can have limits calculated from what was measured, which are kept for the next start, and make
the file by which scripts of a scheduler know that training is complete. Only ``fit`` is watched.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from undaunted.fault_tolerance.kept_limits import Job, KeptLimits
from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClient
from undaunted.fault_tolerance.simulated_faults import (
    SimulatedFaultParams,
    parse_simulated_fault_params,
    setup_simulated_fault,
)
from undaunted.integrations.lightning.framework import of_lightning
from undaunted.progress.api import step
from undaunted.training.stopping import StopReason, tell_launcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

FINISHED_FLAG = "FAULT_TOL_FINISHED_FLAG_FILE"

Faults = SimulatedFaultParams | dict[str, Any] | None


class Watched(of_lightning("callbacks", "Callback")):  # type: ignore[misc]
    """The acts of both callbacks at the begin and at the end of ``fit``."""

    _file: ClassVar[str]

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Faults,
        exp_dir: str | PathLike[str] | None,
        logger_name: str | None,
    ) -> None:
        super().__init__()
        self.autoresume = autoresume
        self.calculate_timeouts = calculate_timeouts
        self.simulated_fault_params = parse_simulated_fault_params(simulated_fault_params)
        self.exp_dir = exp_dir
        self.logger = logging.getLogger(logger_name)
        self.fault_tol_client: RankMonitorClient | None = None
        self._fit: contextlib.ExitStack | None = None
        self._kept: KeptLimits | None = None
        self._rank = 0
        self._iterations = 0

    @property
    def is_initialized(self) -> bool:
        """Return whether a ``fit`` is watched now."""
        return self.fault_tol_client is not None

    # --- begin ------------------------------------------------------------------------------------

    def setup(self, trainer: Any, _: Any, stage: str) -> None:
        """Begin, if the trainer is to fit: the process group is there, nothing is loaded yet.

        Raises:
            RuntimeError: with ``autoresume`` the file for a finished job is not named; or there are
                no limits, and none are to be calculated.
        """
        if stage != "fit":
            return
        if self._fit is not None:  # it did not say that it had ended
            self._forget()
        self._rank, self._iterations = trainer.global_rank, 0
        if self.autoresume and not os.environ.get(FINISHED_FLAG):
            raise RuntimeError(
                f"autoresume needs {FINISHED_FLAG}, the file that is made when training is "
                "complete: set it, as the scripts of NeMo-Run do, or give autoresume=False"
            )
        with contextlib.ExitStack() as fit:
            client = RankMonitorClient()
            client.init_workload_monitoring()
            fit.callback(client.shutdown_workload_monitoring)
            self._begin(trainer, client, fit)
            self._load(trainer, client)
            self._check_limits(client)
            if self.simulated_fault_params is not None:
                fit.enter_context(self._fault(trainer, self.simulated_fault_params))
            self.fault_tol_client, self._fit = client, fit.pop_all()

    def _begin(self, trainer: Any, client: RankMonitorClient, fit: contextlib.ExitStack) -> None:
        """Begin to measure; what was measured before is forgotten."""
        raise NotImplementedError

    def _load(self, trainer: Any, client: RankMonitorClient) -> None:
        folder = self.exp_dir or Path(trainer.log_dir or trainer.default_root_dir) / "ft_state"
        job = Job(trainer.world_size, tuple(sorted(client.cfg.rank_section_timeouts)))  # type: ignore[union-attr] # is initialized
        self._kept = KeptLimits(os.fspath(folder), job, self._warn, self._file)
        if trainer.global_rank == 0:
            self._kept.make_folder()
        if self._kept.load_into(client):
            self._say(f"loaded timeouts from {self._kept.path}: {self._limits(client)}")

    def _check_limits(self, client: RankMonitorClient) -> None:
        limits = self._limits(client)
        if limits.are_valid:
            self._say(f"initialized; timeouts: {limits}")
        elif self.calculate_timeouts:
            self._say("initialized; timeouts are not calculated yet")
        else:
            raise RuntimeError(
                f"there are no timeouts for ranks ({limits}), and calculate_timeouts is False: "
                "start the program with `undaunted run`, give it the missing ones, or set "
                "calculate_timeouts"
            )

    @contextlib.contextmanager
    def _fault(self, trainer: Any, params: SimulatedFaultParams) -> Iterator[None]:
        place = {"RANK": f"{trainer.global_rank}", "WORLD_SIZE": f"{trainer.world_size}"}
        trigger = setup_simulated_fault(params, {**os.environ, **place})
        self._say(f"a fault is simulated: {params}")
        with contextlib.nullcontext() if trigger is None else contextlib.closing(trigger):
            yield

    # --- the loop ---------------------------------------------------------------------------------

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """A batch begins."""
        if self.is_initialized:
            step(trainer.global_step)

    def on_train_batch_end(self, *_: Any) -> None:
        """A batch is over."""
        self._iterations += 1

    # --- end --------------------------------------------------------------------------------------

    def teardown(self, trainer: Any, _: Any, stage: str) -> None:
        """End."""
        if stage == "fit":
            self._leave(trainer, None)

    def on_exception(self, trainer: Any, _: Any, exception: BaseException) -> None:
        """End, by an exception."""
        self._leave(trainer, exception)

    def _leave(self, trainer: Any, error: BaseException | None) -> None:
        client = self.fault_tol_client
        if client is None:
            return
        try:
            self._end(client, error)
            if self.autoresume:
                self._say_whether_complete(trainer, error)
        finally:
            self._forget()

    def _end(self, client: RankMonitorClient, error: BaseException | None) -> None:
        """Calculate limits for the last time, if this was no failure."""
        raise NotImplementedError

    def _say_whether_complete(self, trainer: Any, error: BaseException | None) -> None:
        if is_training_completed(trainer, self._iterations, error):
            self._say("training is complete")
            if self._rank == 0:
                self._make_flag()
        elif is_graceful(error):
            # The launcher would take ranks that end with 0 for a job that is finished.
            text = f"training ended at step {trainer.global_step}, and is not complete"
            tell_launcher(StopReason.REQUESTED, trainer.global_rank, text)
            self._say(text)

    def _make_flag(self) -> None:
        path = os.environ.get(FINISHED_FLAG)
        try:
            if path:
                Path(path).touch()
        except OSError as error:
            self._warn(f"training is over, but {FINISHED_FLAG} cannot be written: {error}")

    def _forget(self) -> None:
        fit, self._fit, self.fault_tol_client = self._fit, None, None
        if fit is not None:
            fit.close()

    # --- limits -----------------------------------------------------------------------------------

    def _limits(self, client: RankMonitorClient) -> Any:
        raise NotImplementedError

    def _keep(self, client: RankMonitorClient) -> None:
        self._say(f"updated timeouts: {self._limits(client)}")
        if self._rank == 0 and self._kept is not None and self._kept.save(client.state_dict()):
            self._say(f"updated timeouts are saved to {self._kept.path}")

    def _say(self, text: str) -> None:
        if self._rank == 0:
            self.logger.info("[FaultToleranceCallback@rank0] %s", text)

    def _warn(self, text: str) -> None:
        self.logger.warning("[FaultToleranceCallback@rank%d] %s", self._rank, text)


def is_graceful(error: BaseException | None) -> bool:
    """Return whether a program means to end well."""
    return error is None or (isinstance(error, SystemExit) and error.code in (0, None))


def is_training_completed(trainer: Any, iterations: int, error: BaseException | None) -> bool:
    """Return whether nothing is left to do.

    Args:
        trainer: knows how far it should go, and is.
        iterations: of this run; it has ended by itself if these were one at most.
        error: by which it has ended, None = by itself.
    """
    max_steps, max_epochs = trainer.max_steps or 0, trainer.max_epochs or 0
    return (
        (error is None and iterations <= 1)
        or (trainer.global_step >= max_steps > 0)
        or (trainer.current_epoch >= max_epochs > 0)
    )
