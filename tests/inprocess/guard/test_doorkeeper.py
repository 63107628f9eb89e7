from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.wire.talk import on_loop
from tests.inprocess.guard.talk import enter, join
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.guard import doorkeeper as module
from undaunted.inprocess.guard.doorkeeper import Doorkeeper
from undaunted.inprocess.guard.links import Lease

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS, THEIRS = 100, 200  # pids of the two jobs begin with these


class Host:
    def __init__(self) -> None:
        self.passed: list[Any] = []

    def opened(self, connection: Any) -> None:
        pass

    def received(self, connection: Any, message: Any) -> None:
        self.passed.append(message)

    def closed(self, connection: Any, reason: str) -> None:
        self.passed.append(reason)


class Connection:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def send(self, message: Any) -> None:
        self.told.append(message.message)


class Door:
    def __init__(self, size: int = 3) -> None:
        self.host = Host()
        self.remarks: list[str] = []
        self.keeper = Doorkeeper(
            self.host,  # type: ignore[arg-type]
            OURS,
            size,
            say=self.remarks.append,
            related=lambda one, other: one // 100 == other // 100,
        )

    def say(self, *messages: Any, at: Connection | None = None) -> Connection:
        connection = at or Connection()
        for message in messages:
            self.keeper.received(connection, message)  # type: ignore[arg-type]
        return connection


@pytest.fixture
def hold_ms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "HOLD_S", 0.001)
    return


def come(job_rank: int, job: int, **changes: Any) -> m.Enter:
    return enter(job_rank, **{"pid": job + job_rank, "world_size": 3, **changes})


@on_loop
async def test_ranks_of_the_job_are_let_in_at_once() -> None:
    door = Door()
    said = [come(1, OURS), join(1), come(2, OURS), join(2), join(1, epoch=1)]
    connections = [door.say(*said[:2]), door.say(*said[2:4])]
    door.say(said[4], at=connections[0])
    assert door.host.passed == said
    assert door.remarks == []


@on_loop
async def test_a_second_job_is_told_what_to_do_and_does_not_disturb() -> None:
    door = Door()
    ours = [come(1, OURS), come(2, OURS)]
    door.say(ours[0])
    door.say(ours[1])
    (told,) = door.say(come(1, THEIRS), join(1)).told
    assert isinstance(told, m.Dismissed)
    assert "give each job a MASTER_PORT of its own" in told.text
    assert "rank 1 there is process 101, this is process 201" in told.text
    (told,) = door.say(come(5, THEIRS, world_size=8)).told
    assert "with 3 ranks, uses the same MASTER_PORT" in told.text
    assert door.host.passed == ours
    assert len(door.remarks) == 2


@on_loop
async def test_ranks_of_a_second_job_that_come_first_do_not_take_the_places() -> None:
    door = Door()
    early = [door.say(come(1, THEIRS), join(1)), door.say(come(2, THEIRS), join(2))]
    door.say(Lease(), at=early[0])
    assert door.host.passed == [Lease()]
    ours = [come(1, OURS), come(2, OURS)]
    for message in ours:
        door.say(message)
    assert door.host.passed == [Lease(), *ours]
    for connection in early:
        assert isinstance(connection.told[0], m.Dismissed)
    door.keeper.close()


@on_loop
async def test_ranks_that_were_started_by_hand_are_let_in_later(hold_ms: None) -> None:
    import asyncio

    door = Door()
    door.say(come(1, OURS))
    door.say(come(2, THEIRS), join(2))
    while len(door.host.passed) < 3:
        await asyncio.sleep(0)
    assert door.host.passed == [come(1, OURS), come(2, THEIRS), join(2)]


@on_loop
async def test_one_that_goes_before_it_was_let_in_is_forgotten(hold_ms: None) -> None:
    door = Door()
    connection = door.say(come(2, THEIRS))
    door.keeper.closed(connection, "gone")  # type: ignore[arg-type]
    door.say(come(1, OURS))
    door.say(come(2, OURS))
    assert door.host.passed == ["gone", come(1, OURS), come(2, OURS)]
    door.keeper.close()


@on_loop
async def test_a_job_whose_ranks_contradict_each_other_is_the_controllers_business() -> None:
    door = Door()
    door.say(come(1, OURS))
    door.say(come(1, OURS, pid=OURS + 7))
    assert len(door.host.passed) == 2


@on_loop
async def test_a_link_that_was_broken_comes_back() -> None:
    door = Door(2)
    first = come(1, OURS, world_size=2)
    resume = m.Resume(first, None, None, ())
    door.say(first)
    door.say(resume)
    assert door.host.passed == [first, resume]


def test_who_is_related() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as child:
        grandchild = subprocess.Popen(
            ["sh", "-c", "setsid sh -c 'echo $$; exec sleep 60'"], stdout=subprocess.PIPE
        )
        try:
            assert grandchild.stdout is not None
            other = int(grandchild.stdout.readline())
            assert module._related(child.pid, grandchild.pid)
            assert not module._related(child.pid, other)
            assert module._related(child.pid, 1 << 30)
            assert module._related(os.getpid(), os.getpid())
        finally:
            os.kill(other, 9)
            grandchild.wait()
            grandchild.stdout.close()
            child.kill()
