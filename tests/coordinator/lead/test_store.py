"""Leader and follower where a store decides who leads, and keeps the ledger."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.coordinator.lead import test_follower, test_leader
from tests.coordinator.lead.seats import committee, ledger, table
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.follower import FollowerState
from undaunted.coordinator.lead.leader import LeaderState
from undaunted.coordinator.policy import messages as m


def leader(*, known: p.Ledger | None = None) -> test_leader.Harness:
    return test_leader.Harness(known=known, store=True)


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
    assert harness.leader.ledger.committee == ()


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


def test_a_leader_hears_from_a_follower_that_the_store_has_another_one():
    """Before it hears of that itself, it is not to take the end of the connection for a loss."""
    harness, following = about_to_start(), follower()
    harness.handle(c.Persisted(harness.leader.ledger.version))
    assert not harness.say("b", p.TakenOver(epoch=harness.leader.epoch))
    commands = harness.say("b", p.TakenOver(epoch=harness.leader.epoch + 1))
    assert commands[-1] == c.Done("")
    sent = {type(each.message) for each in commands if isinstance(each, c.Send)}
    assert sent == {p.Refused}  # and no order to stop
    following.handle(c.LeaderAt("host-a:1"))
    following.running()
    later = following.follower.knows.epoch + 1
    told, hangup, *_ = following.handle(c.LeaderAt("host-c:1", epoch=later))
    assert isinstance(told, c.Send)
    assert told.message == p.TakenOver(epoch=later)
    assert isinstance(hangup, c.Hangup)


def test_the_next_leader_waits_a_lease_for_members():
    harness = leader(known=ledger(committee=(), fenced=False))
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
        committee=(),
        fenced=False,
        round=-1,
        running=False,
        table=(),
        pending_round=0,
        pending=pending,
    )
    harness = about_to_start(known)
    harness.handle(c.Persisted(harness.leader.ledger.version))
    assert starts(harness) == 0
    harness.pass_time(71, alive="abc")
    assert starts(harness) == 3


def running(nodes: str, **config: object) -> test_leader.Harness:
    harness = test_leader.Harness(store=True, **config)
    for node in nodes:
        harness.hello(node)
    harness.pass_time(3, alive=nodes)
    harness.prepared(nodes[:3])
    harness.handle(c.Persisted(harness.leader.ledger.version))
    assert harness.leader.ledger.running
    return harness


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_store_that_is_away_costs_no_restart(restarts):
    harness = running("abcd", max_restarts=restarts)
    harness.handle(c.Holds(held=False))
    harness.pass_time(55, alive="abcd")
    assert not harness.heard("b", m.Stop)
    harness.pass_time(10, alive="abcd")
    assert len(harness.heard("b", m.Stop)) == 1
    harness.stop_all("abc", number=1)
    prepares = len(harness.heard("b", p.PrepareOrder))
    harness.pass_time(20, alive="abcd")
    assert len(harness.heard("b", p.PrepareOrder)) == prepares
    harness.handle(c.Holds(held=True))
    harness.prepared("abc")
    harness.handle(c.Persisted(harness.leader.ledger.version))
    assert (harness.leader.ledger.round, harness.leader.ledger.restarts_used) == (1, 0)


def test_a_leader_that_its_store_and_most_members_have_lost_starts_nothing():
    harness = running("abcd", min_nodes=2, max_nodes=3)
    harness.handle(c.Holds(held=False))
    for node in "bc":
        harness.lose(node)
    assert harness.heard("a", m.Stop)
    harness.stop_all("a", number=1)
    harness.pass_time(30, alive="ad")
    assert harness.leader.ledger.round == 0
    assert not harness.leader.ledger.pending
    harness.handle(c.Holds(held=True))
    harness.pass_time(15, alive="ad")
    assert harness.leader.ledger.pending


def test_a_leader_that_is_cut_off_says_so_and_charges_no_restart():
    harness = running("abcd", max_restarts=0)
    harness.handle(c.Holds(held=False))
    for node in "bcd":
        harness.pass_time(0.5, alive="a")
        harness.say(node, p.Renew(epoch=harness.leader.epoch))
    harness.pass_time(6, alive="a")
    (stop,) = harness.heard("a", m.Stop)
    assert "etcd does not answer" in stop.reason
    assert harness.leader.ledger.restarts_used == 0
    assert harness.leader.state is LeaderState.LEADING


def of_before(harness: test_leader.Harness, node: str) -> bool:
    """A launcher comes with a round that this leader knows nothing of: whether it is taken in."""
    about = {"round": 4, "birth": 3, "committee": (), "fenced": False}
    link = harness.hello(node, round=4, ledger=ledger("abcd", **about), follows=False)
    return not any(isinstance(each, p.Refused) for each in harness.said[link])


def test_one_that_has_missed_the_end_of_a_job_brings_nothing_of_it_into_the_next():
    harness = leader()
    harness.hello("x")
    assert not of_before(harness, "b")
    assert harness.leader.ledger.round == -1
    harness.pass_time(20, alive="x")
    assert not of_before(harness, "b")
    assert harness.said[harness.last_link][0].final


def test_a_job_of_which_half_are_here_goes_on_although_its_store_has_lost_everything():
    harness = leader()
    assert not of_before(harness, "b")
    assert of_before(harness, "c")
    assert harness.leader.ledger.round == 4


LEFT = ledger("bcd", round=1, birth=3, epoch=4, version=9, committee=(), fenced=False, run_id="")
OLDER = ledger("abc", round=0, birth=3, epoch=4, version=3, committee=(), fenced=False)


@pytest.mark.parametrize("before", ["", "abc"])
@pytest.mark.parametrize("store", [True, False])
def test_who_comes_with_an_old_state_of_a_start_has_the_leader_go_on_from_what_was_left(
    store, before
):
    """Nobody had answered, so that the job was about to begin anew.

    That there is no committee any more may be what the launcher has missed.
    """
    left = msgspec.structs.replace(LEFT, leader="a")  # whose file it is
    harness = test_leader.Harness(known=left, store=store)
    assert harness.leader.ledger.round == -1
    harness.hello("a", ledger=msgspec.structs.replace(OLDER, before=committee(before)))
    assert harness.leader.state is LeaderState.RECOVERING
    assert (harness.leader.ledger.round, harness.leader.ledger.table) == (1, LEFT.table)


@pytest.mark.parametrize(
    "left",
    [
        LEFT,
        p.ended(LEFT),
        p.Ledger(run_id="job", epoch=4, version=9, pending_round=0, pending=table("xyz")),
    ],
)
def test_one_of_a_start_before_what_was_left_brings_nothing_of_it(left):
    harness = leader(known=left)
    before = msgspec.structs.replace(OLDER, birth=2)
    harness.hello("a", ledger=before, follows=False)
    harness.hello("b", ledger=before, follows=False)
    assert harness.leader.ledger.round == -1
    harness.pass_time(20)
    harness.hello("a", ledger=before, follows=False)
    (refused, *_) = harness.said[harness.last_link]
    assert isinstance(refused, p.Refused)
    assert refused.final


def test_of_those_that_come_to_an_erased_store_the_newest_state_counts():
    harness = leader()
    about = {"birth": 3, "epoch": 4, "committee": (), "fenced": False}
    harness.hello("b", ledger=ledger("abc", version=9, pending_round=1, **about), follows=False)
    harness.hello("c", ledger=ledger("abc", version=3, **about))
    assert (harness.leader.ledger.round, harness.leader.ledger.pending_round) == (0, -1)
    harness.hello("b", ledger=ledger("abc", version=9, pending_round=1, **about))
    assert (harness.leader.ledger.round, harness.leader.ledger.pending_round) == (0, 1)


def next_leader(stops_s: float, nodes: str, *, of: str = "abc") -> test_leader.Harness:
    """Leads after node c, which was lost; these nodes of the last round are here, and spares."""
    known = ledger(of, committee=(), fenced=False, leader="c", replaceable=True)
    harness = test_leader.Harness(known=known, store=True, lost="c", stops_s=stops_s)
    lost_s = stops_s and stops_s + 1
    for node in nodes:
        harness.hello(node, round=0, running=True, ledger=known, stops_s=lost_s)
    for node in "def":
        harness.hello(node)
    harness.pass_time(2.1, alive=nodes + "def")
    harness.stop_all(nodes, number=1)
    harness.pass_time(0.1, alive=nodes + "def")
    harness.prepared([seat.node for seat in harness.leader.ledger.pending])
    harness.handle(c.Persisted(harness.leader.ledger.version))
    return harness


@pytest.mark.parametrize(
    ("stops_s", "nodes", "of", "waits_s"),
    [
        (0.0, "ab", "abc", 0.0),  # its launcher has ended
        (3.0, "ab", "abc", 4.0),  # as the one says that has lost it last
        (3.0, "ab", "abcxy", 70.0),  # most members may be with it, where a store is away
        (0.0, "ab", "abcxy", 8.0),
    ],
)
def test_how_long_ranks_of_the_leader_before_may_live(stops_s, nodes, of, waits_s):
    harness = next_leader(stops_s, nodes, of=of)
    if waits_s:
        harness.pass_time(waits_s - 2.5, alive="abdef")
        assert starts(harness) == 0
    harness.pass_time(2, alive="abdef")
    assert starts(harness) == 3


def test_a_launcher_with_another_program_takes_no_part_in_a_running_job():
    harness = running("abc")
    harness.leader.config = replace(harness.leader.config, program="train.py")
    link = harness.hello("x", program="other.py", follows=False)
    (refused,) = [each for each in harness.said[link] if isinstance(each, p.Refused)]
    assert refused.final
    harness.hello("y", program="train.py")
    assert harness.heard("y", p.Welcome)


def test_members_hear_at_once_that_they_can_be_replaced():
    harness = running("abc")
    assert not any(each.replaceable for each in harness.heard("b", p.Beat))
    harness.hello("d")
    assert harness.heard("b", p.Beat)[-1].replaceable


def follower(**config: object) -> test_follower.Harness:
    return test_follower.Harness(endpoints=(), store="etcd://e:1", **config)


def test_there_is_nowhere_to_look_until_the_store_says_it():
    harness = follower()
    assert not harness.all(c.Dial)
    harness.handle(c.LeaderAt("host-a:1"))
    assert harness.last(c.Dial).address == "host-a:1"
    harness.welcome()
    assert harness.follower.state is FollowerState.FOLLOWING
    assert not [each for each in harness.handle(c.LeaderAt("host-a:1")) if each]


def test_gives_up_with_what_the_store_has_said():
    harness = follower(give_up_s=30.0)
    harness.handle(c.LeaderAt("", "etcd at e:1: no answer in time"))
    harness.pass_time(31)
    reason = harness.last(c.GiveUp).reason
    assert reason == "no coordinator for 30 s (etcd://e:1): etcd at e:1: no answer in time"


def test_a_new_leader_is_followed_at_once_and_the_ranks_go_on():
    harness = follower()
    harness.handle(c.LeaderAt("host-a:1"))
    harness.running()
    harness.handle(c.Closed(harness.link, "reset"))
    assert harness.follower.state is FollowerState.AWAY
    harness.handle(c.LeaderAt(""))
    harness.handle(c.LeaderAt("host-c:1"))
    assert harness.last(c.Dial).address == "host-c:1"
    harness.welcome(epoch=5, leader="c")
    assert harness.follower.state is FollowerState.FOLLOWING
    harness.pass_time(2)
    assert not harness.all(c.StopRanks)


@pytest.mark.parametrize("known", ["", "host-c:1"])
def test_whom_the_store_names_is_tried_when_the_connection_breaks_later(known):
    harness = follower()
    harness.handle(c.LeaderAt("host-a:1"))
    harness.running()
    harness.handle(c.LeaderAt(known))
    assert harness.follower.state is FollowerState.FOLLOWING
    harness.handle(c.Closed(harness.link, "reset"))
    assert harness.last(c.Dial).address == (known or "host-a:1")


def test_who_cannot_reach_the_store_finds_the_leader_through_members():
    harness = follower()
    harness.handle(c.LeaderAt("host-a:1"))
    harness.running()
    harness.handle(c.Closed(harness.link, "reset"))
    harness.handle(c.LeaderAt("", "etcd at e:1: no answer in time"))
    for _ in range(5):
        harness.handle(c.Closed(harness.link, "refused"))
        harness.pass_time(1.1)
    assert {each.address for each in harness.all(c.Dial)} == {"host-a:1", "host-c:1"}
    refused = p.Refused(reason="this node does not lead the job", leader="host-d:1")
    harness.handle(c.Opened(harness.link))
    harness.says(refused)
    harness.pass_time(0.1)
    assert harness.last(c.Dial).address == "host-d:1"


def test_another_leader_is_followed_although_the_one_before_is_heard():
    harness = follower()
    harness.handle(c.LeaderAt("host-a:1", epoch=1))
    harness.running()
    harness.handle(c.LeaderAt("host-c:1", epoch=1))
    assert harness.follower.state is FollowerState.FOLLOWING
    harness.handle(c.LeaderAt("host-c:1", epoch=5))
    assert harness.last(c.Dial).address == "host-c:1"
    assert harness.follower.leader_stops_s(harness.now) > 3
    harness.welcome(epoch=5, leader="c")
    harness.pass_time(2)
    assert not harness.all(c.StopRanks)


def test_the_store_learns_that_the_leader_is_missed_and_how():
    harness = follower()
    harness.handle(c.LeaderAt("host-a:1"))
    harness.handle(c.Closed(harness.link, "refused", ended=True))
    assert harness.all(c.Missed) == [c.Missed()]
    harness.pass_time(0.1)
    harness.running()
    assert harness.last(c.Found)
    harness.handle(c.Closed(harness.link, "reset"))
    assert harness.last(c.Missed) == c.Missed(lost=True, turn=0)
    harness.handle(c.Closed(harness.link, "refused", ended=True))
    assert harness.last(c.Missed) == c.Missed(lost=True, ended="host-a:1", turn=0)


def test_a_leader_that_leads_no_more_was_not_lost():
    harness = follower()
    harness.handle(c.LeaderAt("host-a:1"))
    harness.running()
    harness.says(p.Refused(reason="its node leaves"))
    assert harness.last(c.Missed) == c.Missed(turn=0)


def test_ranks_do_not_outlive_an_agent_that_stands_still():
    harness = follower()
    assert harness.follower.ranks_outlive_s(harness.now) == 0
    harness.handle(c.LeaderAt("host-a:1"))
    harness.running()
    assert 5 < harness.follower.ranks_outlive_s(harness.now) < 6
