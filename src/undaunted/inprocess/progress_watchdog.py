"""The last progress of a rank. The guard watches it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.inprocess.rank.page import Page

_NS = 1e9


@dataclasses.dataclass(frozen=True)
class Timestamp:
    """Times of the monotonic clock, seconds.

    Attributes:
        auto: when the main thread's interpreter turned last; None = not yet.
        manual: when the function called `CallWrapper.ping` last; None = not in this iteration.
    """

    auto: float | None = None
    manual: float | None = None


class ProgressWatchdog:
    """The progress that a rank shows its guard. Made by `CallWrapper`."""

    def __init__(self, page: Page) -> None:
        self._page = page

    @property
    def timestamp(self) -> Timestamp:
        """The times of the last progress. ``soft_timeout`` runs from the older one."""
        auto, manual = self._page.progress_ns
        return Timestamp(auto / _NS if auto else None, manual / _NS if manual else None)

    def ping(self) -> None:
        """Do what `CallWrapper.ping` does."""
        self._page.ping()

    def reset(self) -> None:
        """Start the timeouts anew, without pings, as at the beginning of an iteration."""
        self._page.set_phase(self._page.phase)
