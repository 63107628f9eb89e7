"""One section of a rank's page: a context manager that stores when it was entered and left."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from undaunted.progress import layout
from undaunted.progress.layout import (
    LAST_CLOSE_NS,
    OUTSIDE_COUNT,
    OUTSIDE_MAX_NS,
    SECTION_COUNT,
    SECTION_LAST_NS,
    SECTION_MAX_NS,
    SECTION_OPEN_NS,
    SECTION_TOTAL_NS,
    WARMUP,
    WARMUP_ITERATIONS,
)

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

    __slots__ = ("_open_now", "_slot", "_starts", "_words", "name")

    def __init__(self, name: str, words: memoryview, slot: int, open_now: list[None]) -> None:
        self.name = name
        self._words = words
        self._open_now = open_now
        self._starts: list[int] = []  # list methods are atomic: threads may overlap
        self._slot = slot

    def __enter__(self) -> None:
        now = monotonic_ns()
        words, open_now = self._words, self._open_now
        if not open_now:
            if last_close := words[LAST_CLOSE_NS]:
                count(words, OUTSIDE_COUNT, OUTSIDE_MAX_NS, now - last_close)
            elif began := words[layout.INITIALIZED_NS]:
                words[layout.OUTSIDE_FIRST_NS] = max(words[layout.OUTSIDE_FIRST_NS], now - began)
        open_now.append(None)
        self._starts.append(now)
        words[self._slot + SECTION_OPEN_NS] = now

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        now = monotonic_ns()
        starts, words, slot = self._starts, self._words, self._slot
        try:
            duration = now - starts.pop()
        except IndexError:
            return  # closed from elsewhere, by `close_all`
        # This time before the mark that it is closed: never may a reader see no section open and
        # an old time of the last closing.
        words[LAST_CLOSE_NS] = now
        words[slot + SECTION_OPEN_NS] = now if starts else 0
        words[slot + SECTION_LAST_NS] = duration
        try:
            self._open_now.pop()
            words[slot + SECTION_TOTAL_NS] += duration
        except (ValueError, IndexError):
            pass  # somebody wrote garbage into the page: a sum is at its largest value
        count(words, slot + SECTION_COUNT, slot + SECTION_MAX_NS, duration)

    @property
    def longest_ns(self) -> int:
        """The longest time from entering to leaving, 0 = it was not left yet."""
        most = self._slot + SECTION_MAX_NS
        return max(self._words[most], self._words[most + 1])

    def close(self) -> None:
        """Leave it as often as it was entered."""
        while self._starts:
            self.__exit__(None, None, None)

    def move_to(self, words: memoryview) -> None:
        """Store into other memory from now on."""
        self._words = words


def count(words: memoryview, counter: int, longest: int, duration_ns: int) -> None:
    """Count a duration in a page, and keep the longest one."""
    try:
        words[counter] = number = words[counter] + 1
    except ValueError:
        return  # somebody wrote garbage into the page: a count is at its largest value
    if duration_ns > words[longest]:
        keep_longest(words, number, longest, duration_ns)


def keep_longest(words: memoryview, number: int, longest: int, duration_ns: int) -> None:
    """Store a duration that is longer than all since the warm-up, of which it may be a part.

    Args:
        words: the page.
        number: how many of its kind there were, this one included.
        longest: the word of the longest one; that of the warm-up is behind it.
        duration_ns: how long it was.
    """
    given = words[WARMUP_ITERATIONS]
    if number <= (given - 1 if given else words[WARMUP]):
        longest += 1
    words[longest] = max(words[longest], duration_ns)


def encoded_name(name: object) -> bytes:
    """Return the name of a section as it is stored; TypeError if it is no text."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a section is {name!r}, not text; write section('step')")
    return name.encode(errors="replace")
