"""The thread that brings snapshots to storage: what it owes the other ranks, and the next save."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.agreement.failures import Failure
from undaunted.checkpointing.dcp.saving import Staged
from undaunted.checkpointing.errors import AGREED, StateError
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.memory.pool import Pool
from undaunted.checkpointing.saves import Saves
from undaunted.checkpointing.snapshot import Snapshot, Taker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.checkpointing.memory.arena import Arena

LONG_S = 60.0


class Writer:
    error: Exception | None = None

    def write(self, *_: object) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(crc32={"file": "ab"}, seconds=0.0)

    def bytes_written(self) -> int:
        return 0


class Publisher:
    rank = 0

    def __init__(self) -> None:
        self.outcomes: list[object] = []
        self.of_another: Failure | None = None  # a rank that could not write
        self.may_delete = threading.Event()
        self.may_delete.set()
        self.deleted: list[int] = []

    def target(self, step: int, attempt: int) -> str:
        return f"{step}-{attempt}"

    def publish(
        self, snapshot: Snapshot, attempt: int, name: str, outcome: object, _: float
    ) -> None:
        self.outcomes.append(outcome)
        failure = outcome if isinstance(outcome, Failure) else self.of_another
        if failure is not None:
            raise failure.error(AGREED, (0,))

    def speaks_of(self, _: Exception) -> bool:
        return True

    def delete_old(self, good: int) -> None:
        assert self.may_delete.wait(LONG_S)
        self.deleted.append(good)


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


@pytest.fixture
def pool() -> Pool:
    return Pool(1, "test", "wait")


@pytest.fixture
def saves(writer: Any, publisher: Any) -> Iterator[Saves]:
    one = Saves(writer, publisher, 1, LONG_S)
    yield one
    one.close(LONG_S)


def snapshot(number: int, pool: Pool) -> Snapshot:
    return Snapshot(
        step=number,
        number=number,
        lease=pool.lease(0, 0),
        planned=None,
        staged=Staged([Image("file", 4096, 10)], b""),
        problem=None,
        stall_s=0.0,
        began=0.0,
    )


@pytest.mark.parametrize("error", [ValueError("a message is too long"), MemoryError()], ids=repr)
def test_the_others_learn_of_any_failure_of_this_rank(
    saves: Saves, writer: Writer, publisher: Publisher, pool: Pool, error: Exception
) -> None:
    writer.error = error
    saves.submit(snapshot(1, pool))
    assert saves.wait(LONG_S)
    (outcome,) = publisher.outcomes
    assert isinstance(outcome, Failure)
    assert type(error).__name__ in outcome.message
    assert type(error).__name__ in str(saves.take_failure())


def test_a_save_that_no_attempt_can_bring_about_is_tried_once(
    publisher: Publisher, writer: Writer, pool: Pool
) -> None:
    saves = Saves(writer, publisher, 3, LONG_S)  # type: ignore[arg-type]

    def attempts(one: Snapshot) -> int:
        before = len(publisher.outcomes)
        saves.submit(one)
        assert saves.wait(LONG_S)
        assert saves.take_failure() is not None
        return len(publisher.outcomes) - before

    writer.error = OSError("the disk was away for a moment")
    assert attempts(snapshot(1, pool)) == 3
    writer.error = None
    damaged = Staged([Image("file", 4096, 10)], b"", damage=lambda: "w")
    assert attempts(dataclasses.replace(snapshot(2, pool), staged=damaged)) == 1
    # All ranks have to see it alike, or some would wait for the others' next attempt.
    publisher.of_another = Failure.of(StateError("a tensor without values"))
    assert attempts(snapshot(3, pool)) == 1
    publisher.of_another = Failure("no memory for the copy", details={"is_final": True})
    assert attempts(snapshot(4, pool)) == 1
    saves.close(LONG_S)


class Event:
    """Stands for that of a GPU whose copies are on their way."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.awaited = threading.Event()
        self.happened = threading.Event()

    def synchronize(self) -> None:
        self.awaited.set()
        assert self.happened.wait(LONG_S)
        if self.error is not None:
            raise self.error


class Planned:
    structure = "ab"

    def __init__(self, event: Event) -> None:
        self.event = event

    def arena_bytes(self, _: int) -> int:
        return 65536

    def stage(self, arena: Arena, _: int, arriving: list[Any]) -> Staged:
        arena.begin()
        arriving.append(self.event)
        return Staged([Image("file", 4096, 10)], b"")


@pytest.mark.parametrize("error", [None, RuntimeError("CUDA error: unspecified")], ids=repr)
def test_what_a_gpu_still_copies_is_waited_for_before_it_is_written(
    publisher: Publisher, pool: Pool, error: Exception | None
) -> None:
    event = Event(error)
    lease = pool.lease(0, 0)
    one = dataclasses.replace(snapshot(1, Pool(1, "other", "wait")), lease=lease)
    complete = []

    class Looking(Writer):
        def write(self, *_: object) -> Any:
            assert lease.arena is not None
            complete.append(lease.arena.description() is not None)
            return super().write()

    planned: Any = Planned(event)
    staged = Taker(0, 1, "session", 0, None, lambda: False).take(1, 1, planned, lease)
    assert lease.arena is not None
    arena = lease.arena
    saves = Saves(Looking(), publisher, 1, LONG_S)  # type: ignore[arg-type]

    saves.submit(dataclasses.replace(one, staged=staged))

    assert event.awaited.wait(LONG_S)
    assert (complete, arena.description()) == ([], None)
    event.happened.set()
    assert saves.wait(LONG_S)
    assert complete == ([True] if error is None else [])
    assert (saves.take_failure() is None) == (error is None)
    assert (arena.description() is None) == (error is not None)
    saves.close(LONG_S)
    pool.close()


def test_memory_is_free_while_old_checkpoints_are_deleted(
    publisher: Publisher, writer: Any, pool: Pool
) -> None:
    publisher.may_delete.clear()
    saves = Saves(writer, publisher, 1, LONG_S)  # type: ignore[arg-type]
    saves.submit(snapshot(1, pool))
    pool.lease(0, LONG_S)
    assert saves.wait(LONG_S)  # nor does who waits for the save wait for the deletion
    publisher.may_delete.set()
    saves.close(LONG_S)
    assert publisher.deleted == [1]
