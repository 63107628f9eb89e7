"""One launcher keeps the register alone: who may go on from what it has written, and who not."""

from __future__ import annotations

import msgspec
import pytest

from tests.coordinator.lead import test_follower
from tests.coordinator.lead.seats import committee, ledger
from tests.coordinator.lead.test_leader import Harness
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.leader import LeaderState

ALONE = {"committee": (), "fenced": False}


def kept_by(leader: str, **about: object) -> p.Ledger:
    return ledger("cd", round=4, birth=2, epoch=3, leader=leader, **ALONE | about)


def goes_on(known: p.Ledger, ended: bool | None) -> bool:
    """Whether a leader on node a, which knows of no job, goes on with one that node c brings."""
    harness = Harness(min_nodes=2, max_nodes=4)
    link = harness.hello("c", ledger=known, round=4, running=True, leader_ended=ended)
    refused = [each for each in harness.said[link] if isinstance(each, p.Refused)]
    assert not any(each.final for each in refused), "it may find the one that keeps it"
    assert bool(refused) == (harness.leader.ledger.round < 0)
    return not refused


@pytest.mark.parametrize("ended", [None, False])
@pytest.mark.parametrize("before", ["", "bcd"])
def test_a_job_that_another_launcher_keeps_alone_is_left_to_that_one(
    ended: bool | None, before: str
) -> None:
    assert not goes_on(kept_by("b", before=committee(before)), ended)


def test_it_goes_on_here_if_that_one_has_ended_and_nothing_is_missing() -> None:
    assert goes_on(kept_by("b"), ended=True)


def test_a_launcher_that_was_started_again_on_the_node_of_that_one_goes_on() -> None:
    assert goes_on(kept_by("a"), ended=None)
    assert not goes_on(kept_by("a"), ended=False), "that one had handed the lead over"


@pytest.mark.parametrize("ended", [None, True])
def test_a_leader_that_was_about_to_go_on_hears_that_another_one_keeps_it(
    ended: bool | None,
) -> None:
    """Its disk was lost, and the first that came to it had missed that it had handed over."""
    harness = Harness(min_nodes=2, max_nodes=4)
    harness.hello("c", ledger=kept_by("a"), round=4, running=True)
    assert harness.leader.state is LeaderState.RECOVERING
    later = kept_by("b", version=9)
    harness.hello("d", ledger=msgspec.structs.replace(later, round=5), leader_ended=ended)
    deposed = harness.leader.state is LeaderState.DEPOSED
    assert deposed != (harness.leader.ledger.round == 5)
    assert deposed == (ended is None)


def test_all_hear_at_once_that_the_leader_does_not_keep_it_alone_any_more() -> None:
    """One that is not among those that keep it now would take it elsewhere."""
    harness = Harness(min_nodes=2, max_nodes=2)
    for node in "ax":
        harness.hello(node)
    harness.pass_time(3, alive="ax")
    harness.prepared("ax")
    assert harness.leader.ledger.running
    assert not p.has_committee(harness.learnt("x"))
    for node in "bc":
        harness.hello(node)
    harness.pass_time(3, alive="abcx")
    known = harness.learnt("x")
    assert [each.node for each in known.committee] == ["a", "b", "c"]


# --- the other side -----------------------------------------------------------------------------


def follower() -> test_follower.Harness:
    """It follows a leader that keeps the register alone."""
    return test_follower.Harness().running(**ALONE)


def said_of_the_leader(harness: test_follower.Harness, address: str) -> bool | None:
    """What the node says of the leader that it has lost, as it comes to an address."""
    dials_at(harness, address)
    harness.handle(c.Opened(harness.link))
    hello = harness.last(c.Send).message
    assert isinstance(hello, p.Hello)
    return hello.leader_ended


def dials_at(harness: test_follower.Harness, address: str) -> None:
    while harness.last(c.Dial).address != address:
        harness.handle(c.Closed(harness.link, "no answer", silent=True))
        harness.pass_time(1)


def hangs_up(harness: test_follower.Harness, *, silent: bool = False) -> None:
    harness.handle(c.Closed(harness.link, "reset", silent=silent))


def nobody_listens(harness: test_follower.Harness) -> None:
    harness.handle(c.Closed(harness.link, "refused", ended=True))


@pytest.mark.parametrize(("silent", "known"), [(False, True), (True, None)])
def test_a_node_says_that_it_was_with_the_leader_until_that_one_ended(
    silent: bool, known: bool | None
) -> None:
    harness = follower()
    hangs_up(harness, silent=silent)
    nobody_listens(harness)
    assert said_of_the_leader(harness, "host-c:1") is known


def test_it_does_not_once_the_leader_may_have_gone_on_without_it() -> None:
    harness = follower()
    hangs_up(harness)
    harness.handle(c.Closed(harness.link, "no answer", silent=True))
    harness.pass_time(6)
    dials_at(harness, "host-a:1")
    nobody_listens(harness)
    assert said_of_the_leader(harness, "host-c:1") is None


def test_it_says_that_another_one_leads_in_the_place_of_that_one() -> None:
    harness = follower()
    harness.says(p.Refused(reason="the node has left", leader="host-c:1"))
    hangs_up(harness, silent=True)
    dials_at(harness, "host-a:1")
    nobody_listens(harness)
    assert said_of_the_leader(harness, "host-c:1") is False


def test_it_says_that_it_has_come_to_where_it_had_followed_that_one() -> None:
    harness = follower()
    hangs_up(harness, silent=True)
    assert harness.last(c.Dial).address == "host-a:1"
    assert said_of_the_leader(harness, "host-a:1") is True
