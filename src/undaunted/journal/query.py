"""Picks events out of a sequence by kind and round."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from undaunted.journal.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterable

_E = TypeVar("_E", bound=Event)


def first(events: Iterable[Event], kind: type[_E]) -> _E | None:
    """Return the first event of a kind, None if there is none."""
    return next((event for event in events if isinstance(event, kind)), None)


def every(events: Iterable[Event], kind: type[_E]) -> list[_E]:
    """Return all events of a kind."""
    return [event for event in events if isinstance(event, kind)]


def time_of(event: Event | None) -> int | None:
    """Return CLOCK_MONOTONIC of an event in nanoseconds, None for none."""
    return None if event is None else event.t


def by_round(events: Iterable[Event]) -> dict[int, list[Event]]:
    """Return the events of each round, rounds in ascending order."""
    groups: dict[int, list[Event]] = {}
    for event in events:
        if event.round >= 0:
            groups.setdefault(event.round, []).append(event)
    return dict(sorted(groups.items()))
