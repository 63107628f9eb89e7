"""What people are told of a launcher; leaders and followers are asked in test_ctl.py."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from undaunted.attribution.evidence import RankEvidence
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.policy.policy import JobPolicy
from undaunted.fault_tolerance import control_socket as s
from undaunted.fault_tolerance.agent import status
from undaunted.fault_tolerance.agent.processes import Worker
from undaunted.fault_tolerance.agent.status import RankNow
from undaunted.progress.limits import Limits
from undaunted.progress.snapshot import PageSnapshot, Phase, SectionSnapshot

if TYPE_CHECKING:
    import pytest

S = 1_000_000_000


def now(rank: int, page: PageSnapshot | None = None, **limits: Any) -> RankNow:
    page = page or PageSnapshot(phase=Phase.STEPPING)
    return RankNow(rank, Worker(rank, 100 + rank, 0), page, Limits(**limits))


def test_a_rank_that_runs() -> None:
    sections = {
        "save": SectionSnapshot("save", open_since_ns=7 * S),
        "step": SectionSnapshot("step"),
    }
    page = PageSnapshot(phase=Phase.STEPPING, iteration=4, heartbeat_ns=8 * S, sections=sections)
    assert status.rank_status(now(3, page), 10 * S) == s.RankStatus(
        3, 3, 103, "stepping", 4, 2.0, {"save": 3.0}
    )


def test_a_rank_that_has_ended_and_one_whose_page_is_unreadable() -> None:
    one = now(0, PageSnapshot(problem="torn"))
    one.worker.code = -9
    found = status.rank_status(one, S)
    assert (found.phase, found.ended, found.heartbeat_age_s) == ("torn", "killed by SIGKILL", None)


def test_limits_are_told_with_source_and_ranks() -> None:
    sources = {"heartbeat": "by hand"}
    ranks = [
        now(0, heartbeat_s=5.0, sources=sources, sections={"save": None}),
        now(1, heartbeat_s=5.0, sources=sources),
        now(2),
    ]
    found = {(each.name, each.seconds): each for each in status.limits_in_force(ranks)}
    assert found["heartbeat", 5.0] == s.LimitStatus("heartbeat", 5.0, "by hand", [0, 1])
    assert found["heartbeat", 2700.0] == s.LimitStatus("heartbeat", 2700.0, "default", [2])
    assert found["section:save", None].ranks == [0]
    assert status.limits_in_words({"heartbeat": 600.0, "x": None}) == "heartbeat 10 min 00 s, x off"


def test_a_job_of_one_node() -> None:
    policy = JobPolicy(PolicyConfig(max_restarts=2))
    assert status.of_policy(policy, "a", None).round == -1
    policy.handle(m.NodeJoined(m.NodeInfo("a", 2)))
    policy.handle(m.TableAccepted(0, "", 0))
    found = status.of_policy(policy, "a", 3.0)
    assert (found.state, found.round, found.restarts_left) == ("running", 0, 2)
    assert found.members == [s.MemberStatus("a", [0, 1])]
    assert found.pause_left_s is None, "the timer of a pause that somebody has ended"
    policy.pausing = True
    assert status.of_policy(policy, "a", 3.0).pause_left_s == 3.0


def test_what_follows_while_a_round_is_stopped() -> None:
    policy = JobPolicy(PolicyConfig())
    policy.handle(m.NodeJoined(m.NodeInfo("a", 2)))
    policy.handle(m.TableAccepted(0, "", 0))
    assert status.of_policy(policy, "a", None).then == ""
    policy.handle(m.RestartOrdered("a", 0, "ann"))
    assert "another round" in status.of_policy(policy, "a", None).then
    policy.handle(m.StopOrdered("a", 0, "ben"))
    assert "the job ends: ben" in status.of_policy(policy, "a", None).then


def test_long_stacks_are_cut_so_that_all_fit_into_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s, "MOST_ANSWERED", 4000)
    seen = [
        RankEvidence(rank, rank, 7, PageSnapshot(), stacks="x" * s.MOST_ANSWERED)
        for rank in range(3)
    ]
    found = status.stacks_of(seen)
    assert sum(len(each.stacks) for each in found) <= s.MOST_ANSWERED // 4
    silent = status.stacks_of([RankEvidence(0, 0, 7, PageSnapshot(), reason="it had ended")])
    assert (silent[0].stacks, silent[0].reason) == ("", "it had ended")
    assert json.dumps(silent[0].state) == '"sleeping"'
