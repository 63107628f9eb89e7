"""Where a follower looks for a leader, and how often."""

from __future__ import annotations

from tests.coordinator.core.seats import table
from undaunted.coordinator.core.follower_messages import FollowerConfig
from undaunted.coordinator.core.search import REDIAL_FIRST_S, REDIAL_LONGEST_S, Search


def search(*endpoints: str) -> Search:
    return Search(
        FollowerConfig("b", "b1", slots=1, endpoints=endpoints, address="host-b:1"), ["first:1"]
    )


def test_endpoints_and_members_take_turns_after_what_is_known_for_certain() -> None:
    looks = search("x:1", "y:1")
    seen = [looks.address(table("abc")) for _ in range(5)]
    assert seen == ["first:1", "x:1", "host-a:1", "y:1", "host-c:1"]


def test_an_address_from_the_store_replaces_the_endpoints() -> None:
    looks = search("x:1")
    looks.elected = "z:1"
    assert [looks.address(()) for _ in range(3)] == ["first:1", "z:1", "z:1"]


def test_nothing_is_known() -> None:
    looks = search()
    assert [looks.address(()) for _ in range(2)] == ["first:1", ""]


def test_pauses_grow_until_a_leader_is_found() -> None:
    looks = search("x:1")
    assert looks.pause_s() == 0.0
    looks.address(())
    pauses = [looks.pause_s() for _ in range(8)]
    assert pauses[:2] == [REDIAL_FIRST_S, 2 * REDIAL_FIRST_S]
    assert pauses[-1] == REDIAL_LONGEST_S
    looks.found()
    assert looks.pause_s() == REDIAL_FIRST_S


def test_members_of_a_table_that_was_prepared_are_asked_as_well() -> None:
    looks = search("x:1")
    seen = [looks.address(table("ab"), table("cd")) for _ in range(9)]
    assert set(seen) == {"first:1", "x:1", "host-a:1", "host-c:1", "host-d:1"}


def test_a_lost_leader_is_looked_for_where_it_was() -> None:
    looks = search("x:1", "y:1")
    looks.begin("here:1")
    seen = [looks.address(table("abc")) for _ in range(10)]
    assert seen[:5] == ["here:1", "x:1", "host-a:1", "here:1", "host-c:1"]
    assert seen[5:] == ["y:1", "host-c:1", "here:1", "host-a:1", "x:1"]
    looks = search("x:1")
    looks.begin("here:1")
    assert looks.address(()) == "here:1"
    looks.elected = "z:1"
    looks.begin("here:1")
    assert looks.address(()) == "z:1"
