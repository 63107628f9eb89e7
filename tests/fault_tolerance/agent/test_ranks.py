"""What ranks do reaches the node as events, in the words of the round that runs."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.attribution.evidence import RankEvidence
from undaunted.attribution.hang import RankObservation, Standing
from undaunted.base import process
from undaunted.coordinator.policy import messages as job
from undaunted.fault_tolerance.agent import node as m
from undaunted.fault_tolerance.agent import ranks
from undaunted.fault_tolerance.agent.processes import Worker
from undaunted.fault_tolerance.agent.ranks import Ranks
from undaunted.fault_tolerance.agent.stopping import Stopping
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.data import WorkloadAction, WorkloadControlRequest, encode_request
from undaunted.fault_tolerance.worker.messages import WorkerSpec
from undaunted.fault_tolerance.worker.spawner import Spawned
from undaunted.journal import events as e
from undaunted.progress.area import MailboxRequest, PageArea
from undaunted.progress.limits import Limits
from undaunted.progress.snapshot import ErrorRecord, PageSnapshot, Phase
from undaunted.progress.timeouts import Expired

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXPIRED = Expired("heartbeat", "", since_ns=1, deadline_ns=3, age_s=2.0, limit_s=1.0, source="x")
SPEC = WorkerSpec(
    local_rank=1, kind="program", target="x", args=[], env={"A": "b"}, cwd="/", agent_pid=1
)
LOOP = "import signal; signal.pause()"


def error(kind: str, message: str = "") -> PageSnapshot:
    record = ErrorRecord(at_ns=1, type=kind, message=message, traceback="", pid=7)
    return PageSnapshot(phase=Phase.FAILED, error=record)


class Current:
    """A round."""

    def __init__(self) -> None:
        self.number = 2
        self.start = SimpleNamespace(world_size=8, group_world_size=1)
        self.specs = [SPEC, SPEC]
        self.stacks_path = "/stacks"
        self.early_stacks_path = "/stacks-early"
        self.checkpoint_announced = False
        self.stopping = False
        self.faults: list[tuple[int, str]] = []

    def rank(self, local_rank: int) -> int:
        return 4 + local_rank

    def fault_happened(self, local_rank: int, fault_id: str) -> None:
        self.faults.append((local_rank, fault_id))


class Node:
    """Whom ranks deal with; keeps what journal, node, policy, spawner and processes hear."""

    def __init__(self, area: PageArea, run_dir: Path) -> None:
        self.heard: list[Any] = []
        self.all = [Worker(0, 10, spawned_ns=1), Worker(1, 11, spawned_ns=2)]
        self.spare = False
        self.spawn_fails = False
        self.got: dict[int, bytes] = {}  # signals, by local rank
        self.another_round_begins = False
        self.current: Any = Current()
        self.journal: Any = SimpleNamespace(
            record=self.heard.append, write_text=lambda path, text: None
        )
        config: Any = SimpleNamespace(
            limits=Limits(),
            ft=FaultToleranceConfig(),
            run_dir=str(run_dir),
            node="here",
            signals=(signal.SIGTERM,),
        )
        this: Any = self
        signals: Any = SimpleNamespace(drain=lambda local_rank: self.got.pop(local_rank, b""))
        begun: Any = SimpleNamespace(area=area, pipes=None, signals=signals, spawner=this)
        stopping = Stopping("a", area, this, this)
        self.ranks = Ranks(config, begun, this, this, this, this, stopping, self.heard.append)

    def begin_round(self) -> None:
        self.ranks.begin_round(self.current)
        self.heard.clear()

    def post(self, event: job.Event) -> None:
        self.heard.append(event)

    def goes_on_without(self, local_rank: int) -> bool:
        return self.spare

    def may_return(self, local_rank: int) -> bool:
        return self.spare

    def absent(self) -> frozenset[int]:
        return frozenset()

    def reap(self) -> None:
        self.heard.append("reaped")

    def has_ended(self, local_rank: int) -> bool:
        return self.all[local_rank].code is not None

    async def spawn(self, specs: list[WorkerSpec]) -> Spawned:
        if self.another_round_begins:
            self.ranks._round = None
        if self.spawn_fails:
            raise OSError("no more processes")
        self.heard.append(("spawn", specs[0].env))
        pid = process.spawn([sys.executable, "-c", LOOP], dict(os.environ), (), blocked=())
        return Spawned([pid], "fresh")

    def end(self, pid: int) -> None:
        self.heard.append("ended")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def replace(self, local_rank: int, pid: int, began_ns: int) -> None:
        self.heard.append(("adopted", local_rank))
        self.pid = pid

    def __getattr__(self, name: str) -> Any:
        """The scribe."""
        return lambda *about: self.heard.append((name, *about))

    def reports_of(self, name: str) -> list[Any]:
        return [one[1:] for one in self.heard if isinstance(one, tuple) and one[0] == name]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with PageArea.create(2) as area:
        yield Node(area, tmp_path)


@pytest.mark.parametrize("spare", [True, False])
def test_the_end_of_a_process(node: Node, *, spare: bool) -> None:
    @on_loop
    async def run() -> None:
        node.begin_round()
        node.spare = spare
        node.all[1].code = -9
        node.ranks.exited(node.all[1])
        node.ranks.limits.end_round()

    run()
    assert node.reports_of("rank_exited") == [(node.current, node.all[1])]
    assert m.RankExited(1, -9, spare, spare) in node.heard


@on_loop
async def test_a_limit_that_was_passed(node: Node) -> None:
    node.begin_round()
    node.ranks.watch.callbacks.limit_passed(1, EXPIRED)
    node.ranks.limits.end_round()
    assert node.heard[:3] == [
        "reaped",
        ("hang_detected", 5, EXPIRED),
        m.LimitPassed(1, "heartbeat"),
    ]


@on_loop
async def test_a_rank_that_is_silent_has_all_looked_at(node: Node) -> None:
    node.begin_round()
    node.ranks.watch.callbacks.silent(1, EXPIRED)
    assert node.heard[-1] == m.Gather(2)
    await node.ranks.gather_evidence(m.GatherEvidence())
    await node.ranks.gather_evidence(m.GatherEvidence())
    node.ranks.limits.end_round()
    ((evidence, seen, expired, path),) = node.reports_of("rank_silent")
    assert [each.rank for each in evidence] == [4, 5]
    assert (seen.rank, expired, path) == (5, EXPIRED, "/stacks-early")
    assert len(node.reports_of("evidence_collected")) == 1, "for the second time"


@on_loop
async def test_a_limit_that_is_passed_counts_more_than_a_silence(node: Node) -> None:
    node.begin_round()
    node.ranks.watch.callbacks.silent(1, EXPIRED)
    node.ranks.watch.callbacks.limit_passed(1, EXPIRED)
    await node.ranks.gather_evidence(m.GatherEvidence())
    node.ranks.limits.end_round()
    assert node.reports_of("rank_silent") == []
    assert len(node.reports_of("evidence_collected")) == 1


@on_loop
async def test_a_rank_that_has_ended_hangs_no_more(node: Node) -> None:
    node.begin_round()
    node.all[1].code = 0
    node.ranks.watch.callbacks.limit_passed(1, EXPIRED)
    node.ranks.limits.end_round()
    assert node.reports_of("hang_detected") == []
    assert not any(isinstance(one, m.LimitPassed) for one in node.heard)


@pytest.mark.parametrize(
    ("kind", "message", "said"),
    [
        ("ValueError", "", "raised ValueError"),
        ("OSError", "disk\x1b full\nin /save", r"raised OSError: disk\x1b full"),
        ("OSError", "x" * 1000, f"raised OSError: {'x' * 197}..."),
        ("SystemExit", "3", "exits with 3"),
        ("SystemExit", "", "exits with 1"),
        ("SystemExit", "no config given", "exits with 1"),
    ],
)
def test_an_exception(node: Node, kind: str, message: str, said: str) -> None:
    @on_loop
    async def run() -> None:
        changed = node.ranks.watch.callbacks.page_changed
        changed(0, error(kind, message))  # between rounds
        assert node.heard == []
        node.begin_round()
        changed(0, error(kind, message))
        node.ranks.limits.end_round()

    run()
    assert m.RankErrored(0, said, False) in node.heard


@pytest.mark.parametrize("told", ["itself", "its peer", "another node", "nobody"])
@on_loop
async def test_a_failure_may_be_of_a_signal_to_stop(node: Node, told: str) -> None:
    node.current.start.group_world_size += told == "another node"
    node.begin_round()
    node.got = {"itself": {0: b"\x0f"}, "its peer": {1: b"\x11\x0f"}}.get(told, {})
    page_changed = node.ranks.watch.callbacks.page_changed
    page_changed(0, error("RuntimeError", "Connection closed by peer"))
    page_changed(0, error("RuntimeError", "out of range"))
    node.ranks.limits.end_round()
    lost, other = (each for each in node.heard if isinstance(each, m.RankErrored))
    assert (lost.awaits_s > 0) == (told != "nobody")
    assert (other.awaits_s > 0) == (told == "itself")


@on_loop
async def test_a_rank_that_goes_on_is_no_event(node: Node) -> None:
    node.begin_round()
    page = PageSnapshot(phase=Phase.STEPPING)
    node.ranks.watch.callbacks.page_changed(0, page)
    node.ranks.limits.end_round()
    assert node.heard == [("milestones", node.current, 0, page)]


@on_loop
async def test_a_fault_that_happened_is_known_of_the_round(node: Node) -> None:
    node.begin_round()
    ring: Any = [SimpleNamespace(name="fault", text="f1"), SimpleNamespace(name="x", text="y")]
    node.ranks.watch.callbacks.ring_events(1, ring, 2)
    node.ranks.limits.end_round()
    assert node.current.faults == [(1, "f1")]
    assert node.reports_of("ring_events") == [(5, ring, 2)]


@on_loop
async def test_a_checkpoint_that_is_announced_is_known_of_the_round(node: Node) -> None:
    node.begin_round()
    for name, announced in (("other", False), ("checkpoint", True), ("other", True)):
        events: Any = [SimpleNamespace(name=name, text="saved step=3")]
        node.ranks.watch.callbacks.ring_events(0, events, 0)
        assert node.current.checkpoint_announced is announced
    node.ranks.limits.end_round()


class TestRequests:
    """Every request of a rank is answered, and what it is about reaches the job policy."""

    @staticmethod
    def ask(node: Node, payload: bytes, monkeypatch: pytest.MonkeyPatch) -> bytes:
        answers: list[tuple[int, bytes]] = []
        monkeypatch.setattr(
            PageArea, "answer", lambda _self, rank, _message, reply: answers.append((rank, reply))
        )

        @on_loop
        async def run() -> None:
            node.begin_round()
            node.ranks.watch.callbacks.request(1, MailboxRequest(1, payload, 0))
            node.ranks.limits.end_round()

        run()
        ((local_rank, answer),) = answers
        assert local_rank == 1
        return answer

    @pytest.mark.parametrize(
        ("action", "posted"),
        [
            (WorkloadAction.Continue, []),
            (WorkloadAction.ExcludeThisNode, [job.ExclusionRequested("here", 2, "why")]),
            (WorkloadAction.ShutdownWorkload, [job.ShutdownRequested("here", 2, "why")]),
        ],
    )
    def test_control_of_the_workload(self, node, monkeypatch, action, posted) -> None:
        request = WorkloadControlRequest(action, "why")
        assert self.ask(node, encode_request(request), monkeypatch) == b"ok"
        assert node.reports_of("control_requested") == [(5, request)]
        assert [one for one in node.heard if not isinstance(one, tuple)] == posted

    def test_limits_are_for_their_keeper(self, node, monkeypatch) -> None:
        monkeypatch.setattr(node.ranks.limits, "take", lambda payload: b"taken")
        assert self.ask(node, b"anything", monkeypatch) == b"taken"
        assert node.heard == []

    @pytest.mark.parametrize("payload", [b"", b"{}", b'{"action": "Dance", "description": ""}'])
    def test_what_is_no_request_is_refused(self, node, monkeypatch, payload) -> None:
        answer = self.ask(node, payload, monkeypatch)
        assert b"not a workload control request" in answer
        assert node.heard == []

    def test_a_number_is_no_request(self, node, monkeypatch) -> None:
        answer = self.ask(node, json.dumps(3).encode(), monkeypatch)
        assert b"not a workload control request" in answer


@on_loop
async def test_only_ranks_that_run_are_held_to_limits(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Any] = []
    watch = type(node.ranks.watch)
    monkeypatch.setattr(watch, "hold_to_limits", lambda _self, *about, **_: held.append(about))
    monkeypatch.setattr(watch, "release", lambda _self: held.append("nobody"))
    node.all[0].code = 0
    node.ranks.hold_to_limits(on=True)
    node.ranks.hold_to_limits(on=False)
    assert held == [([1, 2], [0]), "nobody"]


@on_loop
async def test_a_crash_is_judged_again_until_it_is_clear_or_the_last_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    judgement = SimpleNamespace(certain=False, event="verdict")
    monkeypatch.setattr(ranks, "judge_crash", lambda *_: judgement)
    monkeypatch.setattr(type(node.ranks.watch), "read_pages", lambda _self: None)
    node.begin_round()
    node.ranks.judge_crash(final=False)
    assert node.heard == [m.CrashUnclear()]
    node.ranks.judge_crash(final=True)
    judgement.certain = True
    node.ranks.judge_crash(final=False)
    node.ranks.limits.end_round()
    assert node.heard[1:] == [("verdict", judgement.event)] * 2


@on_loop
async def test_a_crash_that_nobody_has_reported_is_recorded_if_it_is_certain(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    judgement = SimpleNamespace(certain=False, culprits=(1,), event="verdict")
    monkeypatch.setattr(ranks, "judge_crash", lambda *_: judgement)
    monkeypatch.setattr(type(node.ranks.watch), "read_pages", lambda _self: None)
    node.begin_round()
    node.all[1].code, node.all[1].exited_ns = -11, 5
    node.ranks.judge_late_crash()
    assert node.heard == []
    judgement.certain = True
    node.ranks.judge_late_crash()
    node.ranks.limits.end_round()
    detected = ("crash_detected", 5, 5, "killed by SIGSEGV")
    assert node.heard == [detected, ("verdict", judgement.event)]


@on_loop
async def test_a_hang_is_judged_by_its_evidence(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gather(*_: Any) -> list[Any]:
        return [known]

    known = RankEvidence(rank=5, local_rank=1, pid=9, page=PageSnapshot(), state="T")
    judgement = SimpleNamespace(culprits=(1,), event=SimpleNamespace(line="rank 5 hangs"))
    monkeypatch.setattr(ranks.evidence, "gather", gather)
    monkeypatch.setattr(ranks, "judge_hang", lambda *_: judgement)
    node.begin_round()
    await node.ranks.gather_evidence(m.GatherEvidence())
    node.ranks.judge_hang()
    node.ranks.limits.end_round()
    ((seen, path, _),) = node.reports_of("evidence_collected")
    assert (seen, path) == ([known], "/stacks")
    (sent,) = msgspec.msgpack.decode(node.ranks.evidence(), type=list[RankObservation])
    assert (sent.rank, sent.standing, sent.node) == (5, Standing.STOPPED, "here")
    assert node.heard[1:] == [
        m.EvidenceGathered(2),
        ("verdict", judgement.event),
        m.HangJudged(2, (1,), "rank 5 hangs"),
    ]


class TestReplacement:
    """A process in the place of a lost rank."""

    @staticmethod
    async def start(node: Node, *, current: bool = True) -> None:
        node.begin_round()
        node.ranks.limits.end_round()
        node.another_round_begins = not current
        await node.ranks.start_again(node.current, 1)

    @on_loop
    async def test_it_is_started_to_rejoin_and_watched(self, node: Node) -> None:
        await self.start(node)
        assert node.heard == [
            ("spawn", {"A": "b", "UNDAUNTED_INPROCESS_REJOIN": "1"}),
            e.RankReplaced(rank=5, pid=node.pid),
            ("adopted", 1),
        ]
        os.kill(node.pid, signal.SIGKILL)
        os.waitpid(node.pid, 0)

    @on_loop
    async def test_it_is_ended_at_once_when_the_round_is_being_stopped(self, node: Node) -> None:
        node.current.stopping = True
        await self.start(node)
        assert node.heard[1] == "ended"
        assert node.heard[3] == ("adopted", 1)

    @on_loop
    async def test_the_next_round_hears_nothing_of_a_process_for_the_last(self, node: Node) -> None:
        await self.start(node, current=False)
        assert node.heard[1:] == ["ended"]

    @on_loop
    async def test_nor_of_one_that_could_not_be_started(self, node: Node) -> None:
        node.spawn_fails = True
        await self.start(node, current=False)
        assert node.heard == []

    @on_loop
    async def test_a_process_that_cannot_be_started(self, node: Node) -> None:
        node.spawn_fails = True
        await self.start(node)
        line = "no process could be started in the place of rank 5: no more processes"
        assert node.heard == [("say", line), m.RankExited(1, 1, others_go_on=True)]
