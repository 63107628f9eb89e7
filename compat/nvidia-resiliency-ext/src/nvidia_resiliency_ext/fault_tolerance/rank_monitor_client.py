"""`RankMonitorClient`: undaunted's, which also finds a `RankMonitorServer` without a launcher."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from nvidia_resiliency_ext.fault_tolerance._rank_monitor.connection import (
    Connection,
    MonitorUnavailableError,
    connect,
)
from nvidia_resiliency_ext.fault_tolerance.config import FaultToleranceConfig
from nvidia_resiliency_ext.fault_tolerance.data import (
    FT_LAUNCHER_IPC_SOCKET_ENV_VAR,
    FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR,
    RankInfo,
)
from nvidia_resiliency_ext.fault_tolerance.ipc_connector import IpcConnector
from undaunted.fault_tolerance.data import who_am_i
from undaunted.fault_tolerance.rank_monitor_client import (
    RankMonitorClient as UndauntedClient,
)
from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClientError
from undaunted.progress.writer import PAGE_VARIABLE

if TYPE_CHECKING:
    from undaunted.fault_tolerance.data import WorkloadControlRequest

_PAGE_TIMEOUT_S = 180.0


class RankMonitorClient(UndauntedClient):
    """See `undaunted.fault_tolerance.RankMonitorClient`.

    Under `undaunted run` it is the same. Where only ``FT_RANK_MONITOR_IPC_SOCKET`` is set, it gets
    its page from the `RankMonitorServer` there, and control requests go to
    ``FT_LAUNCHER_IPC_SOCKET``, where an `IpcConnector` receives them with the rank.
    """

    CURRENT_TIMEOUTS_STATE_KEY = "current_timeouts"
    _config_class = FaultToleranceConfig

    def __init__(self) -> None:
        super().__init__()
        self._connection: Connection | None = None

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:
        """Begin to be monitored; see the class it differs from.

        Raises:
            RankMonitorClientError: also where no server answers that has a page within 180 s.
            RuntimeError: there is a server, but nothing says which rank this is.
        """
        path = os.environ.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
        if path and PAGE_VARIABLE not in os.environ and not self.is_initialized:
            try:
                rank = RankInfo.get_for_current_rank().global_rank
                self._connection = connect(path, rank, _PAGE_TIMEOUT_S)
            except MonitorUnavailableError as error:
                raise RankMonitorClientError(
                    f"{error} ({FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR})"
                ) from None
        try:
            super().init_workload_monitoring(num_warmup_iters)
        except BaseException:
            if not self.is_initialized:
                self._give_back()
            raise

    def shutdown_workload_monitoring(self) -> None:
        """End monitoring; see the class it differs from."""
        super().shutdown_workload_monitoring()
        self._give_back()

    def _apply(self, limits: dict[str, Any]) -> bool:
        if self._connection is None or not self._connection.lost:
            return super()._apply(limits)
        logging.getLogger("nvrx").warning(
            "calculated timeouts are not applied: the rank monitor has ended"
        )
        return False

    def _give_back(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send_workload_control_request(self, req: WorkloadControlRequest) -> None:
        """Ask the launcher for something; see the class it differs from.

        Raises:
            RuntimeError: there is no launcher.
            RankMonitorClientError: it refused or did not answer.
        """
        path = os.environ.get(FT_LAUNCHER_IPC_SOCKET_ENV_VAR)
        if PAGE_VARIABLE in os.environ:
            super().send_workload_control_request(req)
        elif not path:
            raise RuntimeError(
                f"{req.action.name} was requested, but there is no launcher to ask: "
                f"{FT_LAUNCHER_IPC_SOCKET_ENV_VAR} is not set; start the program with ft_launcher"
            )
        else:
            rank: RankInfo = self.rank_info or who_am_i()
            try:
                IpcConnector(path).send([rank, req])
            except OSError as error:
                raise RankMonitorClientError(
                    f"{req.action.name} was requested, but {path} did not take it: {error}"
                ) from None


__all__ = ["RankMonitorClient", "RankMonitorClientError"]
