"""`RankMonitorServer`: one rank's monitor as a separate process, without a launcher.

Under `undaunted run` it is not needed: the agent watches the pages of all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvidia_resiliency_ext.fault_tolerance._rank_monitor.settings import settings_of
from nvidia_resiliency_ext.fault_tolerance._rank_monitor.start import (
    INIT_TIMEOUT_S,
    RankMonitorProcess,
    start,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.fault_tolerance.config import FaultToleranceConfig


class RankMonitorServer:
    """Starts rank monitors; see docs/design/compat.md."""

    RANK_MONITOR_INIT_TIMEOUT = INIT_TIMEOUT_S

    @staticmethod
    def run_in_subprocess(
        cfg: FaultToleranceConfig,
        ipc_socket_path: str,
        is_restarter_logger: bool = False,
        mp_ctx: Any = None,
        env: Mapping[str, str] | None = None,
    ) -> RankMonitorProcess:
        """Start a rank monitor, and return its process once a rank can connect.

        Args:
            cfg: limits, and the signal that ends a rank which passes one.
            ipc_socket_path: where ranks find it, by ``FT_RANK_MONITOR_IPC_SOCKET``.
            is_restarter_logger: accepted, not used, as in NVRx 0.6.
            mp_ctx: accepted, not used: the monitor is exec'd, nothing is forked.
            env: environment of the monitor, None = this process's.

        Raises:
            RuntimeError: it could not start within 180 s; the text says why.
        """
        del is_restarter_logger, mp_ctx
        return start(cfg, ipc_socket_path, env=env)

    @staticmethod
    def run(
        cfg: FaultToleranceConfig,
        ipc_socket_path: str,
        rank_monitor_ready_event: Any = None,
        is_restarter_logger: bool = False,
    ) -> None:
        """Be a rank monitor, in this process's main thread, until SIGTERM or SIGINT.

        Args:
            cfg: see `run_in_subprocess`.
            ipc_socket_path: see there.
            rank_monitor_ready_event: set once a rank can connect.
            is_restarter_logger: see there.

        Raises:
            OSError: the path cannot be used.
        """
        from nvidia_resiliency_ext.fault_tolerance._rank_monitor.server import serve

        del is_restarter_logger
        event = rank_monitor_ready_event
        serve(settings_of(cfg, ipc_socket_path), (lambda: None) if event is None else event.set)


__all__ = ["RankMonitorServer"]
