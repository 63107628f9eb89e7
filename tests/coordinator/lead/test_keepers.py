"""What holds whoever keeps the register: a committee, a file, or etcd."""

from __future__ import annotations

import pytest

from tests.coordinator.lead.seats import ledger
from tests.coordinator.lead.test_leader import EPOCH, Harness
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.leader import LeaderState
from undaunted.coordinator.policy import messages as m

KEEPERS = ("committee", "file", "etcd")


def lead(keeper: str, known: p.Ledger | None = None) -> Harness:
    nodes = {"min_nodes": 3} if keeper != "file" else {"min_nodes": 2, "max_nodes": 2}
    harness = Harness(known=known, store=keeper == "etcd", disk=False, **nodes)
    for node in "abc" if keeper != "file" else "ab":
        harness.hello(node, ledger=known)
    harness.pass_time(20 if known else 3, alive="abc")
    return harness


def hold(harness: Harness, keeper: str, *, late: bool = False) -> None:
    """Have what is prepared held, or only the version before it."""
    version = harness.leader.ledger.version - late
    if keeper != "committee":
        harness.handle(c.Persisted(version))
        return
    for node in "bc":
        known = p.Prepared(epoch=EPOCH, version=version, round=0)
        harness.say(node, known)


def table(keeper: str) -> str:
    """Nodes whose word a start needs in any case, and which do not keep the register."""
    return "a" if keeper == "committee" else "abc" if keeper == "etcd" else "ab"


def starts(harness: Harness) -> int:
    return sum(len(harness.heard(node, m.Start)) for node in harness.links)


@pytest.mark.parametrize("keeper", KEEPERS)
def test_nothing_starts_before_the_register_holds_it(keeper: str) -> None:
    harness = lead(keeper)
    harness.prepared(table(keeper))
    assert not starts(harness)
    hold(harness, keeper, late=True)
    assert not starts(harness)
    hold(harness, keeper)
    assert starts(harness) == len(harness.links)


@pytest.mark.parametrize("keeper", KEEPERS)
def test_it_may_hold_before_all_nodes_have_confirmed_the_table(keeper: str) -> None:
    harness = lead(keeper)
    hold(harness, keeper)
    assert not starts(harness)
    harness.prepared(table(keeper))
    assert starts(harness) == len(harness.links)


@pytest.mark.parametrize("keeper", KEEPERS)
def test_the_next_leader_goes_on_from_what_is_held_under_a_later_epoch(keeper: str) -> None:
    about = {} if keeper == "committee" else {"committee": (), "fenced": False}
    known = ledger("abc" if keeper != "file" else "ab", round=4, restarts_used=1, **about)
    harness = lead(keeper, known)
    now = harness.leader.ledger
    assert (now.epoch, now.birth) == (EPOCH, known.birth)
    assert p.newer(now, known)
    assert harness.leader.policy.round == 4
    assert harness.leader.policy.restarts_used >= 1


@pytest.mark.parametrize("keeper", KEEPERS)
def test_a_leader_that_is_lost_starts_nothing(keeper: str) -> None:
    harness = lead(keeper)
    harness.prepared(table(keeper))
    if keeper == "etcd":
        harness.handle(c.Deposed("another launcher has claimed a later epoch"))
    else:
        others = ledger("abc", epoch=EPOCH + 1, round=7, version=1)
        harness.hello("c", ledger=others, promised=EPOCH + 1, follows=False)
    lost = harness.leader.state is LeaderState.DEPOSED
    assert lost or harness.leader.ledger.round == 7, "it goes on from the later one"
    assert not starts(harness)
