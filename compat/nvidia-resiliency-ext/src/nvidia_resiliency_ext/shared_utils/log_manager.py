"""The logger `nvrx`."""

from __future__ import annotations

from undaunted.logs.config import LogConfig
from undaunted.logs.logger import setup_logger

__all__ = ["LogConfig", "setup_logger"]
