"""Ranks that ask whether to stop do so after the same iteration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.policy.driving import Driver, of, running
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.policy import GRACE_ON_REQUEST_S
from undaunted.coordinator.policy.round import Stopping


def two(**config: object) -> Driver:
    return running("a", "b", min_nodes=2, term_timeout_s=100.0, **config)


def asked(node: str, iteration: int, *, fixed: bool = False, number: int = 0) -> m.RanksAsked:
    return m.RanksAsked(node, number, iteration, fixed)


def never(node: str) -> m.RanksAsked:
    return m.RanksAsked(node, 0, -1, asks=False)


def wanted(node: str = "b", why: str = "preempted") -> m.StopWanted:
    return m.StopWanted(node, 0, 3, why)


def test_a_launcher_that_is_told_to_stop_has_all_ranks_asked() -> None:
    job = two()
    stops = of(m.Stop, job.signal("a"))
    assert [(stop.node, stop.agree, stop.grace_s) for stop in stops] == [
        ("a", "preempted", 100.0),
        ("b", "preempted", 100.0),
    ]
    assert job.feed(asked("a", 7)) == []
    assert job.feed(asked("b", 9)) == [m.StopAfter("a", 0, 10), m.StopAfter("b", 0, 10)]


def test_where_no_rank_asks_all_get_the_signal() -> None:
    job = two()
    job.signal("a")
    told = job.feed(never("a"), never("b"))
    assert told == [m.StopAfter("a", 0, -1), m.StopAfter("b", 0, -1)]


def test_ranks_that_ask_on_one_node_are_enough() -> None:
    job = two()
    job.signal("a")
    assert of(m.StopAfter, job.feed(never("a"), asked("b", -1)))[0].iteration == 0


def test_a_rank_that_wants_a_stop() -> None:
    job = two(max_restarts=3)
    decided, *stops = job.feed(wanted(why="deadline"))
    assert isinstance(decided, m.Decided)
    assert decided.action == "end"
    assert [stop.agree for stop in of(m.Stop, stops)] == ["deadline", "deadline"]
    job.stop("a", "b")
    assert job.outcomes == {"a": "preempted", "b": "preempted"}
    assert "rank 3 (node b)" in job.ends["a"].reason


def test_a_rank_that_is_told_to_stop_leaves_with_its_node_if_others_are_enough() -> None:
    job = running("a", "b", "c", min_nodes=2, max_restarts=3)
    stops = of(m.Stop, job.feed(wanted("b")))
    assert [stop.agree for stop in stops] == ["restart", "restart"]
    job.stop("a", "b")
    assert job.outcomes == {"b": "preempted"}
    assert job.table.split() == ["a", "c"]


def test_a_launcher_that_leaves_and_its_rank_that_is_told_are_one_wish() -> None:
    job = running("a", "b", "c", min_nodes=2, max_restarts=3)
    job.signal("b")
    assert of(m.Stop, job.feed(wanted("b"))) == []
    job.stop("a", "b")
    assert job.outcomes == {"b": "preempted"}


def test_a_node_that_has_failed_before_is_not_waited_for() -> None:
    job = running("a", "b", "c", min_nodes=2, max_nodes=3, min_healthy=True, max_restarts=3)
    job.fail("c")
    job.feed(wanted("a", "requested"))
    assert of(m.StopAfter, job.feed(asked("a", 4), asked("b", 4)))[0].iteration == 5


def test_a_node_that_is_lost_while_all_stop_leaves_the_others_little_time() -> None:
    job = two(max_restarts=3)
    job.feed(wanted(), asked("a", 4), asked("b", 4))
    assert {stop.grace_s for stop in of(m.Stop, job.lose("b"))} == {GRACE_ON_REQUEST_S}


def test_ranks_without_sessions_have_15_s_when_a_job_grows() -> None:
    job = running("a", "b", min_nodes=2, max_nodes=3, elastic=True, term_timeout_s=100.0)
    job.join("c")
    assert {stop.grace_s for stop in of(m.Stop, job.fire("joined"))} == {100.0}
    stops = of(m.Stop, job.feed(never("a"), never("b")))
    assert {(stop.grace_s, stop.agree) for stop in stops} == {(GRACE_ON_REQUEST_S, "")}


def test_ranks_that_had_done_their_work_have_finished() -> None:
    job = two()
    job.feed(wanted(why="requested"))
    job.stop("a", "b", all_ok=True)
    assert job.outcomes == {"a": "finished", "b": "finished"}


def test_no_restart_follows_a_failure_when_a_rank_wants_a_stop() -> None:
    job = two(max_restarts=3)
    job.fail("a")
    job.feed(wanted())
    job.stop("a", "b")
    assert set(job.outcomes.values()) == {"preempted"}


def test_a_failure_while_all_stop_leaves_the_others_little_time() -> None:
    job = two(max_restarts=3)
    job.feed(wanted(), asked("a", 4), asked("b", 4))
    stops = of(m.Stop, job.fail("a", "rank 0: raised OSError"))
    assert [(stop.node, stop.agree, stop.grace_s) for stop in stops] == [
        ("a", "preempted", GRACE_ON_REQUEST_S),
        ("b", "preempted", GRACE_ON_REQUEST_S),
    ]
    told = job.stop("a", "b")
    assert of(m.Blamed, told)[0].line == "node a: rank 0: raised OSError"
    assert set(job.outcomes.values()) == {"preempted"}


def test_several_who_want_a_stop_change_nothing() -> None:
    job = two()
    job.feed(wanted("a"))
    assert job.feed(wanted("b")) == []
    assert of(m.Stop, job.signal("b")) == []


def test_a_node_that_has_stopped_or_is_lost_is_not_waited_for() -> None:
    job = two()
    job.feed(wanted(), asked("a", 4))
    assert of(m.StopAfter, job.lose("b")) == [m.StopAfter("a", 0, 5)]


def test_a_node_that_answers_late_is_told_the_same() -> None:
    job = two()
    job.feed(wanted(), asked("a", 4), asked("b", 4))
    assert job.feed(asked("b", 30)) == [m.StopAfter("b", 0, 5)]


def test_what_an_earlier_leader_has_said_stays() -> None:
    job = two()
    job.feed(wanted(), asked("a", 12, fixed=True))
    assert job.feed(asked("b", 15)) == [m.StopAfter("a", 0, 12), m.StopAfter("b", 0, 12)]


def test_nobody_agrees_when_a_round_has_failed() -> None:
    job = two(max_restarts=1)
    assert [stop.agree for stop in of(m.Stop, job.fail("a"))] == ["", ""]
    assert job.feed(asked("a", 3), asked("b", 3)) == []


def test_an_elastic_job_that_grows_has_its_ranks_agree() -> None:
    job = running("a", "b", min_nodes=2, max_nodes=3, elastic=True)
    job.join("c")
    stops = of(m.Stop, job.fire("joined"))
    assert [stop.agree for stop in stops] == ["restart", "restart"]


def test_the_next_round_begins_anew() -> None:
    job = running("a", "b", "c", min_nodes=2, max_restarts=3)
    job.signal("a")
    job.feed(asked("a", 3), asked("b", 3))
    job.stop("a", "b")
    assert job.policy.round == 1
    assert job.feed(asked("b", 5, number=1)) == []


@given(st.lists(st.integers(-1, 10**9), min_size=1, max_size=8))
def test_nobody_has_passed_the_iteration(iterations: list[int]) -> None:
    stopping, nodes = Stopping("preempted"), [f"n{index}" for index in range(len(iterations))]
    for node, iteration in zip(nodes, iterations, strict=True):
        assert not stopping.decide(nodes)
        stopping.take(asked(node, iteration))
    assert stopping.decide(nodes)
    assert stopping.after == max(iterations) + 1
    assert not stopping.decide(nodes), "once is enough"


@pytest.mark.parametrize("nodes", [[], ["a", "b"]])
def test_too_few_answers(nodes: list[str]) -> None:
    stopping = Stopping("preempted")
    stopping.take(asked("a", 1))
    assert not stopping.decide(nodes)


def test_what_fails_while_all_are_to_stop_is_in_the_reason_of_the_end() -> None:
    job = two()
    job.signal("a")
    job.feed(asked("a", 7), asked("b", 7))
    job.fail("b", "rank 3: exit code 1")
    job.feed(m.NodeStopped("a", 0), m.NodeStopped("b", 0, verdict="rank 3 failed: disk full"))
    assert job.outcomes == {"a": "preempted", "b": "preempted"}
    assert "SIGTERM" in job.ends["a"].reason
    assert "rank 3 failed: disk full" in job.ends["a"].reason


def test_a_node_that_had_failed_is_told_nothing_more() -> None:
    """Its ranks may have passed that iteration: an earlier leader has asked them as well."""
    job = running("a", "b", "c", min_nodes=2, max_nodes=3, min_healthy=True, term_timeout_s=9.0)
    job.fail("c")
    job.feed(m.RestartOrdered("a", 0, "somebody", save=True))
    told = job.feed(asked("a", 4), asked("c", 30), asked("b", 4))
    assert of(m.StopAfter, told) == [m.StopAfter("a", 0, 5), m.StopAfter("b", 0, 5)]
    assert job.feed(asked("c", 30)) == []
