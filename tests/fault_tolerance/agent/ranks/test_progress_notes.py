"""The journal learns how far the ranks are while they run, and when they have ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.coordinator.wire.talk import on_loop
from undaunted.coordinator.core.progress import Iterations
from undaunted.fault_tolerance.agent.ranks import progress_notes
from undaunted.fault_tolerance.agent.ranks.progress_notes import ProgressNotes
from undaunted.progress.snapshot import PageSnapshot

if TYPE_CHECKING:
    import pytest


class Told:
    """Pages and scribe in one."""

    ranks = 2

    def __init__(self) -> None:
        self.iteration = 4
        self.notes: list[tuple[Iterations, int]] = []
        self.twice = asyncio.Event()

    def snapshot(self, index: int) -> PageSnapshot:
        iteration = self.iteration + index
        return PageSnapshot(
            pid=index, first_iteration=4, iteration=iteration, iteration_ns=iteration * 10
        )

    def round_progress(self, seen: Iterations, last_step_ns: int) -> None:
        self.notes.append((seen, last_step_ns))
        if len(self.notes) > 1:
            self.twice.set()


def notes(told: Told) -> ProgressNotes:
    this: Any = told
    return ProgressNotes(this, this)


@on_loop
async def test_at_the_beginning_and_at_the_end_of_a_round() -> None:
    told = Told()
    progress = notes(told)
    progress.begin()
    told.iteration = 8
    assert progress.end() == Iterations(4, 9)
    assert told.notes == [(Iterations(4, 5), 50), (Iterations(4, 9), 90)]


@on_loop
async def test_meanwhile_again_and_again_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_notes, "_EVERY_S", 0.001)
    told = Told()
    progress = notes(told)
    progress.begin()
    await asyncio.wait_for(told.twice.wait(), 30)
    progress.close()
    assert progress._timer is None
