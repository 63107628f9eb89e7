"""Picks events out of a sequence by kind and round.

From a `Group` that takes no longer the more other events there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from undaunted.journal.events import Event, RoundBlamed

if TYPE_CHECKING:
    from collections.abc import Iterable

_E = TypeVar("_E", bound=Event)


class Group(list[Event]):
    """Events that are asked for many times. Not changed once that was done."""

    __slots__ = ("_by_kind", "_by_round")

    _by_kind: dict[type[Event], list[Any]]
    _by_round: dict[int, Group]

    def of(self, kind: type[_E]) -> list[_E]:
        """Return the events of exactly this kind, in order. The list is not to be changed."""
        if not hasattr(self, "_by_kind"):
            self._by_kind = {}
            for event in self:
                self._by_kind.setdefault(type(event), []).append(event)
        found: list[_E] = self._by_kind.get(kind, [])
        return found

    def rounds(self) -> dict[int, Group]:
        """Return the events of each round, see `by_round`. Not to be changed."""
        if not hasattr(self, "_by_round"):
            self._by_round = _by_round(self)
        return self._by_round


def first(events: Iterable[Event], kind: type[_E]) -> _E | None:
    """Return the first event of a kind, None if there is none."""
    if isinstance(events, Group):
        return next(iter(events.of(kind)), None)
    return next((event for event in events if isinstance(event, kind)), None)


def every(events: Iterable[Event], kind: type[_E]) -> list[_E]:
    """Return all events of a kind."""
    if isinstance(events, Group):
        return list(events.of(kind))
    return [event for event in events if isinstance(event, kind)]


def node_of(events: Iterable[Event]) -> str:
    """Return the node that wrote these events, "" if none of them tells."""
    # In `RoundBlamed`, ``node`` is the one that is blamed.
    return next((event.node for event in events if not isinstance(event, RoundBlamed)), "")


def time_of(event: Event | None) -> int | None:
    """Return CLOCK_MONOTONIC of an event in nanoseconds, None for none."""
    return None if event is None else event.t


def by_round(events: Iterable[Event]) -> dict[int, Group]:
    """Return the events of each round, rounds in ascending order."""
    return events.rounds() if isinstance(events, Group) else _by_round(events)


def _by_round(events: Iterable[Event]) -> dict[int, Group]:
    groups: dict[int, Group] = {}
    for event in events:
        number = event.round
        if number >= 0:
            if number not in groups:
                groups[number] = Group()
            groups[number].append(event)
    return dict(sorted(groups.items()))
