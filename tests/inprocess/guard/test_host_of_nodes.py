"""The controller beside a leader: nodes report aside, over their connections to it."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from tests.coordinator.wire.talk import on_loop
from tests.inprocess.guard.talk import LIMITS, Changing, Served, enter, join
from undaunted.coordinator import protocol as p
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.guard import links
from undaunted.inprocess.guard.host import ControllerHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.core.commands import Note


class Wire(Changing):
    """A connection; what is sent comes out at the other end as it would, or is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[p.Aside] = []
        self.closed: list[str] = []
        self.deliver: Callable[[p.Aside], None] = self.sent.append
        self.number = 0

    def send(self, message: p.Aside) -> None:
        self.deliver(msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=p.Aside))
        self.changed()

    def close(self, reason: str) -> None:
        self.closed.append(reason)


class Job:
    """A controller, and nodes that are connected to it."""

    def __init__(self) -> None:
        self.remarks: list[str] = []
        self.notes: list[tuple[int, int, Note]] = []
        self.numbers = itertools.count(1)  # of connections
        self.controller = ControllerHost(self._notes, self.remarks.append)

    def _notes(self, number: int, world_size: int) -> Callable[[Note], None]:
        return lambda note: self.notes.append((number, world_size, note))

    def node(self, number: int = 0) -> Node:
        return Node(self, number)


class Node(Served):
    """A node's guards in a round."""

    def __init__(self, job: Job, number: int) -> None:
        super().__init__(number)
        self.job = job
        self.connect()

    def connect(self) -> None:
        up, self.down = Wire(), Wire()
        self.down.number = next(self.job.numbers)
        self.down.deliver = self.received
        up.deliver = lambda aside: self.job.controller.received(cast("Any", self.down), aside)
        self.linked(up.send)

    def lose(self, *, silent: bool = False) -> None:
        self.linked(None)
        self.job.controller.closed(cast("Any", self.down), "it broke", silent=silent)

    def begin(self, job_rank: int, **changes: Any) -> None:
        self.send(enter(job_rank, **changes))
        self.send(join(job_rank))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undaunted.inprocess.core.links.GRACE_S", 0.01)


def begun(job: Job) -> tuple[Node, Node]:
    nodes = job.node(), job.node()
    for job_rank, node in enumerate(nodes):
        node.begin(job_rank)
    return nodes


@on_loop
async def test_ranks_of_two_nodes_get_their_record() -> None:
    job = Job()
    one, two = begun(job)
    for job_rank, node in enumerate((one, two)):
        assert node.seen[0] == "up"
        (ranks, told) = node.seen[1]
        assert (ranks, told.members) == ((job_rank,), (0, 1))
    assert [(number, size, note.what) for number, size, note in job.notes] == [(0, 2, "recorded")]
    job.controller.close()


@on_loop
async def test_what_belongs_to_another_round_is_not_heard() -> None:
    job = Job()
    one, _two = begun(job)
    later = job.node(1)
    later.begin(0)
    assert [number for number, _, _ in job.notes] == [0]
    later.send(m.Fault(0, 0, 0, m.Reason("EXCEPTION", 0)))
    seen = len(one.seen)
    one.send(m.Fault(0, 0, 0, m.Reason("EXCEPTION", 0)))
    assert len(one.seen) == seen
    job.controller.close()


@on_loop
async def test_who_does_not_come_back_is_lost(quick: None) -> None:
    job = Job()
    one, two = begun(job)
    two.lose()
    assert two.seen[-1] == "down"
    await one.until(lambda: isinstance(one.seen[-1][1], m.Stop))
    (reason,) = one.seen[-1][1].reasons
    assert (reason.kind, reason.job_rank) == ("UNRESPONSIVE", 1)
    assert "its node is lost: it broke" in reason.text
    job.controller.close()


@on_loop
async def test_who_comes_back_goes_on(quick: None) -> None:
    job = Job()
    one, two = begun(job)
    known = two.seen[1][1]
    two.lose()
    two.connect()
    assert two.seen[2:] == ["down", "up"]
    two.send(m.Resume(enter(1), known, None, ()))
    three = job.node()
    three.lose()
    two.send(m.Fault(0, 1, 0, m.Reason("EXCEPTION", 1, text="x")))
    (reason,) = one.seen[-1][1].reasons
    assert reason.text == "x"
    job.controller.close()


@on_loop
async def test_a_node_that_is_not_heard_of_has_time_to_notice(quick: None) -> None:
    job = Job()
    _one, two = begun(job)
    two.lose(silent=True)
    timer = job.controller._timers._set["link 2"]
    left_s = timer.when() - asyncio.get_running_loop().time()
    assert left_s > LIMITS.heartbeat_timeout
    job.controller.close()


@on_loop
async def test_a_new_controller_goes_on_with_what_guards_know() -> None:
    job = Job()
    nodes = begun(job)
    known = nodes[0].seen[1][1]
    job.controller.close()
    job.controller = ControllerHost(job._notes, job.remarks.append)
    for job_rank, node in enumerate(nodes):
        node.connect()
        node.send(m.Resume(enter(job_rank), known, None, ()))
    for job_rank, node in enumerate(nodes):
        node.send(m.Completed(0, job_rank, 0))
    assert nodes[1].seen[-1] == ((1,), m.Finished(0, 0, (0, 1)))
    job.controller.close()


@on_loop
async def test_what_is_too_long_is_named_and_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    one, _two = begun(job)
    monkeypatch.setattr(links, "_LONGEST", 10)
    one.send(m.Fault(0, 0, 0, m.Reason("EXCEPTION", 0)))
    assert len(one.seen) == 2
    assert "longer than 10 bytes" in job.remarks[0]
    job.controller.close()


@on_loop
async def test_garbage() -> None:
    wire = Wire()
    Job().controller.received(cast("Any", wire), p.Aside(data=b"\xc1"))
    assert "is no message" in wire.closed[0]
