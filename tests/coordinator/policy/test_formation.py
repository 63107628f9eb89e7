"""Who is known, and how many of them are named."""

from __future__ import annotations

from undaunted.coordinator.policy.formation import Roster
from undaunted.coordinator.policy.messages import NodeInfo
from undaunted.coordinator.policy.placement import name_some


def test_candidates_are_here_and_stay() -> None:
    roster = Roster()
    for name in "abcd":
        roster.join(NodeInfo(name, 1))
    roster.leaving["a"] = "SIGTERM"
    roster.excluded["b"] = "bad"
    roster.unhealthy["c"] = "no GPU"
    assert [node.name for node in roster.candidates()] == ["d"]
    assert roster.all_barred == {"b", "c"}
    assert roster.last_barred == "no GPU"


def test_an_agent_that_joins_is_healthy_but_not_excluded_any_less() -> None:
    roster = Roster(excluded={"a": "bad"}, unhealthy={"b": "no GPU"})
    roster.join(NodeInfo("a", 1))
    roster.join(NodeInfo("b", 1))
    assert [node.name for node in roster.candidates()] == ["b"]
    assert roster.barred("a") == "bad"


def test_who_goes_is_forgotten_with_the_intention_to_leave() -> None:
    roster = Roster()
    roster.join(NodeInfo("a", 1))
    roster.leaving["a"] = "SIGTERM"
    roster.go("a")
    roster.go("a")
    roster.join(NodeInfo("a", 1))
    assert [node.name for node in roster.candidates()] == ["a"]
    assert roster.seen == {"a"}


def test_who_joins_or_goes_does_not_return_any_more() -> None:
    roster = Roster(returning={"a", "b", "c"})
    roster.join(NodeInfo("a", 1))
    roster.go("b")
    assert roster.returning == {"c"}


def test_long_lists_are_cut() -> None:
    assert name_some(["n10", "n9"]) == "n9, n10"
    many = name_some(f"n{number}" for number in range(1000))
    assert many == "n0, n1, n2, n3, n4, n5, n6, n7 and 992 more"
