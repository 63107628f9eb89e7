"""The agent serves ranks that call restartable functions, and costs nothing where none does."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.coordinator.wire.talk import on_loop
from tests.fault_tolerance.agent.journal_and_lines import Kept
from tests.inprocess.guard.talk import Peer, enter
from undaunted.fault_tolerance.agent.inprocess import REPLACEMENTS, InProcess, Notes
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.commands import Note
from undaunted.inprocess.core.messages import Reason
from undaunted.inprocess.guard import start
from undaunted.journal.events import InProcessCall, InProcessPhase, RankLost

REASONS = (Reason("EXCEPTION", 1, 1, "ValueError('x')"), Reason("TERMINATED", 3))


class TakesPart:
    """In place of a process."""

    has_taken_part = True


class Serving:
    """A round of one rank."""

    def __init__(self, *, min_healthy: bool = True, again: bool = False) -> None:
        self.kept = Kept()
        config: Any = SimpleNamespace(
            min_healthy=min_healthy, restart_lost_ranks=again, node="n0", nodes=None
        )
        self.config = config
        self.inprocess = InProcess(config, cast("Any", self.kept), self.kept.say)

    def begin(self) -> str:
        name = self.inprocess.listen()
        start = SimpleNamespace(world_size=1)
        rank = lambda local_rank: local_rank  # noqa: E731
        current = SimpleNamespace(start=start, rank=rank, number=0)
        self.inprocess.round_begins(cast("Any", current))
        return name


async def connected(name: str) -> Peer:
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, f"\0{name}")
    except OSError:
        sock.close()
        raise
    return Peer(sock)


async def in_a_call(name: str) -> Peer:
    peer = await connected(name)
    await peer.begin(enter(0, world_size=1))
    await peer.say(m.Join(0, 0, 0, rank=0, world_size=1))
    assert isinstance(await peer.hear(), m.Record)
    return peer


@on_loop
async def test_a_rank_finds_guard_and_controller() -> None:
    serving = Serving(again=True)
    peer = await in_a_call(serving.begin())
    assert serving.inprocess.goes_on_without(0)
    assert not serving.inprocess.goes_on_without(1)
    await peer.say(m.Completed(0, 0, 0))
    assert await peer.hear() == m.Finished(0, 0, (0,))
    assert not serving.inprocess.goes_on_without(0)
    assert [getattr(each, "what", "") for each in serving.kept.events] == ["begun", "finished"]
    serving.inprocess.close()
    peer.sock.close()


@on_loop
async def test_a_rank_that_took_part_may_return_once_per_process() -> None:
    serving = Serving(again=True)
    name = serving.begin()
    assert not serving.inprocess.may_return(0)
    peer = await in_a_call(name)
    assert serving.inprocess.absent() == set()
    assert serving.inprocess.may_return(0)
    assert not serving.inprocess.may_return(0), "its successor has not taken part"
    assert serving.inprocess.absent() == {0}
    assert serving.inprocess.goes_on_without(0)
    serving.inprocess.close()
    assert serving.inprocess.absent() == set()
    peer.sock.close()


@on_loop
async def test_a_rank_that_has_joined_the_others_again_is_not_absent() -> None:
    serving = Serving(again=True)
    serving.begin()
    processes = [TakesPart(), TakesPart()]
    service: Any = SimpleNamespace(
        in_call=lambda job_rank: True, rank=lambda job_rank: processes[0], close=lambda: None
    )
    serving.inprocess._service = service
    assert serving.inprocess.may_return(0)
    assert serving.inprocess.absent() == {0}
    processes.pop(0)
    assert serving.inprocess.absent() == set()
    serving.inprocess.close()


@on_loop
async def test_a_rank_does_not_return_for_ever() -> None:
    serving = Serving(again=True)
    serving.begin()
    processes = iter([TakesPart() for _ in range(REPLACEMENTS + 1)])
    service: Any = SimpleNamespace(
        in_call=lambda job_rank: True, rank=lambda job_rank: next(processes), close=lambda: None
    )
    serving.inprocess._service = service
    returns = [serving.inprocess.may_return(0) for _ in range(REPLACEMENTS + 1)]
    assert returns == [True] * REPLACEMENTS + [False]
    serving.inprocess.close()


@on_loop
async def test_no_rank_returns_unless_that_is_wanted() -> None:
    serving = Serving()
    peer = await in_a_call(serving.begin())
    assert not serving.inprocess.may_return(0)
    serving.inprocess.close()
    peer.sock.close()


@on_loop
async def test_a_job_of_one_node_has_no_rank_to_spare_unless_it_comes_back() -> None:
    serving = Serving()
    peer = await in_a_call(serving.begin())
    assert not serving.inprocess.goes_on_without(0)
    serving.config.nodes = object()  # the policy counts the nodes that are whole
    assert serving.inprocess.goes_on_without(0)
    serving.inprocess.close()
    peer.sock.close()


@on_loop
async def test_every_failure_counts_unless_the_policy_is_min_healthy() -> None:
    serving = Serving(min_healthy=False)
    peer = await in_a_call(serving.begin())
    assert not serving.inprocess.goes_on_without(0)
    serving.inprocess.close()
    peer.sock.close()


@on_loop
async def test_another_round_has_another_socket_and_knows_nothing_of_the_one_before() -> None:
    serving = Serving()
    first = serving.begin()
    peer = await in_a_call(first)
    second = serving.begin()
    with pytest.raises(EOFError):
        await peer.hear()
    with pytest.raises(ConnectionRefusedError):
        await connected(first)
    assert not serving.inprocess.goes_on_without(0)
    again = await in_a_call(second)
    serving.inprocess.close()
    for one in (peer, again):
        one.sock.close()


@on_loop
async def test_what_happens_while_the_round_is_stopped_is_not_noted() -> None:
    serving = Serving()
    peer = await in_a_call(serving.begin())
    serving.inprocess.begin_stop()
    await peer.say(m.Completed(0, 0, 0))
    assert isinstance(await peer.hear(), m.Finished)
    assert len(serving.kept.events) == 1
    serving.inprocess.close()
    peer.sock.close()


@on_loop
async def test_a_lost_rank_is_named() -> None:
    serving = Serving()
    serving.begin()
    serving.inprocess.lost(3, "killed by SIGKILL")
    (lost,) = serving.kept.events
    assert isinstance(lost, RankLost)
    assert (lost.round, lost.rank, lost.detail) == (0, 3, "killed by SIGKILL")
    serving.inprocess.close()


def test_nothing_is_loaded_before_a_rank_comes() -> None:
    code = "import sys, undaunted.fault_tolerance.agent.agent; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith("undaunted.inprocess")]


def test_ranks_look_where_the_environment_says() -> None:
    assert start.VARIABLE == "UNDAUNTED_INPROCESS"


def noted(*notes: Note) -> Kept:
    kept = Kept()
    taking = Notes(cast("Any", kept), round=7, world_size=4)
    for note in notes:
        taking.take(note)
    return kept


def test_a_restart_is_one_event_for_each_phase() -> None:
    kept = noted(
        Note("stopped", 2, 0, (0, 1, 2, 3), REASONS, took_s=9.0),
        Note(
            "recorded",
            2,
            1,
            (0, 1, 2),
            REASONS,
            took_s=0.040,
            last=2,
            phases={"abort": (0.030, 1), "finalize": (0.005, 0)},
        ),
    )
    lines = ["rank 1: ValueError('x')", "rank 3: TERMINATED"]
    phases = cast("list[InProcessPhase]", kept.events)
    assert [(each.phase, each.took_s, each.rank) for each in phases] == [
        ("detect", 9.0, -1),
        ("abort", 0.03, 1),
        ("finalize", 0.005, 0),
        ("agree", 0.005, 2),
        ("re-enter", 0.04, -1),
    ]
    assert {(each.round, each.call, each.epoch) for each in phases} == {(7, 2, 1)}
    assert phases[0].reasons == phases[-1].reasons == lines
    assert (phases[-1].members, phases[-1].lost) == (3, [3])


def test_reasons_say_where_it_was_raised_and_who_hangs() -> None:
    line = "rank 2 (node b, pid 7) hangs: no progress for 3.0 s; 1 rank waits for it in all_reduce"
    reasons = (
        Reason("SOFT_TIMEOUT", 2, text=line),
        Reason("EXCEPTION", 1, text="KeyError(3)", where="step (train.py:7)"),
    )
    kept = noted(Note("stopped", 0, 0, (0, 1, 2), reasons, took_s=3.0))
    (detect,) = cast("list[InProcessPhase]", kept.events)
    assert detect.reasons == [line, "rank 1: KeyError(3), in step (train.py:7)"]


def test_beginning_and_end_of_a_call() -> None:
    kept = noted(Note("recorded", 0, 0, (0, 1, 2, 3), took_s=1.0), Note("finished", 0, 0))
    calls = cast("list[InProcessCall]", kept.events)
    assert [(each.what, each.members) for each in calls] == [("begun", 4), ("finished", 4)]


def test_a_call_that_cannot_go_on() -> None:
    kept = noted(Note("ended", 0, 3, text="the same fault 3 times in a row"))
    (call,) = kept.all(InProcessCall)
    assert (call.round, call.call, call.epoch, call.what) == (7, 0, 3, "ended")
    assert call.text == "the same fault 3 times in a row"
