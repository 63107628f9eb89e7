"""`FaultToleranceCallback`: ranks are watched by heartbeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nvidia_resiliency_ext.ptl_resiliency._watched import Faults, Watched, is_graceful
from undaunted.fault_tolerance.simulated_faults import SimulatedFaultParams

if TYPE_CHECKING:
    from os import PathLike

    from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClient

__all__ = ["FaultToleranceCallback", "SimulatedFaultParams"]

_MIN_ITERS = 2


class FaultToleranceCallback(Watched):
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
        enough = self._iterations >= _MIN_ITERS and self._seen.enough
        if client is None or not (self.calculate_timeouts and enough):
            return
        if client.calculate_and_set_hb_timeouts(skip_if_not_ready=True):
            self._seen.used = True
            self._keep(client)


@dataclass
class Heartbeats:
    """The heartbeats so far: do they cover all that a limit has to cover?

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
        """Return whether limits can be calculated, for the first time."""
        return self.loaded and self.saves is True and not self.used
