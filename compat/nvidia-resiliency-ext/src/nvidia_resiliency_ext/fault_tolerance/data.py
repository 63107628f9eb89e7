"""Messages between ranks and launcher."""

from __future__ import annotations

import enum

from undaunted.fault_tolerance.data import (
    RankInfo,
    WorkloadAction,
    WorkloadControlRequest,
)
from undaunted.fault_tolerance.timeouts_calc import HeartbeatTimeouts, SectionTimeouts

FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR = "FT_RANK_MONITOR_IPC_SOCKET"
FT_LAUNCHER_IPC_SOCKET_ENV_VAR = "FT_LAUNCHER_IPC_SOCKET"


class SectionAction(enum.Enum):
    """An event of a section."""

    OPEN = 1
    CLOSE = 2
    CLOSE_ALL = 3


__all__ = [
    "FT_LAUNCHER_IPC_SOCKET_ENV_VAR",
    "FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR",
    "HeartbeatTimeouts",
    "RankInfo",
    "SectionAction",
    "SectionTimeouts",
    "WorkloadAction",
    "WorkloadControlRequest",
]
