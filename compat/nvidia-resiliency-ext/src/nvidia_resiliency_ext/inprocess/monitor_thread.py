"""The exception that takes a rank out of the function."""

from __future__ import annotations

from undaunted.inprocess.monitor_thread import RankShouldRestart as RankShouldRestart
