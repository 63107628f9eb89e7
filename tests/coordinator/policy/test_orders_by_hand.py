"""What the policy makes of what a person orders."""

from __future__ import annotations

import pytest

from tests.coordinator.policy.driving import Driver, of, running
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.policy.policy import GRACE_ON_REQUEST_S, JobPolicy, PolicyState

BY = "undaunted ctl (pid 7)"


def refused(commands: list[m.Command]) -> str:
    (said,) = commands
    assert isinstance(said, m.Say)
    assert said.refused
    assert said.by == BY
    return said.text


def test_a_restart_costs_none_of_the_restarts() -> None:
    job = running("a", "b", min_nodes=2, max_restarts=0)
    decided, *stops = job.feed(m.RestartOrdered("b", 0, BY))
    assert decided == m.Decided(0, "restart", f"{BY} asked for a restart", 0, BY)
    assert [(stop.node, stop.grace_s, stop.agree) for stop in of(m.Stop, stops)] == [
        ("a", GRACE_ON_REQUEST_S, ""),
        ("b", GRACE_ON_REQUEST_S, ""),
    ]
    assert [start.round for start in of(m.Start, job.stop("a", "b"))] == [1, 1]
    assert job.policy.restarts_used == 0


def test_ranks_may_save_before_a_restart() -> None:
    job = running("a", term_timeout_s=77.0)
    (stop,) = of(m.Stop, job.feed(m.RestartOrdered("a", 0, BY, save=True)))
    assert (stop.agree, stop.grace_s) == ("restart", 77.0)


def test_a_restart_of_another_round_is_stale() -> None:
    assert running("a").feed(m.RestartOrdered("a", 1, BY)) == []


def test_two_restarts_at_once_are_one_and_both_are_told_so() -> None:
    job = running("a")
    job.feed(m.RestartOrdered("a", 0, BY))
    (said,) = job.feed(m.RestartOrdered("a", 0, "somebody else"))
    assert isinstance(said, m.Say)
    assert not said.refused
    assert said.by == "somebody else"
    assert [start.round for start in of(m.Start, job.stop("a"))] == [1]
    assert job.feed(m.RestartOrdered("a", 0, "somebody late")) == []


def test_a_restart_is_refused_where_the_job_ends() -> None:
    job = running("a")
    job.feed(m.StopOrdered("a", 0, BY))
    assert "the job ends" in refused(job.feed(m.RestartOrdered("a", 0, BY)))


def test_an_exclusion_that_was_carried_out_is_not_refused_when_it_is_heard_of_again() -> None:
    """Each new leader hears again what a node has reported in its round."""
    job = running("a", "b", "c", min_nodes=2, max_nodes=3)
    order = m.ExclusionOrdered("b", 0, "c", BY)
    assert of(m.End, job.feed(order))
    assert job.feed(order) == []


def paused() -> Driver:
    job = running("a", max_restarts=9, restart_intensity=(9, 600.0))
    for _ in range(2):
        job.fail("a")
        job.stop("a")
    assert (job.policy.state, job.policy.pausing) == (PolicyState.FORMING, True)
    return job


def test_a_restart_ends_a_pause() -> None:
    job = paused()
    assert job.feed(m.RestartOrdered("a", 0, BY)) == [], "stale"
    said, *_ = job.feed(m.RestartOrdered("a", 1, BY))
    assert said == m.Say(f"{BY} asked for a restart: the pause before it is over", by=BY)
    assert (job.policy.round, job.policy.running) == (2, True)
    assert job.fire("pause") == []


def test_a_restart_is_refused_where_nothing_but_nodes_is_waited_for() -> None:
    job = Driver(min_nodes=2)
    job.join("a")
    assert "1 of 2 nodes are here (a)" in refused(job.feed(m.RestartOrdered("a", -1, BY)))


STOP, SAVE = (m.StopOrdered("a", 0, BY, save) for save in (False, True))
ENDINGS = pytest.mark.parametrize(("order", "outcome"), [(STOP, "no_restart"), (SAVE, "preempted")])


