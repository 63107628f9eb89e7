"""How far each node of a round is."""

from __future__ import annotations

import pytest

from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.round import Members

STOP = m.Stop("", 0, "so", 2.0)


@pytest.fixture
def three() -> Members:
    return Members(m.Place(node, number, 2 * number, 2) for number, node in enumerate("abc"))


def told(members: Members, order: m.Stop = STOP) -> list[str]:
    return [stop.node for stop in members.stops(members.seats, order)]


def test_who_has_finished_is_healthy_and_does_not_work(three: Members) -> None:
    three.finish("a", lost_ranks=1)
    three.finish("a", lost_ranks=1)
    assert list(three.working) == ["b", "c"]
    assert (three.finished, three.lost_ranks, three.healthy) == (1, 1, 3)


def test_who_goes_on_without_a_rank_works_and_is_not_healthy(three: Members) -> None:
    three.lose_rank("b")
    assert list(three.working) == ["a", "b", "c"]
    assert three.healthy == 2


def test_who_has_stopped_or_is_lost_is_not_told_to_stop(three: Members) -> None:
    three.stop(m.NodeStopped("a", 0))
    three.lose("b")
    assert list(three.unstopped) == ["c"]
    assert told(three) == ["c"]


def test_nobody_gets_the_same_signal_twice(three: Members) -> None:
    assert told(three) == ["a", "b", "c"]
    assert told(three) == []
    assert told(three, m.Stop("", 0, "so", 2.0, signal=10)) == ["a", "b", "c"]


def test_all_is_done_when_every_node_has_stopped_with_its_work_done(three: Members) -> None:
    for node in "ab":
        three.stop(m.NodeStopped(node, 0, all_ok=True))
    assert not three.all_ok
    three.stop(m.NodeStopped("c", 0, all_ok=True))
    assert three.all_ok
    assert three.finished == 3
