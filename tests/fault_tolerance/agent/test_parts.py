"""Parts of an agent are opened in order, and closed in reverse, whatever one of them does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.fault_tolerance.agent.parts import Held, Part, Parts
from undaunted.fault_tolerance.worker.spawner import Spawned

if TYPE_CHECKING:
    from collections.abc import Awaitable


class Noted(Part):
    """Notes what it is called for."""

    close_s = 0.05

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def open(self) -> Awaitable[None] | None:
        return self.note("open")

    def round_begins(self, current: Any) -> None:
        self.notes.append(f"{self.name} begins {current.number}")

    def ranks_run(self, current: Any, spawned: Spawned) -> None:
        self.notes.append(f"{self.name} runs {current.number} {spawned.mode}")

    def round_ends(self) -> None:
        self.notes.append(f"{self.name} ends")

    def round_over(self, number: int) -> None:
        self.notes.append(f"{self.name} over {number}")

    def close(self) -> Awaitable[None] | None:
        return self.note("close")

    def note(self, what: str) -> Awaitable[None] | None:
        self.notes.append(f"{self.name} {what}")
        return None


class Waiting(Noted):
    """Opens and closes only after others had their turn."""

    def note(self, what: str) -> Awaitable[None] | None:
        async def later() -> None:
            await asyncio.sleep(0)
            self.notes.append(f"{self.name} {what}")

        return later()


class Raising(Noted):
    """Raises, before or after it has waited."""

    def __init__(self, name: str, notes: list[str], when: str, *, waits: bool) -> None:
        super().__init__(name, notes)
        self.when, self.waits = when, waits

    def note(self, what: str) -> Awaitable[None] | None:
        async def later() -> None:
            await asyncio.sleep(0)
            raise ZeroDivisionError(what)

        if what != self.when:
            return super().note(what)
        if self.waits:
            return later()
        raise ZeroDivisionError(what)


class Hanging(Noted):
    """Never comes to its end as it closes; even when it is told to, if it is stubborn."""

    def __init__(self, name: str, notes: list[str], release: asyncio.Event | None) -> None:
        super().__init__(name, notes)
        self.release = release

    def close(self) -> Awaitable[None]:
        async def for_ever() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.notes.append(f"{self.name} cancelled")
                if self.release is not None:
                    await self.release.wait()
                raise

        return for_ever()


def never(error: BaseException) -> None:
    raise error


@on_loop
async def test_the_last_one_is_closed_first() -> None:
    notes: list[str] = []
    parts = Parts([Noted("a", notes), Waiting("b", notes), Noted("c", notes)], never)
    await parts.open()
    assert notes == ["a open", "b open", "c open"]
    notes.clear()
    await parts.close()
    await parts.close()  # nothing is left
    assert notes == ["c close", "b close", "a close"]


@pytest.mark.parametrize("waits", [False, True])
@on_loop
async def test_one_that_raises_as_it_closes_is_reported_and_the_others_are_closed(
    waits: bool,
) -> None:
    notes: list[str] = []
    failed: list[BaseException] = []
    bad = Raising("b", notes, "close", waits=waits)
    parts = Parts([Noted("a", notes), bad, Noted("c", notes)], failed.append)
    await parts.open()
    await parts.close()
    assert notes[-2:] == ["c close", "a close"]
    assert [type(error) for error in failed] == [ZeroDivisionError]


@pytest.mark.parametrize("stubborn", [False, True])
@on_loop
async def test_one_that_hangs_as_it_closes_is_left_behind(stubborn: bool) -> None:
    notes: list[str] = []
    failed: list[BaseException] = []
    release = asyncio.Event()
    hanging = Hanging("b", notes, release if stubborn else None)
    parts = Parts([Noted("a", notes), hanging, Noted("c", notes)], failed.append)
    await parts.open()
    await parts.close()
    assert notes[-3:] == ["c close", "b cancelled", "a close"]
    assert [type(error) for error in failed] == [TimeoutError]
    release.set()
    await asyncio.sleep(0)


@pytest.mark.parametrize("waits", [False, True])
@on_loop
async def test_one_that_fails_as_it_opens_ends_the_start_and_all_are_closed(waits: bool) -> None:
    notes: list[str] = []
    bad = Raising("b", notes, "open", waits=waits)
    parts = Parts([Noted("a", notes), bad, Noted("c", notes)], never)
    with pytest.raises(ZeroDivisionError):
        await parts.open()
    assert notes == ["a open"]
    await parts.close()
    assert notes == ["a open", "c close", "b close", "a close"]


@on_loop
async def test_what_a_round_does_and_which_processes_belong_to_none() -> None:
    notes: list[str] = []
    logs = Held(lambda: notes.append("h close"), servers_now=lambda: {(7, 70)})
    template = Held(lambda: None, pids=lambda: {5, 6})
    parts = Parts([logs, Noted("a", notes), template, Noted("b", notes)], never)
    await parts.open()
    notes.clear()
    current: Any = SimpleNamespace(number=3)
    parts.round_begins(current)
    parts.ranks_run(current, Spawned([], "warm"))
    parts.round_ends()
    parts.round_over(3)
    assert notes[:4] == ["a begins 3", "b begins 3", "a runs 3 warm", "b runs 3 warm"]
    assert notes[4:] == ["b ends", "a ends", "a over 3", "b over 3"]
    assert parts.processes() == {5, 6, 7}
    assert parts.servers() == {(7, 70)}
    await parts.close()
    assert notes[-1] == "h close"
    assert parts.processes() == set()
