from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.core.seats import ledger, seat, table, voters
from undaunted.coordinator import protocol
from undaunted.coordinator.core import election


@pytest.mark.parametrize(
    ("nodes", "present", "enough"),
    [
        ("abc", "ab", True),
        ("abc", "bc", True),
        ("abc", "a", False),
        ("abcd", "ab", True),  # exactly half, with the casting vote
        ("abcd", "cd", False),
        ("abcd", "bcd", True),
        ("abcde", "cde", True),
        ("abcde", "ab", False),
        ("a", "a", True),
        ("abc", "xyz", False),
    ],
)
def test_quorum_is_more_than_half_or_half_with_the_casting_vote(nodes, present, enough):
    assert election.is_quorum(voters(present), table(nodes), "a") is enough


@given(st.integers(1, 6), st.data())
def test_two_quorums_of_one_table_have_a_node_in_common(size, data):
    nodes = "abcdef"[:size]
    casting = data.draw(st.sampled_from([*nodes, ""]))
    quorums = [
        set(some)
        for count in range(size + 1)
        for some in itertools.combinations(nodes, count)
        if election.is_quorum(voters("".join(some)), table(nodes), casting)
    ]
    assert all(one & other for one, other in itertools.product(quorums, quorums))


def test_a_later_agent_of_a_node_has_not_the_vote_of_the_earlier_one():
    assert not election.is_quorum({("a", "a2"), ("b", "b1")}, table("abc"), "a")


@pytest.mark.parametrize(
    ("known", "votes"),
    [
        (ledger("abc"), True),
        (ledger("ab"), False),
        (ledger("abc", casting_vote=""), False),
        (ledger("abc", table=(*table("ab"), seat("c", 2, address=""))), False),
    ],
)
def test_votes_need_an_embedded_leader_three_members_and_addresses(known, votes):
    assert election.votes_count(known) is votes


def test_a_leader_without_voters_may_start_alone():
    assert election.may_start(set(), ledger("ab"))
    assert not election.may_start(voters("a"), ledger("abc"))


def test_grants_of_a_quorum_make_a_leader():
    known = ledger("abc")
    assert election.may_lead(dict.fromkeys(voters("bc"), known), known)
    assert not election.may_lead(dict.fromkeys(voters("c"), known), known)


def test_nobody_can_be_made_a_leader_where_members_have_no_votes():
    known = ledger("ab")
    assert not election.may_lead(dict.fromkeys(voters("ab"), known), known)


def test_a_prepared_table_is_dead_once_a_member_of_it_grants_without_having_started_it():
    known = ledger("abcd", pending_round=1, pending=table("ab"))
    assert election.may_lead(dict.fromkeys(voters("bcd"), known), known)


def test_a_started_table_counts_alone_only_when_all_its_members_know_of_the_start():
    known = ledger("abcde", pending_round=1, pending=table("cde"))
    new = protocol.started(known, 9, "c")
    assert new.before == known.table
    assert not election.may_start(voters("cd"), new), "e may elect another leader with a and b"
    assert not election.may_lead(dict.fromkeys(voters("cd"), new), new)
    assert election.may_start(voters("cde"), new)
    assert election.may_start(voters("bcd"), new)
    again = protocol.started(
        msgspec.structs.replace(new, pending_round=2, pending=table("cdx")), 11, "c"
    )
    assert again.before == known.table
    assert not election.may_start(voters("cdx"), again)
    settled = protocol.settled(new)
    assert election.may_start(voters("cd"), settled)
    assert election.may_lead(dict.fromkeys(voters("cd"), settled), settled)


def test_the_table_that_lacks_a_quorum_is_known():
    known = msgspec.structs.replace(ledger("abc"), before=table("abcdef"), before_vote="a")
    assert election.lacking(voters("def"), known) is known.table
    assert election.lacking(voters("bc"), known) is known.before
    assert election.lacking(voters("bcde"), known) == ()


def test_a_table_before_without_votes_needs_no_quorum():
    known = ledger("ab", pending_round=1, pending=table("cde"))
    assert election.may_start(voters("cd"), protocol.started(known, 9, "c"))


def test_a_prepared_table_of_strangers_may_have_been_started():
    known = ledger("abcd", pending_round=1, pending=table("xyz"))
    assert not election.may_lead(dict.fromkeys(voters("bcd"), known), known)
    with_some = dict.fromkeys(voters("bcdx"), known)
    assert election.may_lead(with_some, known)


def test_turn_counts_voters_who_miss_the_leader_and_come_first():
    seats = table("abcd")
    assert election.turn(("b", "b1"), voters("bcd"), seats) == 0
    assert election.turn(("d", "d1"), voters("bcd"), seats) == 2
    assert election.turn(("x", "x1"), voters("bc"), seats) == 2
    assert election.turn(("d", "d1"), {("a", "a2"), ("d", "d1")}, seats) == 0


@given(st.integers(0, 10**6), st.text(min_size=1), st.text(min_size=1))
def test_epochs_rise_and_belong_to_one_agent(after, one, other):
    mine = election.next_epoch(after, one)
    assert after < mine <= after + 2**20
    assert election.next_epoch(mine, one) > mine
    if election.next_epoch(0, one) != election.next_epoch(0, other):
        assert mine != election.next_epoch(after, other)
