"""The exception that takes a rank out of the function."""

from __future__ import annotations

from undaunted.inprocess.exception import RankShouldRestart as RankShouldRestart
