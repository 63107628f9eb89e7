"""The thread that brings snapshots to storage: what it owes the other ranks, and the next save."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.agreement.failures import Failure
from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.memory.pool import Pool
from undaunted.checkpointing.saves import Saves
from undaunted.checkpointing.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        self.may_delete = threading.Event()
        self.may_delete.set()

    def target(self, step: int, attempt: int) -> str:
        return f"{step}-{attempt}"

    def publish(
        self, snapshot: Snapshot, attempt: int, name: str, outcome: object, _: float
    ) -> None:
        self.outcomes.append(outcome)
        if isinstance(outcome, Failure):
            raise SaveError(outcome.message)

    def delete_old(self, good: int) -> None:
        assert self.may_delete.wait(LONG_S)


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
    staged: Any = SimpleNamespace(files=[Image("file", 4096, 10)], report=b"")
    return Snapshot(
        step=number,
        number=number,
        lease=pool.lease(0, 0),
        planned=None,
        staged=staged,
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


def test_memory_is_free_while_old_checkpoints_are_deleted(
    publisher: Publisher, writer: Any, pool: Pool
) -> None:
    publisher.may_delete.clear()
    saves = Saves(writer, publisher, 1, LONG_S)  # type: ignore[arg-type]
    saves.submit(snapshot(1, pool))
    pool.lease(0, LONG_S)
    assert not saves.wait(0.0)  # who waits for the save waits for the deletion as well
    publisher.may_delete.set()
    assert saves.wait(LONG_S)
    saves.close(LONG_S)
