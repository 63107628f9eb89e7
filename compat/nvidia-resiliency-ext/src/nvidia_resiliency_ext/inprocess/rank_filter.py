"""Filters of version 0.3, for the argument ``rank_filter`` of `Wrapper`."""

from __future__ import annotations

from undaunted.inprocess.rank_filter import ActiveWorldSizeDivisibleBy as ActiveWorldSizeDivisibleBy
from undaunted.inprocess.rank_filter import MaxActiveWorldSize as MaxActiveWorldSize
from undaunted.inprocess.rank_filter import RankFilter as RankFilter

WorldSizeDivisibleBy = ActiveWorldSizeDivisibleBy  # its name before 0.4
