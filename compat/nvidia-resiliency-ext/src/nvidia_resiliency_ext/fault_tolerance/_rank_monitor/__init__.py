"""Monitoring of one rank without the launcher: a process that has one page, and watches it.

For programs that use `RankMonitorClient` by themselves, under another launcher or in tests.
`undaunted run` does the same for all ranks of a node, in its agent.
"""

from __future__ import annotations