@ENDINGS
def test_a_stop_ends_a_round(order: m.StopOrdered, outcome: str) -> None:
    job = running("a", term_timeout_s=77.0)
    decided, stop = job.feed(order)
    assert decided == m.Decided(0, "end", f"{BY} asked for a stop", 0, BY)
    assert isinstance(stop, m.Stop)
    told = ("requested", 77.0) if order.save else ("", GRACE_ON_REQUEST_S)
    assert (stop.agree, stop.grace_s) == told
    job.stop("a")
    assert job.outcomes == {"a": outcome}


@ENDINGS
def test_a_stop_ends_a_job_that_pauses(order: m.StopOrdered, outcome: str) -> None:
    job = paused()
    decided, end = job.feed(order)
    assert decided == m.Decided(1, "end", f"{BY} asked for a stop", 8, BY)
    assert isinstance(end, m.End)
    assert job.outcomes == {"a": outcome}


@ENDINGS
def test_a_stop_ends_a_job_that_waits_for_nodes(order: m.StopOrdered, outcome: str) -> None:
    job = Driver(min_nodes=2)
    job.join("a")
    (end,) = job.feed(order)
    assert isinstance(end, m.End)
    assert end.by == BY
    job.join("b")
    assert job.outcomes == {"a": outcome, "b": outcome}


FEW = m.StopOrdered("a", 0, BY, few="1 of 2 launchers is left")


def test_where_no_other_node_can_come_none_is_waited_for() -> None:
    job = Driver(min_nodes=2)
    job.join("a")
    (end,) = job.feed(FEW)
    assert isinstance(end, m.End)
    assert (end.by, end.outcome) == (BY, m.Outcome.TOO_FEW_NODES)
    assert "1 of 2 launchers is left" in end.reason


def test_what_runs_goes_on_where_no_other_node_can_come() -> None:
    """It ends once it would wait for nodes, with what has ended its round."""
    job = running("a", "b", min_nodes=2, max_restarts=9)
    (said,) = job.feed(FEW)
    assert isinstance(said, m.Say)
    assert not said.refused
    job.fail("a", "rank 0: exit code 1")
    assert of(m.Start, job.stop("a", "b"))
    job.lose("b")
    assert not job.outcomes
    job.stop("a")
    assert job.outcomes == {"a": "too_few_nodes"}
    assert "node b is lost" in job.ends["a"].reason


def test_spares_take_part_where_no_other_node_can_come() -> None:
    job = running("a", "b", "c", min_nodes=2, max_restarts=9)
    job.feed(FEW)
    job.lose("b")
    assert {start.node for start in of(m.Start, job.stop("a"))} == {"a", "c"}


def test_a_person_ends_no_job_by_excluding_a_node_where_no_other_can_come() -> None:
    job = running("a", "b", min_nodes=2, max_nodes=3, max_restarts=1)
    job.feed(m.QuorumLost("nobody answers"))
    job.stop("a", "b")
    job.feed(FEW)
    assert "too few would be left" in refused(job.feed(m.ExclusionOrdered("a", 0, "b", BY)))
    assert {start.node for start in of(m.Start, job.feed(m.QuorumRegained()))} == {"a", "b"}


def test_a_stop_ends_a_job_that_prepares_a_round() -> None:
    policy = JobPolicy(PolicyConfig())
    policy.handle(m.NodeJoined(m.NodeInfo("a", 1)))
    assert policy.preparing
    policy.handle(STOP)
    assert policy.ended
    assert policy.handle(m.TableAccepted(0, "", 0)) == []


def test_a_stop_comes_in_place_of_a_restart_or_of_nothing() -> None:
    job = running("a", max_restarts=9)
    job.fail("a")
    decided, said = job.feed(STOP)
    assert decided == m.Decided(0, "end", f"{BY} asked for a stop", 9, BY)
    assert said == m.Say(f"{BY} asked for a stop: it ends once its round is stopped", by=BY)
    (again,) = job.feed(SAVE)
    assert isinstance(again, m.Say)
    assert "it ends already" in again.text
    job.stop("a")
    assert job.outcomes == {"a": "no_restart"}


def test_without_a_quorum_the_job_ends_once_there_is_one() -> None:
    job = running("a", "b", min_nodes=2, max_restarts=1)
    job.feed(m.QuorumLost("nobody answers"))
    job.stop("a", "b")
    assert job.policy.state is PolicyState.FORMING
    (*_, said) = job.feed(STOP)
    assert said == m.Say(f"{BY} asked for a stop: it ends once there is a quorum", by=BY)
    assert not job.policy.ended
    job.feed(m.QuorumRegained())
    assert set(job.outcomes.values()) == {"no_restart"}


