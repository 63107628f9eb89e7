# Made from names/*.yaml by `make generated`.
"""When a rank has shown progress last."""

from __future__ import annotations

from undaunted.inprocess.progress_watchdog import ProgressWatchdog as ProgressWatchdog
from undaunted.inprocess.progress_watchdog import Timestamp as Timestamp
