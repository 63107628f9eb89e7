"""`FaultToleranceCallback` and `FaultToleranceSectionsCallback`, as in NVRx: ranks are watched.

One sends heartbeats, the other one opens sections. Both can have limits calculated from what was
measured, which are kept for the next start, and make the file by which scripts of a scheduler know
that training is complete. Only ``fit`` is watched.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from undaunted.fault_tolerance.data import WorkloadAction
from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClient, RankMonitorClientError
from undaunted.fault_tolerance.simulated_faults import (
    SimulatedFaultParams,
    parse_simulated_fault_params,
    setup_simulated_fault,
)
from undaunted.integrations.kept_limits import Job, KeptLimits
from undaunted.integrations.lightning.changes import around
from undaunted.integrations.lightning.checkpoints import saves_behind
from undaunted.integrations.lightning.framework import of_lightning
from undaunted.integrations.megatron.fault_tolerance import (
    CHECKPOINTING,
    SETUP,
    STEP,
    FaultToleranceState,
    possible_update,
)
from undaunted.integrations.megatron.ranks import end_together
from undaunted.progress.api import step
from undaunted.training.stopping import StopReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

    from undaunted.fault_tolerance.data import WorkloadControlRequest

__all__ = ["FaultToleranceCallback", "FaultToleranceSectionsCallback", "SimulatedFaultParams"]

FINISHED_FLAG = "FAULT_TOL_FINISHED_FLAG_FILE"
_SECTIONS = frozenset({SETUP, STEP, CHECKPOINTING})
_MIN_ITERS_OF_STEP = 17
_MIN_ITERS_OF_HEARTBEATS = 2

Faults = SimulatedFaultParams | dict[str, Any] | None


class _Watched(of_lightning("callbacks", "Callback")):  # type: ignore[misc]
    """What both callbacks do at the begin and at the end of ``fit``."""

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
        """Whether a ``fit`` is watched now."""
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
        state = self._kept.load()
        if state is None:
            return
        try:
            client.load_state_dict(state)
            self._say(f"loaded timeouts from {self._kept.path}: {self._limits(client)}")
        except RankMonitorClientError as error:
            self._warn(f"{self._kept.path} is not used: {error}")

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
            end_together(StopReason.REQUESTED, trainer.global_rank, text)
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


class FaultToleranceCallback(_Watched):
    """Sends heartbeats to the launcher.

    Args:
        autoresume: when training is complete, the file that ``FAULT_TOL_FINISHED_FLAG_FILE`` names
            is made; when it ends before that, the launcher does not take the job for finished.
        calculate_timeouts: limits are calculated, once in a run: after a checkpoint was loaded, and
            one was saved between two heartbeats.
        simulated_fault_params: a fault for tests: `SimulatedFaultParams`, or a mapping of them.
        exp_dir: where calculated limits are kept, in ``_ft_state.json``; the same in each start.
            None = in the folder ``ft_state`` of the trainer's ``log_dir``.
        logger_name: of the logger of all lines.

    Raises:
        ImportError: Lightning is not there.
        ValueError: ``simulated_fault_params`` cannot be read.
    """

    _file = "_ft_state.json"

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Faults = None,
        exp_dir: str | PathLike[str] | None = None,
        logger_name: str | None = "nemo_logger.FaultToleranceCallback",
    ) -> None:
        super().__init__(
            autoresume, calculate_timeouts, simulated_fault_params, exp_dir, logger_name
        )
        self._seen = Heartbeats()

    def _begin(self, *_: Any) -> None:
        self._seen = Heartbeats()

    def _limits(self, client: RankMonitorClient) -> Any:
        return client.hb_timeouts

    def on_train_start(self, *_: Any) -> None:
        """Training begins."""
        self._beat()

    def on_train_batch_end(self, *args: Any) -> None:
        """A batch is over."""
        super().on_train_batch_end(*args)
        self._beat()
        self._update()

    def on_train_end(self, *_: Any) -> None:
        """Training is over."""
        self._beat()
        self._update()

    def on_validation_start(self, *_: Any) -> None:
        """A validation begins."""
        self._beat()

    def on_validation_batch_end(self, *_: Any) -> None:
        """A batch of it is over."""
        self._beat()

    def on_validation_end(self, *_: Any) -> None:
        """It is over."""
        self._beat()

    def on_load_checkpoint(self, *_: Any) -> None:
        """A checkpoint was loaded."""
        self._seen.loaded = True

    def on_save_checkpoint(self, *_: Any) -> None:
        """A checkpoint is about to be written."""
        self._beat()
        self._seen.save()

    def _end(self, client: RankMonitorClient, error: BaseException | None) -> None:
        client.send_heartbeat()
        self._seen.heartbeat()
        if is_graceful(error):
            self._update()

    def _beat(self) -> None:
        if self.fault_tol_client is not None:
            self.fault_tol_client.send_heartbeat()
            self._seen.heartbeat()

    def _update(self) -> None:
        client = self.fault_tol_client
        enough = self._iterations >= _MIN_ITERS_OF_HEARTBEATS and self._seen.enough
        if client is None or not (self.calculate_timeouts and enough):
            return
        if client.calculate_and_set_hb_timeouts(skip_if_not_ready=True):
            self._seen.used = True
            self._keep(client)


@dataclass
class Heartbeats:
    """Whether what was measured between heartbeats has all that a limit has to cover.

    Attributes:
        loaded: a checkpoint was loaded.
        used: limits were calculated.
        count: how many were sent.
        saves: whether there was none before a save (None), one (False), or one after it as well.
    """

    loaded: bool = False
    used: bool = False
    count: int = 0
    saves: bool | None = None

    def heartbeat(self) -> None:
        """One is sent."""
        self.count += 1
        if self.saves is False:
            self.saves = True

    def save(self) -> None:
        """A checkpoint is about to be written."""
        if self.count and self.saves is None:
            self.saves = False

    @property
    def enough(self) -> bool:
        """Whether limits can be calculated, for the first time."""
        return self.loaded and self.saves is True and not self.used


class FaultToleranceSectionsCallback(_Watched):
    """Opens sections: ``setup`` until the first batch, ``step``, and ``checkpointing``.

    ``step`` is the step of the model, in training and in validation; the launcher has to have
    limits for exactly these three.

    Args:
        autoresume: see `FaultToleranceCallback`.
        calculate_timeouts: limits are calculated: after each save, and at the end.
        simulated_fault_params: see there.
        exp_dir: see there; the file is ``_ft_state_.json``.
        logger_name: of the logger of all lines.
        exc_handling_policy: given an exception, returns what to ask of the launcher.

    Raises:
        ImportError: Lightning is not there.
        ValueError: ``simulated_fault_params`` cannot be read.
    """

    _file = "_ft_state_.json"

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Faults = None,
        exp_dir: str | PathLike[str] | None = None,
        logger_name: str | None = "nemo_logger.FaultToleranceCallback",
        exc_handling_policy: Callable[[Exception], WorkloadControlRequest] | None = None,
    ) -> None:
        super().__init__(
            autoresume, calculate_timeouts, simulated_fault_params, exp_dir, logger_name
        )
        self.exc_handling_policy = exc_handling_policy
        self._seen = FaultToleranceState()
        self._has_saved = False

    def _begin(self, trainer: Any, client: RankMonitorClient, fit: contextlib.ExitStack) -> None:
        _check_sections(client.cfg.rank_section_timeouts)  # type: ignore[union-attr] # is initialized
        self._seen = FaultToleranceState(
            is_async_chkpt_enabled=saves_behind(trainer), is_setup_section_open=True
        )
        self._has_saved = False
        client.start_section(SETUP)
        sections = Sections(client)
        for method in ("training_step", "validation_step"):
            fit.enter_context(around(trainer.strategy, method, lambda: sections.inside(STEP)))
        saving = [(trainer, "save_checkpoint"), (trainer.strategy, "remove_checkpoint")]
        if self._seen.is_async_chkpt_enabled:
            saving.append((trainer.strategy.checkpoint_io, "maybe_finalize_save_checkpoint"))
        for owner, method in saving:
            fit.enter_context(
                around(owner, method, lambda: sections.inside(CHECKPOINTING, nests=True))
            )

    def _limits(self, client: RankMonitorClient) -> Any:
        return client.section_timeouts

    def on_train_batch_start(self, *args: Any) -> None:
        """A batch begins."""
        super().on_train_batch_start(*args)
        self._close_setup()

    def on_train_batch_end(self, *args: Any) -> None:
        """A batch is over."""
        super().on_train_batch_end(*args)
        if self._has_saved:
            self._has_saved = False
            self._update(is_closing=False)

    def on_validation_batch_start(self, *_: Any) -> None:
        """A batch of a validation begins."""
        self._close_setup()

    def on_load_checkpoint(self, *_: Any) -> None:
        """A checkpoint was loaded."""
        self._seen.is_persistent_chkpt_loaded = True

    def on_save_checkpoint(self, *_: Any) -> None:
        """A checkpoint is about to be written."""
        self._seen.seen_checkpoints_cnt += 1
        self._has_saved = True

    def _close_setup(self) -> None:
        if self.fault_tol_client is not None and self._seen.is_setup_section_open:
            self._seen.is_setup_section_open = False
            self.fault_tol_client.end_section(SETUP)

    def _end(self, client: RankMonitorClient, error: BaseException | None) -> None:
        self._close_setup()
        if is_graceful(error):
            self._update(is_closing=True)
        elif isinstance(error, Exception) and self.exc_handling_policy is not None:
            self._ask(client, self.exc_handling_policy(error))

    def _ask(self, client: RankMonitorClient, request: WorkloadControlRequest) -> None:
        try:
            client.send_workload_control_request(request)
        except (RuntimeError, RankMonitorClientError) as error:
            self._warn(f"{error}")
        if request.action is WorkloadAction.ShutdownWorkload:
            self._make_flag()

    def _update(self, *, is_closing: bool) -> None:
        client = self.fault_tol_client
        if client is None or not self.calculate_timeouts:
            return
        self._seen.seen_tr_iters_cnt = self._iterations
        update = possible_update(self._seen, is_closing_ft=is_closing, min_iters=_MIN_ITERS_OF_STEP)
        for line in update.why_not:
            self._say(line)
        if update.sections and client.calculate_and_set_section_timeouts(
            selected_sections=update.sections,
            calc_out_of_section=update.out_of_section,
            skip_if_not_ready=True,
        ):
            self._keep(client)


class Sections:
    """Sections of a client, which methods open that may call each other."""

    def __init__(self, client: RankMonitorClient) -> None:
        self._client = client
        self._depth = dict.fromkeys(_SECTIONS, 0)

    @contextlib.contextmanager
    def inside(self, name: str, *, nests: bool = False) -> Iterator[None]:
        """Have a section open inside of this.

        Args:
            name: of the section.
            nests: it may be open already.

        Raises:
            RuntimeError: it is open already, and may not.
        """
        if self._depth[name] and not nests:
            raise RuntimeError(f"section {name!r} is open already: a step is called inside of one")
        if not self._depth[name]:
            self._client.start_section(name)
        self._depth[name] += 1
        try:
            yield
        finally:
            self._depth[name] -= 1
            if not self._depth[name]:
                self._client.end_section(name)


def is_graceful(error: BaseException | None) -> bool:
    """Whether a program means to end well."""
    return error is None or (isinstance(error, SystemExit) and error.code in (0, None))


def is_training_completed(trainer: Any, iterations: int, error: BaseException | None) -> bool:
    """Whether nothing is left to do.

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


def _check_sections(limits: Mapping[str, Any]) -> None:
    if set(limits) != _SECTIONS:
        raise ValueError(
            f"the launcher has limits for the sections {sorted(limits)}, and needs them for "
            f"{sorted(_SECTIONS)}: give it --ft-rank-section-timeouts "
            "setup:600,step:180,checkpointing:420 (in seconds)"
        )
