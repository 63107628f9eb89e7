"""The process that watches a rank from outside: its guard, or the agent under a launcher."""

from __future__ import annotations

from undaunted.inprocess.monitor_process import MonitorProcess as MonitorProcess
