"""One section of a rank's page: a context manager that stores when it was entered and left."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from undaunted.progress import layout
from undaunted.progress.histogram import bucket
from undaunted.progress.layout import LAST_CLOSE_NS, OUTSIDE_HISTOGRAM, OUTSIDE_MAX_NS

if TYPE_CHECKING:
    from types import TracebackType


class Section:
    """A stretch of the program with a name, such as ``step`` or ``checkpoint``.

    It may be entered again before it is left, by the same thread or by another: it is open until it
    was left as often, and then counts as open since it was last entered or left, so that only
    threads that all hang pass its limit.

    Neither entering nor leaving makes a system call or takes a lock.

    Args:
        name: its name.
        words: the page.
        slot: first word of its slot there.
        open_now: shared by all sections of a page; has an element for each that is entered.
    """

    __slots__ = (
        "_count",
        "_histogram",
        "_last",
        "_max",
        "_open",
        "_open_now",
        "_starts",
        "_total",
        "_words",
        "name",
    )

    def __init__(self, name: str, words: memoryview, slot: int, open_now: list[None]) -> None:
        self.name = name
        self._words = words
        self._open_now = open_now
        self._starts: list[int] = []  # list methods are atomic: threads may overlap
        self._open = slot + layout.SECTION_OPEN_NS
        self._count = slot + layout.SECTION_COUNT
        self._last = slot + layout.SECTION_LAST_NS
        self._max = slot + layout.SECTION_MAX_NS
        self._histogram = slot + layout.SECTION_HISTOGRAM
        self._total = slot + layout.SECTION_TOTAL_NS

    def __enter__(self) -> None:
        now = monotonic_ns()
        if not self._open_now:
            self._count_time_outside(now)
        self._open_now.append(None)
        self._starts.append(now)
        self._words[self._open] = now

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        now = monotonic_ns()
        starts, words = self._starts, self._words
        try:
            duration = now - starts.pop()
        except IndexError:
            return  # closed from elsewhere, by `close_all`
        # This time before the mark that it is closed: never may a reader see no section open and
        # an old time of the last closing.
        words[LAST_CLOSE_NS] = now
        words[self._open] = now if starts else 0
        words[self._last] = duration
        try:
            self._open_now.pop()
            if duration > words[self._max]:  # noqa: PLR1730 - max() costs more
                words[self._max] = duration
            words[self._count] += 1
            words[self._total] += duration
            words[self._histogram + bucket(duration)] += 1
        except (ValueError, IndexError):
            pass  # somebody wrote garbage into the page: a count is at its largest value

    def _count_time_outside(self, now: int) -> None:
        words = self._words
        last_close = words[LAST_CLOSE_NS]
        if not last_close:
            return  # the first one
        duration = now - last_close
        try:
            if duration > words[OUTSIDE_MAX_NS]:  # noqa: PLR1730 - max() costs more
                words[OUTSIDE_MAX_NS] = duration
            words[OUTSIDE_HISTOGRAM + bucket(duration)] += 1
        except ValueError:
            pass  # as above

    def close(self) -> None:
        """Leave it as often as it was entered."""
        while self._starts:
            self.__exit__(None, None, None)

    def move_to(self, words: memoryview) -> None:
        """Store into other memory from now on."""
        self._words = words


def encoded_name(name: object) -> bytes:
    """Return the name of a section as it is stored; TypeError if it is no text."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a section is {name!r}, not text; write section('step')")
    return name.encode(errors="replace")


class OverflowSection(Section):
    """All sections for which the table has no room: watched as one, and counted."""

    __slots__ = ()

    def __enter__(self) -> None:
        dropped = self._words[layout.SECTIONS_DROPPED]
        self._words[layout.SECTIONS_DROPPED] = min(dropped + 1, 2**64 - 1)
        super().__enter__()