@pytest.mark.parametrize("save", [False, True])
def test_a_member_is_excluded_where_a_spare_node_is_there(save: bool) -> None:
    job = running("a", "b", "c", min_nodes=2, max_nodes=3)
    assert job.table == "a b"
    decided, *_ = job.feed(m.ExclusionOrdered("a", 0, "b", BY, save))
    assert decided == m.Decided(0, "restart", f"{BY} asked to go on without node b", 0, BY)
    assert [start.node for start in of(m.Start, job.stop("a", "b"))] == ["a", "c"]
    assert job.outcomes == {"b": "excluded"}
    assert job.policy.restarts_used == 0


def test_a_spare_node_is_excluded_at_once() -> None:
    job = running("a", "b", "c", min_nodes=2, max_nodes=3)
    said, end = job.feed(m.ExclusionOrdered("a", 0, "c", BY))
    assert said == m.Say(f"{BY} asked to go on without node c", by=BY)
    assert isinstance(end, m.End)
    assert (end.node, end.outcome) == ("c", m.Outcome.EXCLUDED)
    assert job.policy.running


def test_a_node_that_the_job_needs_is_kept() -> None:
    job = running("a", "b", min_nodes=2)
    assert "too few would be left" in refused(job.feed(m.ExclusionOrdered("a", 0, "b", BY)))
    assert job.policy.running
    assert job.policy.roster.excluded == {}


def test_a_node_that_waits_is_kept_if_the_job_would_be_hopeless_without() -> None:
    job = Driver(min_nodes=1, max_nodes=1, replacement_group_size=2)
    job.join("a")
    assert job.policy.state is PolicyState.FORMING
    assert "too few would be left" in refused(job.feed(m.ExclusionOrdered("a", -1, "a", BY)))
    assert not job.policy.ended


def test_a_node_that_is_not_there_cannot_be_excluded() -> None:
    job = running("a", "b", "c", min_nodes=2, max_nodes=3)
    assert "which has a, b, c" in refused(job.feed(m.ExclusionOrdered("a", 0, "z", BY)))
    job.feed(m.ExclusionOrdered("a", 0, "c", "somebody else"))
    assert "which has a, b" in refused(job.feed(m.ExclusionOrdered("a", 0, "c", BY)))


def test_a_node_is_excluded_once_the_round_is_stopped() -> None:
    job = running("a", "b", "c", min_nodes=2, max_nodes=3, max_restarts=1)
    job.fail("a")
    (said,) = job.feed(m.ExclusionOrdered("a", 0, "b", BY))
    assert isinstance(said, m.Say)
    assert not said.refused
    assert [start.node for start in of(m.Start, job.stop("a", "b"))] == ["a", "c"]


def test_limits_are_told_to_all_and_to_those_who_come_later() -> None:
    job = running("a", "b", min_nodes=2)
    first, second = {"heartbeat": 600.0}, {"section:step": None}
    assert job.feed(m.LimitsOrdered("b", 0, first, BY)) == [m.NewLimits(first, BY)]
    assert job.feed(m.LimitsOrdered("a", 0, second, "x")) == [m.NewLimits(second, "x")]
    job.feed(m.RestartOrdered("b", 0, BY))
    *_, limits = job.stop("a", "b")
    assert limits == m.NewLimits({**first, **second}, "x")


def test_a_newer_order_of_the_same_limit_stands() -> None:
    job = running("a", "b", min_nodes=2)
    older, newer = {"heartbeat": 600.0, "section:step": 9.0}, {"heartbeat": None}
    job.feed(m.LimitsOrdered("b", 0, older, BY), m.LimitsOrdered("a", 0, newer, "x"))
    job.feed(m.RestartOrdered("b", 0, BY))
    *_, limits = job.stop("a", "b")
    assert limits == m.NewLimits({"heartbeat": None, "section:step": 9.0}, "x")


def test_nothing_is_heard_after_the_end() -> None:
    job = Driver()
    job.join("a")
    job.finish("a")
    job.stop("a")
    assert job.feed(m.ExclusionOrdered("a", 0, "a", BY), m.RestartOrdered("a", 0, BY)) == []
