"""Picks events out of a sequence by kind and round; `launch` knows their meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from undaunted.journal.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterable

_E = TypeVar("_E", bound=Event)


def first(events: Iterable[Event], kind: type[_E]) -> _E | None:
    """Return the first event of a kind, None if there is none."""
    return next((event for event in events if type(event) is kind), None)


def every(events: Iterable[Event], kind: type[_E]) -> list[_E]:
    """Return all events of a kind."""
    return [event for event in events if type(event) is kind]


def by_round(events: Iterable[_E]) -> dict[int, list[_E]]:
    """Return the events of each round, rounds in ascending order."""
    groups: dict[int, list[_E]] = {}
    for event in events:
        if event.round >= 0:
            groups.setdefault(event.round, []).append(event)
    return dict(sorted(groups.items()))
