"""`FaultToleranceSectionsCallback`: ranks are watched by sections."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from nvidia_resiliency_ext.ptl_resiliency._watched import Faults, Watched, is_graceful
from undaunted.fault_tolerance.data import WorkloadAction
from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClient, RankMonitorClientError
from undaunted.fault_tolerance.section_limits import (
    CHECKPOINTING,
    SETUP,
    STEP,
    FaultToleranceState,
    possible_update,
)
from undaunted.fault_tolerance.simulated_faults import SimulatedFaultParams
from undaunted.integrations.lightning.changes import around
from undaunted.integrations.lightning.checkpoints import saves_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

    from undaunted.fault_tolerance.data import WorkloadControlRequest

__all__ = ["FaultToleranceSectionsCallback", "SimulatedFaultParams"]

_SECTIONS = frozenset({SETUP, STEP, CHECKPOINTING})
_MIN_ITERS_OF_STEP = 17


class FaultToleranceSectionsCallback(Watched):
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
        if update.calculate(client):
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


def _check_sections(limits: Mapping[str, Any]) -> None:
    if set(limits) != _SECTIONS:
        raise ValueError(
            f"the launcher has limits for the sections {sorted(limits)}, and needs them for "
            f"{sorted(_SECTIONS)}: give it --ft-rank-section-timeouts "
            "setup:600,step:180,checkpointing:420 (in seconds)"
        )
