"""The socket of a launcher: who is answered, with what, and for how long nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.attribution.evidence import RankEvidence
from undaunted.attribution.hang import RankObservation, Standing
from undaunted.base.recent import Recent
from undaunted.coordinator import protocol as p
from undaunted.coordinator.policy import messages as job
from undaunted.coordinator.service.asking import answer_of
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.network import Sockets
from undaunted.fault_tolerance import control_socket as s
from undaunted.fault_tolerance.agent import control
from undaunted.fault_tolerance.agent import node as m
from undaunted.fault_tolerance.agent.control import Control
from undaunted.progress.snapshot import PageSnapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

SEEN = RankEvidence(rank=5, local_rank=1, pid=9, page=PageSnapshot(iteration=7), stacks="its stack")
LOOKED = RankObservation(5, "a", 9, Standing.BUSY, deaf=True)


class Launcher:
    """What is around a `Control`. ``decide`` answers what is posted for the job policy."""

    def __init__(self, place: Path, decide: Callable[[Any], job.Command | None]) -> None:
        self.node = m.Node()
        self.node.handle(m.StartRound(0, 1))
        self.node.handle(m.WorkersSpawned())
        self.said: list[str] = []
        self.posted: list[Any] = []
        self.events: list[m.Event] = []
        self.looks = True
        self.others = False
        self.passed_on: list[tuple[bytes, str]] = []
        self.job = s.JobStatus("alone", "running")
        self.asked_elsewhere: Callable[[bytes, str], Awaitable[bytes]] | None = None
        self.decide = decide
        self.recent = Recent({"clearing_s": 0.0})
        self.recent.note(3, m.StartRound(0, 1), [m.Spawn(0)])
        self.socket = place / "ctl-a.sock"
        config: Any = SimpleNamespace(node="a", run_dir=str(place), run_id="job")
        orders: Any = SimpleNamespace(
            post=self._posted,
            status=lambda: self.job,
            recent=lambda: {"policy": Recent({})},
            serve_questions=self._let_ask,
            pass_on=self._pass_on,
        )
        ranks: Any = SimpleNamespace(next_look=self._next_look, now=list)
        self.control = Control(
            config,
            "0.1",
            self.node,
            self.recent,
            ranks,
            orders,
            self.events.append,
            self.said.append,
        )

    async def _pass_on(self, order: bytes, by: str) -> bool:
        self.passed_on.append((order, by))
        return self.others

    def _let_ask(self, answer: Callable[[bytes, str], Awaitable[bytes]]) -> None:
        self.asked_elsewhere = answer

    def _posted(self, event: Any) -> None:
        self.posted.append(event)
        if (answer := self.decide(event)) is not None:
            self.control.take_command(answer)

    def _next_look(self) -> asyncio.Future[Any]:
        look: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.looks:
            look.set_result(([SEEN], [LOOKED]))
        return look

    async def ask(self, question: s.Question | bytes) -> s.Answer:
        """Ask as `undaunted ctl` does."""
        data = question if isinstance(question, bytes) else msgspec.json.encode(question)
        asked, own = p.Question(data=data), Sockets(Terms("", "0.1"))
        said = await answer_of(
            str(self.socket), asked, own, timeout_s=30, longest=p.MAX_ANSWER_BYTES
        )
        assert isinstance(said, p.Answer)
        return msgspec.json.decode(said.data, type=s.Answer)

    async def body(self, question: s.Question, kind: Any) -> Any:
        answer = await self.ask(question)
        assert (answer.error, answer.node) == ("", "a")
        return msgspec.json.decode(answer.body, type=kind)

    async def error(self, question: s.Question | bytes) -> str:
        answer = await self.ask(question)
        return answer.error


@contextlib.asynccontextmanager
async def serving(
    place: Path, decide: Callable[[Any], job.Command | None] = lambda _: None
) -> AsyncIterator[Launcher]:
    launcher = Launcher(place, decide)
    await launcher.control.serve()
    try:
        yield launcher
    finally:
        await launcher.control.close()


# --- answers --------------------------------------------------------------------------------------


@on_loop
async def test_status(tmp_path: Path) -> None:
    async with serving(tmp_path) as launcher:
        assert launcher.socket.stat().st_mode & 0o777 == 0o600
        status = await launcher.body(s.Status(), s.NodeStatus)
        assert (status.node, status.state, status.round, status.pid) == (
            "a",
            "running",
            0,
            os.getpid(),
        )
        assert status.job.role == "alone"
    assert not launcher.socket.exists()
    assert launcher.said == []


@on_loop
async def test_stacks_and_recordings(tmp_path: Path) -> None:
    async with serving(tmp_path) as launcher:
        (stacks,) = await launcher.body(s.Stacks(), list[s.RankStacks])
        assert (stacks.rank, stacks.iteration, stacks.stacks) == (5, 7, "its stack")
        assert await launcher.body(s.Flight(), list[s.RankRecording]) == [
            s.RankRecording(5, 9, None, deaf=True)
        ]
        assert launcher.events == [
            m.LookByHand(0, recordings=False),
            m.LookByHand(0, recordings=True),
        ]


@on_loop
async def test_where_no_ranks_run_nothing_is_looked_at(tmp_path: Path) -> None:
    async with serving(tmp_path) as launcher:
        launcher.node.state = m.State.IDLE
        assert await launcher.body(s.Stacks(), list[s.RankStacks]) == []
        assert await launcher.body(s.Flight(), list[s.RankRecording]) == []
        launcher.node.state = m.State.SPAWNING
        assert "node a is spawning, round 0" in await launcher.error(s.Stacks())
        assert (launcher.events, launcher.posted) == ([], [])


@on_loop
async def test_orders_are_passed_on_where_no_ranks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "DECIDE_S", 0.01)
    async with serving(tmp_path) as launcher:
        launcher.node = launcher.control._node = m.Node()
        launcher.job = s.JobStatus("follower", "seeking", round=4)
        assert "SIGTERM" not in (await launcher.body(s.Restart(), s.Decision)).line
        stop = (await launcher.body(s.Stop(), s.Decision)).line
        assert "SIGTERM" in stop
        assert "no leader has been found yet" in stop
        assert [(each.node, each.round) for each in launcher.posted] == [("a", 4)] * 2


@on_loop
async def test_who_orders_is_told_of_a_silent_leader_and_that_the_order_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "DECIDE_S", 0.01)
    async with serving(tmp_path) as launcher:
        launcher.job = s.JobStatus("follower", "away", "b", lease_s=5.0, lease_left_s=-2.0)
        for order in (s.Stop(), s.Restart()):
            decision = await launcher.body(order, s.Decision)
            assert not decision.done
            assert "the leader, b, was last heard of 7.0 s ago" in decision.line
            assert "is kept" in decision.line
            assert ("no other round" in decision.line) == isinstance(order, s.Restart)


@on_loop
async def test_a_look_that_does_not_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "LOOK_S", 0.01)
    async with serving(tmp_path) as launcher:
        launcher.looks = False
        assert "were not looked at within" in await launcher.error(s.Stacks())


@on_loop
async def test_a_dump_has_every_machine(tmp_path: Path) -> None:
    async with serving(tmp_path) as launcher:
        lines = await launcher.body(s.Dump(), list[dict[str, Any]])
        assert [line["machine"] for line in lines] == ["node", "node", "policy"]
        assert lines[1]["commands"] == [{"type": "Spawn", "round": 0}]


@pytest.mark.parametrize(
    ("question", "event"),
    [
        (s.Restart(save=True), job.RestartOrdered("a", 0, "BY", save=True)),
        (s.Stop(), job.StopOrdered("a", 0, "BY")),
        (s.Stop(save=True), job.StopOrdered("a", 0, "BY", save=True)),
        (s.NoOthers(why="1 is left"), job.StopOrdered("a", 0, "BY", few="1 is left")),
        (s.Exclude(target="b"), job.ExclusionOrdered("a", 0, "b", "BY")),
        (s.Limits(limits={"heartbeat": 9.0}), job.LimitsOrdered("a", 0, {"heartbeat": 9.0}, "BY")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_order_becomes_an_event_and_is_answered_by_what_follows(
    tmp_path: Path, question: s.Question, event: job.NodeEvent
) -> None:
    by = f"undaunted ctl (pid {os.getpid()})"

    @on_loop
    async def run() -> None:
        async with serving(
            tmp_path, lambda posted: job.Decided(0, "end", "as ordered", 2, posted.by)
        ) as launcher:
            decision = await launcher.body(question, s.Decision)
            assert decision.done
            assert decision.line.endswith("the job ends (2 restarts left): as ordered")
            assert launcher.posted == [msgspec.structs.replace(event, by=by)]

    run()


@on_loop
async def test_who_ends_the_job_is_answered_before_the_launcher_goes(tmp_path: Path) -> None:
    gone = asyncio.get_running_loop().create_future()

    def ends(posted: Any) -> job.End:
        gone.get_loop().call_soon(gone.set_result, None)
        return job.End("a", job.Outcome.NO_RESTART, "a stop was ordered", by=posted.by)

    async with serving(tmp_path, ends) as launcher:
        asking = asyncio.ensure_future(launcher.body(s.Stop(), s.Decision))
        await gone
        await launcher.control.close()
        assert (await asking).done


@on_loop
async def test_the_leader_has_another_node_report_an_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "DECIDE_S", 0.01)
    async with serving(tmp_path) as launcher:
        launcher.others = True
        assert not (await launcher.body(s.Stop(), s.Decision)).done
        assert launcher.posted == []
        ((data, _),) = launcher.passed_on
        assert s.question_of(data) == s.Stop()

        async def heard(order: bytes, by: str) -> bool:
            launcher.control.take_command(job.Say("yes", by=by))
            return False

        monkeypatch.setattr(launcher.control._orders, "pass_on", heard)
        assert (await launcher.body(s.Stop(), s.Decision)).done, "that node was heard, if no more"
        assert launcher.posted == []


@on_loop
async def test_a_refusal_is_no_success(tmp_path: Path) -> None:
    async with serving(
        tmp_path, lambda event: job.Say("no", refused=True, by=event.by)
    ) as launcher:
        assert not (await launcher.body(s.Exclude(target="b"), s.Decision)).done


@on_loop
async def test_what_others_have_asked_for_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "DECIDE_S", 0.05)
    async with serving(
        tmp_path, lambda event: job.Say(f"not for {event.by}", by="somebody else")
    ) as launcher:
        decision = await launcher.body(s.Restart(), s.Decision)
        assert not decision.done
        assert "nothing has come of it" in decision.line


# --- who asks, and how ----------------------------------------------------------------------


@on_loop
async def test_what_makes_no_sense_is_answered_with_an_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as launcher:
        for data in (b"{}", b"\x00", b"[" * 60_000, b"", b'{"action":"stop","save":"perhaps"}'):
            assert "no question" in await launcher.error(data)
        long = await launcher.control.answer(b" " * (s.MOST_ASKED + 1), "me")
        assert "65536 are the most" in msgspec.json.decode(long, type=s.Answer).error
        assert (launcher.events, launcher.posted) == ([], [])


@on_loop
async def test_who_asks_from_elsewhere_is_answered_by_the_same(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda event: job.Say("yes", by=event.by)) as launcher:
        assert launcher.asked_elsewhere is not None
        data = await launcher.asked_elsewhere(msgspec.json.encode(s.Restart()), "somebody")
        answer = msgspec.json.decode(data, type=s.Answer)
        assert msgspec.json.decode(answer.body, type=s.Decision) == s.Decision("yes")
        assert launcher.posted == [job.RestartOrdered("a", 0, "somebody")]


@on_loop
async def test_the_socket_is_closed_with_all_who_ask(tmp_path: Path) -> None:
    async with serving(tmp_path) as launcher:
        launcher.looks = False
        asking = asyncio.ensure_future(launcher.ask(s.Stacks()))
        while not launcher.events:
            await asyncio.sleep(0)
    with pytest.raises(WireError):
        await asking
    assert not launcher.socket.exists()


@on_loop
async def test_a_bug_in_an_answer_is_said_to_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Control, "_status", lambda _: {}["key"])
    async with serving(tmp_path) as launcher:
        assert "a bug of undaunted: KeyError" in await launcher.error(s.Status())


@on_loop
async def test_an_answer_that_is_too_long_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s, "MOST_ANSWERED", 10)
    async with serving(tmp_path) as launcher:
        assert "too many" in await launcher.error(s.Status())


@on_loop
async def test_where_it_cannot_listen_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "ctl-a.sock").write_text("something else")
    async with serving(tmp_path) as launcher:
        (said,) = launcher.said
        assert "undaunted ctl cannot ask here" in said
    assert (tmp_path / "ctl-a.sock").read_text() == "something else"


@on_loop
async def test_the_socket_of_a_later_launcher_is_left_alone(tmp_path: Path) -> None:
    async with serving(tmp_path):
        async with serving(tmp_path) as later:
            await later.body(s.Status(), s.NodeStatus)
            (tmp_path / "ctl-a.sock").rename(tmp_path / "kept")
            (tmp_path / "ctl-a.sock").touch()
        assert (tmp_path / "ctl-a.sock").exists()


@on_loop
async def test_a_launcher_that_ends_while_it_opens_leaves_nothing(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, lambda _: None)
    opening = asyncio.ensure_future(launcher.control.serve())
    await asyncio.sleep(0)
    opening.cancel()
    await launcher.control.close()
    assert not launcher.socket.exists()
