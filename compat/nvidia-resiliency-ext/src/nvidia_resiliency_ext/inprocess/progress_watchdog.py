# Made from names/*.yaml by `make generated`.
"""The time of the last progress of a rank."""

from __future__ import annotations

from undaunted.inprocess.progress_watchdog import ProgressWatchdog as ProgressWatchdog
from undaunted.inprocess.progress_watchdog import Timestamp as Timestamp
