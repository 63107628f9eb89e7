"""The register: votes, claims, writes, and who keeps it.

`tests/simulator/register` explores them together.
"""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.coordinator.lead.seats import committee, ledger, voters
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.register import Claim, Member, Vote, Writer


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_two_majorities_have_a_member_in_common(size: int) -> None:
    nodes = "abcde"[:size]
    known = ledger(nodes, committee=committee(nodes))
    several = [set(each) for n in range(size + 1) for each in combinations(voters(nodes), n)]
    enough = [each for each in several if register.is_kept_by(each, known)]
    assert enough
    assert all(one & other for one in enough for other in enough)


def test_while_a_committee_is_replaced_a_majority_of_both_is_needed() -> None:
    known = ledger("abc", committee=committee("ade"), before=committee("abc"))
    assert register.lacking(voters("bc"), known) == known.committee
    assert register.lacking(voters("ade"), known) == known.before
    assert register.is_kept_by(voters("abd"), known)
    assert list(register.members(known)) == [(n, f"{n}1") for n in "adebc"]


def test_who_is_started_again_is_no_member() -> None:
    assert register.lacking({("a", "a2"), ("b", "b1")}, ledger("abc"))


def test_epochs_of_two_launchers_differ() -> None:
    first, second = register.next_epoch(7, "a1"), register.next_epoch(7, "b1")
    assert 7 < first != second > 7
    assert register.next_epoch(first, "a1") > first


def vote(known: p.Ledger | None = None) -> Vote[p.Ledger]:
    return Vote(known or ledger("abc"), later=p.newer)


def test_an_epoch_is_promised_once_and_nothing_earlier_is_taken() -> None:
    one = vote()
    assert one.claimed(5, ledger("abc"))
    assert not one.claimed(5, ledger("abc"))
    assert not one.claimed(4, ledger("abc"))
    assert not one.written(4, ledger("abc", epoch=4, version=9))
    assert one.value == ledger("abc")
    assert one.written(5, ledger("abc", epoch=5, version=1))
    assert one.value.epoch == 5


def test_who_knows_more_follows_nobody_who_knows_less() -> None:
    assert not vote(ledger("abc", version=4)).claimed(9, ledger("abc", version=3))
    assert vote(ledger("abc", version=4)).claimed(9, ledger("abc", version=4))


def test_a_value_that_comes_late_or_twice_replaces_no_later_one() -> None:
    one = vote()
    later = ledger("abc", epoch=5, version=8)
    assert one.written(5, later)
    assert one.written(5, ledger("abc", epoch=5, version=7))
    assert one.value == later


def test_a_claim_is_won_by_a_majority() -> None:
    claim = Claim(5, ledger("abc"), {("a", "a1")})
    assert not claim.won
    claim.granted.add(("a", "a2"))
    assert not claim.won
    claim.granted.add(("c", "c1"))
    assert claim.won


def test_a_version_is_held_once_a_majority_has_taken_it_or_a_later_one() -> None:
    writer = Writer(ledger("abc", version=9), config=4)
    writer.wrote(("a", "a1"), 9)
    writer.wrote(("b", "b1"), 7)
    writer.wrote(("b", "b1"), 6)
    assert writer.holds(7)
    assert not writer.holds(8)


def test_what_was_taken_before_the_committee_changed_does_not_count() -> None:
    writer = Writer(ledger("abc", committee=committee("abd"), before=committee("abc")), config=7)
    for node in "abc":
        writer.wrote((node, f"{node}1"), 6)
    assert not writer.holds(5)
    assert not writer.is_settled


def here(nodes: str, **domains: str) -> dict[register.Voter, tuple[Member, str]]:
    members = committee(nodes)
    return {register.voter(each): (each, domains.get(each.node, each.node)) for each in members}


def names(chosen: tuple[Member, ...]) -> str:
    return "".join(each.node for each in chosen)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [("ab", ""), ("abc", "abc"), ("abcd", "abc"), ("abcde", "abcde"), ("abcdefg", "abcde")],
)
def test_a_committee_is_none_three_or_five(nodes: str, expected: str) -> None:
    assert names(register.choose((), here(nodes))) == expected


def test_who_keeps_it_and_is_here_stays_and_another_one_takes_the_place_of_who_is_gone() -> None:
    assert names(register.choose(committee("bcd"), here("abcde"))) == "bcdae"
    assert names(register.choose(committee("abc"), here("abde"), [("c", "c1")])) in {"abd", "abdec"}
    assert names(register.choose(committee("abc"), here("ab"), [("c", "c1")])) == "abc"
    assert names(register.choose(committee("abc"), here("ab"))) == ""


def test_it_is_spread_over_domains() -> None:
    rack = {"a": "r1", "b": "r1", "c": "r1", "d": "r1", "e": "r2", "f": "r3"}
    chosen = names(register.choose((), here("abcdef", **rack)))
    assert chosen[:3] == "aef"
    assert len(chosen) == 5
