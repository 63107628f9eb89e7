"""What the policy makes of what a person orders."""

from __future__ import annotations

import pytest

from tests.coordinator.core.driving import Driver, of, running
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core.policy import GRACE_ON_REQUEST_S, PolicyState

BY = "undaunted ctl (pid 7)"


def refused(commands: list[m.Command]) -> str:
    (said,) = commands
    assert isinstance(said, m.Say)
    assert said.refused
    assert said.text.startswith(BY)
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


def test_a_restart_of_another_round_is_stale_and_of_one_that_stops_is_refused() -> None:
    job = running("a")
    assert job.feed(m.RestartOrdered("a", 1, BY)) == []
    job.feed(m.RestartOrdered("a", 0, BY))
    assert "is being stopped already" in refused(job.feed(m.RestartOrdered("a", 0, BY)))


def test_a_stop_after_a_checkpoint_is_what_a_rank_may_want_as_well() -> None:
    job = running("a", term_timeout_s=77.0)
    decided, stop = job.feed(m.StopWanted("a", 0, -1, "requested", by=BY))
    assert decided == m.Decided(0, "end", f"{BY} asked for a stop", 0)
    assert isinstance(stop, m.Stop)
    assert (stop.agree, stop.grace_s) == ("requested", 77.0)


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
    assert said == m.Say(f"{BY} asked to go on without node c")
    assert isinstance(end, m.End)
    assert (end.node, end.outcome) == ("c", m.Outcome.EXCLUDED)
    assert job.policy.running


def test_a_node_that_the_job_needs_is_kept() -> None:
    job = running("a", "b", min_nodes=2)
    assert "too few would be left" in refused(job.feed(m.ExclusionOrdered("a", 0, "b", BY)))
    assert job.policy.running
    assert job.policy.excluded == {}


def test_a_node_that_waits_is_kept_if_the_job_would_be_hopeless_without() -> None:
    job = Driver(min_nodes=1, max_nodes=1, replacement_group_size=2)
    job.join("a")
    assert job.policy.state is PolicyState.FORMING
    assert "too few would be left" in refused(job.feed(m.ExclusionOrdered("a", -1, "a", BY)))
    assert not job.policy.ended


def test_a_node_that_is_not_there_cannot_be_excluded() -> None:
    job = running("a", "b", "c", min_nodes=2, max_nodes=3)
    assert "which has a, b, c" in refused(job.feed(m.ExclusionOrdered("a", 0, "z", BY)))
    job.feed(m.ExclusionOrdered("a", 0, "c", BY))
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


def test_nothing_is_heard_after_the_end() -> None:
    job = Driver()
    job.join("a")
    job.finish("a")
    job.stop("a")
    assert job.feed(m.ExclusionOrdered("a", 0, "a", BY), m.RestartOrdered("a", 0, BY)) == []
