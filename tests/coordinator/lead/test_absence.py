from __future__ import annotations

from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead.absence import LostBy
from undaunted.coordinator.lead.times import Durations

S = 1_000_000_000
COUNTS_S = Durations(5.0).answer_counts_s
LATER = round(COUNTS_S * S) + 1
ME = ("a", "a1")


def keepers(nodes: str) -> set[tuple[str, str]]:
    return {(node, f"{node}1") for node in nodes}


def answer(node: str, *, lost: bool = True, of: str = "1") -> p.MissAnswer:
    about = {"node": node, "incarnation": node + of, "epoch": 1, "round": 0}
    return p.MissAnswer(**about, lost=lost)


def test_those_count_who_said_so_lately() -> None:
    four, missing = keepers("abcd"), LostBy(ME, COUNTS_S)
    assert set(missing.members(four, 0)) == {ME}
    missing.hear(answer("b"), four, 1 * S)
    missing.hear(answer("c"), four, 2 * S)
    assert set(missing.members(four, 2 * S)) == {ME, ("b", "b1"), ("c", "c1")}
    assert set(missing.members(four, 1 * S + LATER)) == {ME, ("c", "c1")}
    assert set(missing.members(four, 2 * S + LATER)) == {ME}


def test_a_member_that_hears_the_leader_again_does_not_count() -> None:
    four, missing = keepers("abcd"), LostBy(ME, COUNTS_S)
    missing.hear(answer("b"), four, 1)
    missing.hear(answer("b", lost=False), four, 2)
    assert set(missing.members(four, 2)) == {ME}


def test_a_member_that_asks_has_lost_the_leader_too() -> None:
    three, missing = keepers("abc"), LostBy(ME, COUNTS_S)
    missing.hear(answer("b"), three, 1)
    assert missing.asks(p.Miss(node="b", incarnation="b1", epoch=1), three, 2)
    assert not missing.asks(p.Miss(node="c", incarnation="c2", epoch=1), three, 2)
    assert set(missing.members(three, 1 + LATER)) == {ME, ("b", "b1")}


def test_only_members_of_the_committee_count() -> None:
    missing = LostBy(ME, COUNTS_S)
    missing.hear(answer("b", of="2"), keepers("ab"), 1)
    missing.hear(answer("c"), keepers("abc"), 1)
    assert set(missing.members(keepers("abc"), 1)) == {ME, ("c", "c1")}
    assert set(missing.members(keepers("ab"), 1)) == {ME}
    assert set(missing.members(keepers("xy"), 1)) == set()
