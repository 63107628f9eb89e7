"""Values in a form that takes little room in the page: differences, ranges, texts only once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from undaunted.journal.job.launches import Launch

_MS_NS = 1_000_000
_LONGEST_TEXT = 500


class Texts:
    """Texts, each of them once; what users' programs say is made printable and one line."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """Return the index of ``text`` in ``all``."""
        found = self._places.get(text)
        if found is None:
            found = self._places[text] = len(self.all)
            self.all.append(one_line(text, _LONGEST_TEXT))
        return found


class RankLists:
    """Lists of ranks, each of them once, as first, count, first, count, ..."""

    def __init__(self) -> None:
        self.all: list[list[int]] = []
        self._places: dict[tuple[int, ...], int] = {}

    def place(self, ranks: Sequence[int]) -> int:
        """Return the index of these ranks in ``all``."""
        key = tuple(ranks)
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = len(self.all)
            self.all.append(ranges(key))
        return found


def ranges(ranks: Iterable[int]) -> list[int]:
    """Return ranks in their order as first, count, first, count, ..."""
    out: list[int] = []
    for rank in ranks:
        if out and rank == out[-2] + out[-1]:
            out[-1] += 1
        else:
            out += [rank, 1]
    return out


def to_ms(ns: int) -> int:
    """Return whole milliseconds, rounded."""
    return (ns + _MS_NS // 2) // _MS_NS


def ms(launch: Launch, t: int) -> int:
    """Return a moment of a launch's clock on the axis of the job, in milliseconds; at least 0."""
    return to_ms(max(0, launch.on_axis(t)))


def differences(values: Iterable[int], start: int = 0) -> list[int]:
    """Return by how much each value is greater than the one before it."""
    out = []
    for value in values:
        out.append(value - start)
        start = value
    return out


def gapped_differences(values: Sequence[int | None], start: int) -> list[int | None]:
    """Return the same where values may be missing; nothing at all if they all are."""
    out: list[int | None] = []
    known = False
    for value in values:
        if value is None:
            out.append(None)
            continue
        known = True
        out.append(value - start)
        start = value
    return out if known else []
