"""What ranks do reaches the node as events, in the words of the round that runs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.coordinator.core import messages as job
from undaunted.fault_tolerance.agent.processes.workers import Worker
from undaunted.fault_tolerance.agent.ranks import rank_events
from undaunted.fault_tolerance.agent.ranks.rank_events import RankEvents
from undaunted.fault_tolerance.core import node_messages as m
from undaunted.progress.area import MailboxRequest, PageArea
from undaunted.progress.limits import Limits
from undaunted.progress.snapshot import ErrorRecord, PageSnapshot, Phase
from undaunted.progress.timeouts import Expired

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CURRENT: Any = SimpleNamespace(
    number=2,
    start=SimpleNamespace(world_size=8),
    rank=lambda local_rank: 4 + local_rank,
    faults={},
    stacks_path="/stacks",
)
EXPIRED = Expired("heartbeat", "", since_ns=1, deadline_ns=3, age_s=2.0, limit_s=1.0, source="x")
ERROR = ErrorRecord(at_ns=1, type="ValueError", message="", traceback="", pid=7)


class Node:
    """What ranks are surrounded by; notes what the journal, the node and the policy hear."""

    def __init__(self, area: PageArea, run_dir: Path) -> None:
        self.heard: list[Any] = []
        self.all = [Worker(0, 10, spawned_ns=1), Worker(1, 11, spawned_ns=2)]
        self.spare = False
        config: Any = SimpleNamespace(
            limits=Limits(), safety_factor=5.0, run_dir=str(run_dir), node="here"
        )
        begun: Any = SimpleNamespace(area=area, pipes=None)
        this: Any = self
        self.ranks = RankEvents(config, begun, this, this, this, this, this, self.heard.append)

    def begin_round(self) -> None:
        self.ranks.begin_round(CURRENT)
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

    def fault_fired(self, fault: str) -> None:
        self.heard.append(fault)

    def __getattr__(self, name: str) -> Any:
        """The scribe."""
        return lambda *about: self.heard.append((name, *about))

    def told_of(self, name: str) -> list[Any]:
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
    assert node.told_of("rank_exited") == [(CURRENT, node.all[1])]
    assert m.RankExited(1, -9, spare, spare) in node.heard


@on_loop
async def test_a_limit_that_was_passed(node: Node) -> None:
    node.begin_round()
    node.ranks.watch.listener.limit_passed(1, EXPIRED)
    node.ranks.limits.end_round()
    assert node.heard[:3] == [
        "reaped",
        ("hang_detected", 5, EXPIRED),
        m.LimitPassed(1, "heartbeat"),
    ]


@on_loop
async def test_a_rank_that_has_ended_hangs_no_more(node: Node) -> None:
    node.begin_round()
    node.all[1].code = 0
    node.ranks.watch.listener.limit_passed(1, EXPIRED)
    node.ranks.limits.end_round()
    assert node.told_of("hang_detected") == []
    assert not any(isinstance(one, m.LimitPassed) for one in node.heard)


@on_loop
async def test_an_exception(node: Node) -> None:
    page = PageSnapshot(phase=Phase.FAILED, error=ERROR)
    node.ranks.watch.listener.news(0, page)  # between rounds
    assert node.heard == []
    node.begin_round()
    node.ranks.watch.listener.news(0, page)
    node.ranks.limits.end_round()
    assert m.RankErrored(0, "raised ValueError", False) in node.heard


@on_loop
async def test_a_wish(node: Node) -> None:
    node.begin_round()
    wish = {"action": "ShutdownWorkload", "description": "enough"}
    request = MailboxRequest(1, json.dumps(wish).encode(), 0)
    node.ranks.watch.listener.request(0, request)
    node.ranks.limits.end_round()
    assert job.ShutdownRequested("here", 2, "enough") in node.heard


@on_loop
async def test_only_ranks_that_run_are_held_to_limits(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Any] = []
    monkeypatch.setattr(
        type(node.ranks.watch), "hold_to_limits", lambda _self, *about: held.append(about)
    )
    node.all[0].code = 0
    node.ranks.hold_to_limits(on=True)
    node.ranks.hold_to_limits(on=False)
    assert held == [([1, 2], [0]), ([], [])]


class Examiner:
    """Finds the local rank 1 guilty of a hang; of a crash it is certain only at last."""

    def __init__(self, *_: Any) -> None:
        pass

    def judge_crash(self, current: Any, *, final: bool) -> bool:
        return final

    async def hang(self, current: Any) -> Any:
        return SimpleNamespace(culprits=(1,), event=SimpleNamespace(line="rank 5 hangs"))


@on_loop
async def test_judgements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_events, "Examiner", Examiner)
    with PageArea.create(2) as area:
        node = Node(area, tmp_path)
        node.begin_round()
        node.ranks.judge_crash(final=False)
        node.ranks.judge_crash(final=True)
        await node.ranks.judge_hang()
        assert node.heard == [m.CrashUnclear(), m.HangJudged(2, (1,), "rank 5 hangs")]
        node.ranks.limits.end_round()
