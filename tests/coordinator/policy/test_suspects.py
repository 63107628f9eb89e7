"""The work of a rank whose results may be wrong, or which is slow, is done somewhere else."""

from __future__ import annotations

import pytest

from tests.coordinator.policy.driving import Driver, of, running
from undaunted.coordinator.policy import messages as m


def wish(why: str = "suspect", rank: int = 3, node: str = "b", number: int = 0) -> m.StopWanted:
    return m.StopWanted(node, number, rank, why)


def ranks(starts: list[m.Start]) -> dict[str, list[int]]:
    return {start.node: [start.rank(slot) for slot in range(start.slots)] for start in starts}


def next_round(job: Driver, *nodes: str) -> dict[str, list[int]]:
    return ranks(of(m.Start, job.stop(*nodes)))


def test_the_job_goes_on_with_a_spare_node() -> None:
    job = running("a", "b", min_nodes=2)
    job.join("c")
    stops = of(m.Stop, job.feed(wish()))
    assert [stop.agree for stop in stops] == ["suspect", "suspect"]
    assert next_round(job, "a", "b") == {"a": [0, 1], "c": [2, 3]}
    assert job.outcomes == {"b": "excluded"}
    assert "rank 3" in job.ends["b"].reason
    assert job.policy.restarts_used == 0


def test_the_rank_that_is_the_reason_counts_not_the_one_that_says_so() -> None:
    job = running("a", "b", min_nodes=2)
    job.join("c")
    job.feed(wish(node="a", rank=2))
    next_round(job, "a", "b")
    assert job.outcomes == {"b": "excluded"}


def test_the_end_names_the_node_of_the_rank_that_is_the_reason() -> None:
    job = running("a", "b", min_nodes=2)
    job.feed(wish("straggler", node="a", rank=2))
    job.stop("a", "b")
    assert "rank 2 (node b)" in job.ends["a"].reason


def test_a_rank_that_there_is_not_stands_for_the_node_that_speaks_of_it() -> None:
    job = running("a", "b", min_nodes=2)
    job.join("c")
    job.feed(wish(rank=2**40))
    next_round(job, "a", "b")
    assert job.outcomes == {"b": "excluded"}


def test_without_a_spare_node_ranks_change_their_slots_until_each_was_tried() -> None:
    job = running("a", slots=3)
    job.feed(wish(node="a", rank=1))
    assert next_round(job, "a") == {"a": [1, 2, 0]}
    job.feed(wish(node="a", rank=1, number=1))
    assert next_round(job, "a") == {"a": [2, 0, 1]}
    decided = of(m.Decided, job.feed(wish(node="a", rank=1, number=2)))
    assert [each.action for each in decided] == ["end"]
    job.stop("a")
    assert job.outcomes == {"a": "suspect"}
    assert "rank 1 (node a)" in job.ends["a"].reason


def test_another_leader_goes_on_with_slots_that_were_not_tried() -> None:
    one = running("a", slots=3)
    one.feed(wish(node="a", rank=1))
    next_round(one, "a")
    other = running("a", slots=3)
    other.policy.turned = one.policy.turned
    other.feed(wish(node="a", rank=1))
    assert next_round(other, "a") == {"a": [2, 0, 1]}
    other.feed(wish(node="a", rank=1, number=1))
    other.stop("a")
    assert other.outcomes == {"a": "suspect"}


def test_a_job_of_one_rank_ends() -> None:
    job = running("a", slots=1)
    job.feed(wish(node="a", rank=0))
    job.stop("a")
    assert (job.outcomes, job.ends["a"].outcome.exit_code) == ({"a": "suspect"}, 16)


def test_at_most_three_nodes_are_left_out() -> None:
    job = running("a", slots=1, min_nodes=1)
    job.join("b", "c", "d", "e", slots=1)
    for number, node in enumerate("abc"):
        job.feed(wish(node=node, rank=0, number=number))
        job.stop(node)
    job.feed(wish(node="d", rank=0, number=3))
    job.stop("d")
    assert job.ends["d"].outcome.exit_code == 16


def test_a_suspicion_while_a_round_is_stopped_for_another_one() -> None:
    job = running("a", "b", min_nodes=2, max_restarts=3)
    job.join("c")
    job.fail("a")
    assert job.feed(wish()) == []
    assert next_round(job, "a", "b") == {"a": [0, 1], "c": [2, 3]}


def test_a_suspicion_while_the_job_ends_changes_nothing() -> None:
    job = running("a", "b", min_nodes=2)
    job.signal("a")
    job.feed(wish())
    job.stop("a", "b")
    assert set(job.outcomes.values()) == {"preempted"}


@pytest.mark.parametrize(("why", "code"), [("invalid", 17), ("straggler", 18)])
def test_other_wishes_end_the_job(why: str, code: int) -> None:
    job = running("a", "b", min_nodes=2, max_restarts=3)
    assert {stop.agree for stop in of(m.Stop, job.feed(wish(why)))} == {why}
    job.stop("a", "b")
    assert {end.outcome.exit_code for end in job.ends.values()} == {code}
    assert "rank 3 (node b)" in job.ends["a"].reason


@pytest.mark.parametrize("why", ["suspect", "invalid"])
def test_the_end_says_what_the_rank_says(why: str) -> None:
    job = running("a", "b", min_nodes=2, slots=1)
    job.feed(m.StopWanted("b", 0, 1, why, "loss is nan"))
    job.stop("a", "b")
    assert "loss is nan" in job.ends["a"].reason


@pytest.mark.parametrize(("spare", "outcome"), [(True, "excluded"), (False, "straggler")])
def test_a_slow_rank_leaves_if_that_was_chosen(*, spare: bool, outcome: str) -> None:
    job = running("a", "b", min_nodes=2, slow_ranks="exclude")
    if spare:
        job.join("c")
    job.feed(wish("straggler"))
    job.stop("a", "b")
    assert job.outcomes["b"] == outcome
