"""Leader and follower where a store decides who leads, and keeps the ledger."""

from __future__ import annotations

import pytest

from tests.coordinator.core import test_follower, test_leader
from tests.coordinator.core.seats import ledger, table
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import follower_messages as f
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core.follower import FollowerState
from undaunted.coordinator.core.leader import LeaderState


def leader(*, known: p.Ledger | None = None) -> test_leader.Harness:
    return test_leader.Harness(known=known, durable=True)


def about_to_start(known: p.Ledger | None = None) -> test_leader.Harness:
    harness = leader(known=known)
    for node in "abc":
        harness.hello(node)
    harness.pass_time(3, alive="abc")
    harness.prepared("abc")
    return harness


def starts(harness: test_leader.Harness) -> int:
    return sum(len(harness.heard(node, m.Start)) for node in harness.links)


def test_nothing_starts_before_its_table_is_written_down():
    harness = about_to_start()
    version = harness.leader.ledger.version
    assert starts(harness) == 0
    harness.handle(c.Persisted(version - 1))
    assert starts(harness) == 0
    harness.handle(c.Persisted(version))
    assert starts(harness) == 3
    assert harness.leader.ledger.casting_vote == ""


def test_it_may_be_written_down_before_all_have_acknowledged():
    harness = leader()
    for node in "abc":
        harness.hello(node)
    harness.pass_time(3, alive="abc")
    harness.handle(c.Persisted(harness.leader.ledger.version))
    harness.prepared("abc")
    assert starts(harness) == 3


def test_a_deposed_leader_says_so_and_does_nothing_more():
    harness = about_to_start()
    commands = harness.handle(c.Deposed("the lease in etcd is over"))
    refused = {each.message for each in commands if isinstance(each, c.Send)}
    assert refused == {p.Refused(reason="the lease in etcd is over")}
    assert sum(isinstance(each, c.Close) for each in commands) == 3
    assert commands[-1] == c.Done("")
    assert harness.leader.state is LeaderState.DEPOSED
    assert harness.handle(c.Persisted(harness.leader.ledger.version)) == []
    assert starts(harness) == 0


def test_the_next_leader_waits_a_lease_for_members():
    harness = leader(known=ledger(casting_vote=""))
    harness.hello("a", round=0, running=True)
    harness.hello("b", round=0, running=True)
    assert harness.leader.state is LeaderState.RECOVERING
    harness.pass_time(4.5, alive="ab")
    assert harness.leader.state is LeaderState.RECOVERING
    harness.pass_time(1, alive="ab")
    assert "node c is lost: it has not come back" in harness.heard("a", m.Stop)[0].reason


def test_what_was_prepared_may_have_been_started_by_the_leader_before():
    pending = table("xyz")
    known = ledger(
        casting_vote="", round=-1, running=False, table=(), pending_round=0, pending=pending
    )
    harness = about_to_start(known)
    harness.handle(c.Persisted(harness.leader.ledger.version))
    assert starts(harness) == 0
    harness.pass_time(71, alive="abc")
    assert starts(harness) == 3


def follower(**config: object) -> test_follower.Harness:
    return test_follower.Harness(endpoints=(), store="etcd://e:1", **config)


def test_there_is_nowhere_to_look_until_the_store_says_it():
    harness = follower()
    assert not harness.all(f.Dial)
    harness.handle(f.LeaderAt("host-a:1"))
    assert harness.last(f.Dial).address == "host-a:1"
    harness.welcome()
    assert harness.follower.state is FollowerState.FOLLOWING
    assert not [each for each in harness.handle(f.LeaderAt("host-a:1")) if each]


def test_gives_up_with_what_the_store_has_said():
    harness = follower(give_up_s=30.0)
    harness.handle(f.LeaderAt("", "etcd at e:1: no answer in time"))
    harness.pass_time(31)
    reason = harness.last(f.GiveUp).reason
    assert reason == "no coordinator for 30 s (etcd://e:1): etcd at e:1: no answer in time"


def test_a_new_leader_is_followed_at_once_and_the_ranks_go_on():
    harness = follower()
    harness.handle(f.LeaderAt("host-a:1"))
    harness.running()
    harness.handle(f.Closed(harness.link, "reset"))
    assert harness.follower.state is FollowerState.AWAY
    harness.handle(f.LeaderAt(""))
    harness.handle(f.LeaderAt("host-c:1"))
    assert harness.last(f.Dial).address == "host-c:1"
    harness.welcome(epoch=5, leader="c")
    assert harness.follower.state is FollowerState.FOLLOWING
    harness.pass_time(2)
    assert not harness.all(f.StopRanks)


@pytest.mark.parametrize("known", ["", "host-c:1"])
def test_whom_the_store_names_is_tried_when_the_connection_breaks_later(known):
    harness = follower()
    harness.handle(f.LeaderAt("host-a:1"))
    harness.running()
    harness.handle(f.LeaderAt(known))
    assert harness.follower.state is FollowerState.FOLLOWING
    harness.handle(f.Closed(harness.link, "reset"))
    assert harness.last(f.Dial).address == (known or "host-a:1")


def test_who_cannot_reach_the_store_finds_the_leader_through_members():
    harness = follower()
    harness.handle(f.LeaderAt("host-a:1"))
    harness.running()
    harness.handle(f.Closed(harness.link, "reset"))
    harness.handle(f.LeaderAt("", "etcd at e:1: no answer in time"))
    for _ in range(5):
        harness.handle(f.Closed(harness.link, "refused"))
        harness.pass_time(1.1)
    assert {each.address for each in harness.all(f.Dial)} == {"host-a:1", "host-c:1"}
    refused = p.Refused(reason="this node does not lead the job", leader="host-d:1")
    harness.handle(f.Opened(harness.link))
    harness.says(refused)
    harness.pass_time(0.1)
    assert harness.last(f.Dial).address == "host-d:1"
