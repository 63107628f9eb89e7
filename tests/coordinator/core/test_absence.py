from __future__ import annotations

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core.absence import ANSWER_COUNTS_S, Missing

S = 1_000_000_000
LATER = round(ANSWER_COUNTS_S * S) + 1
ME = ("a", "a1")


def table(nodes: str) -> tuple[p.Seat, ...]:
    return tuple(
        p.Seat(node=n, incarnation=f"{n}1", address=f"{n}:1", group_rank=i, first_rank=i, slots=1)
        for i, n in enumerate(nodes)
    )


def answer(node: str, *, lost: bool = True, quorum: bool = False, of: str = "1") -> p.MissAnswer:
    return p.MissAnswer(node=node, incarnation=node + of, epoch=1, lost=lost, quorum=quorum)


def test_those_count_who_said_so_lately() -> None:
    four, missing = table("abcd"), Missing(ME)
    assert set(missing.members(four, 0)) == {ME}
    missing.hear(answer("b"), four, 1 * S)
    missing.hear(answer("c"), four, 2 * S)
    assert set(missing.members(four, 2 * S)) == {ME, ("b", "b1"), ("c", "c1")}
    assert set(missing.members(four, 1 * S + LATER)) == {ME, ("c", "c1")}
    assert set(missing.members(four, 2 * S + LATER)) == {ME}


def test_a_member_that_hears_the_leader_again_does_not_count() -> None:
    four, missing = table("abcd"), Missing(ME)
    missing.hear(answer("b", quorum=True), four, 1)
    assert missing.quorum_is_told(1)
    missing.hear(answer("b", lost=False), four, 2)
    assert set(missing.members(four, 2)) == {ME}
    assert not missing.quorum_is_told(2)


def test_a_member_that_asks_has_lost_the_leader_too() -> None:
    three, missing = table("abc"), Missing(ME)
    missing.hear(answer("b", quorum=True), three, 1)
    assert missing.asks(p.Miss(node="b", incarnation="b1", epoch=1), three, 2)
    assert not missing.asks(p.Miss(node="c", incarnation="c2", epoch=1), three, 2)
    assert set(missing.members(three, 1 + LATER)) == {ME, ("b", "b1")}
    assert missing.quorum_is_told(3)


def test_what_was_said_of_a_quorum_is_forgotten() -> None:
    missing = Missing(ME)
    missing.hear(answer("b", quorum=True), table("abc"), 1)
    assert not missing.quorum_is_told(1 + LATER)


def test_only_members_of_the_table_count() -> None:
    missing = Missing(ME)
    missing.hear(answer("b", of="2"), table("ab"), 1)
    missing.hear(answer("c"), table("abc"), 1)
    assert set(missing.members(table("abc"), 1)) == {ME, ("c", "c1")}
    assert set(missing.members(table("ab"), 1)) == {ME}
    assert set(missing.members(table("xy"), 1)) == set()
