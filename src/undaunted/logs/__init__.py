"""Log files: how ranks are named in them, following and appending to them, the `nvrx` logger.

``from undaunted.logs import LogConfig, setup_logger`` gives what NVRx has in its log manager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.logs.config import LogConfig as LogConfig
    from undaunted.logs.logger import setup_logger as setup_logger

__all__ = ["LogConfig", "setup_logger"]


def __getattr__(name: str) -> object:
    if name == "LogConfig":
        from undaunted.logs.config import LogConfig

        return LogConfig
    if name == "setup_logger":
        from undaunted.logs.logger import setup_logger

        return setup_logger
    raise AttributeError(f"module 'undaunted.logs' has no attribute {name!r}")
