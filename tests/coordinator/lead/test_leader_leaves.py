from __future__ import annotations

import pytest

from tests.coordinator.lead import test_follower
from tests.coordinator.lead.test_leader import EPOCH, Harness
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.follower import FollowerState
from undaunted.coordinator.lead.leader import LEFT, LeaderState
from undaunted.coordinator.lead.times import STAY_S
from undaunted.coordinator.policy import messages as m


def left_alone(**config: object) -> Harness:
    """A job of two nodes and a spare, in which the node of the leader was told to leave."""
    harness = Harness(min_nodes=2, max_nodes=3, **config)
    for node in "abc":
        harness.hello(node)
    harness.pass_time(3, alive="abc")
    harness.prepared("ab")
    harness.handle(c.Persisted(harness.leader.ledger.version))
    harness.report("a", m.Preempted, 1, signal=15, signal_name="SIGTERM")
    harness.report("a", m.NodeStopped, 2)
    harness.report("b", m.NodeStopped, 1)
    assert harness.heard("a", m.End)[0].outcome is m.Outcome.PREEMPTED
    harness.lose("a", "end of file")
    return harness


def test_the_lead_is_handed_over_when_a_round_runs_without_the_node_of_the_leader():
    harness = left_alone()
    assert harness.leader.state is LeaderState.LEADING
    harness.prepared("bc")
    [told] = [each for node in "bc" for each in harness.heard(node, p.HandOver)]
    assert [seat.node for seat in told.ledger.table] == ["c", "b"]
    assert (told.epoch, told.ledger.running) == (EPOCH, True)
    kept = [each.ledger for each in harness.out if isinstance(each, c.Persist)][-1]
    assert kept.leader == "c", "who starts here again is not the leader"
    assert not harness.heard("b", p.Refused)
    harness.say("b", p.Report(number=9, event=m.NodeFailed("b", 1, "x")))
    assert harness.leader.state is LeaderState.HANDING_OVER
    harness.say("c", p.TakenOver(epoch=EPOCH))
    assert harness.said[2][-1] == p.Refused(reason=LEFT, leader="host-c:1")
    assert harness.out[-1] == c.Done("host-c:1")


@pytest.mark.parametrize("how", ["reset", "silence"])
def test_a_successor_that_does_not_answer(how: str) -> None:
    harness = left_alone()
    harness.prepared("bc")
    if how == "reset":
        harness.lose("c")
    else:
        harness.pass_time(5.1)
    assert harness.out[-1] == c.Done("host-c:1"), "it may lead all the same"
    assert harness.leader.state is LeaderState.DEPOSED


def test_who_comes_meanwhile_is_sent_on():
    harness = left_alone()
    harness.prepared("bc")
    link = harness.hello("d")
    assert harness.said[link][-1].leader == "host-c:1"


def test_a_leader_that_nobody_can_follow_does_not_stay_for_ever():
    harness = left_alone()
    harness.pass_time(STAY_S + 0.1, alive="bc")
    assert harness.out[-1] == c.Done()
    assert harness.said[2][-1] == p.Refused(reason=LEFT)


def test_nothing_is_handed_over_where_somebody_else_decides_who_leads():
    harness = left_alone(store=True)
    harness.prepared("bc")
    harness.handle(c.Persisted(harness.leader.ledger.version))
    assert not [
        each for said in harness.said.values() for each in said if isinstance(each, p.HandOver)
    ]
    assert harness.out[-1] == c.Done()


def test_a_launcher_that_leaves_before_anything_has_begun_goes_at_once():
    harness = Harness(min_nodes=2, max_nodes=2)
    harness.hello("a")
    harness.hello("b", infra_rank=None)
    harness.handle(c.Received(1, p.Report(number=1, event=m.Preempted("a", 15, "SIGTERM"))))
    assert harness.leader.state in {LeaderState.DEPOSED, LeaderState.ENDED}


# --- the other side -----------------------------------------------------------------------------


def test_a_follower_that_is_told_to_lead_does():
    harness = test_follower.Harness().running()
    known = harness.follower.knows.ledger
    out = harness.says(p.HandOver(epoch=test_follower.EPOCH, ledger=known))
    assert [each.message for each in out if isinstance(each, c.Send)] == [p.TakenOver(epoch=1)]
    [lead] = [each for each in out if isinstance(each, c.Lead)]
    assert lead.epoch > test_follower.EPOCH
    assert (lead.ledger, lead.lost) == (known, known.leader)
    assert not [each for each in out if isinstance(each, c.StopRanks)]
    harness.pass_time(0)
    assert harness.last(c.Dial).address == "host-b:1"
    harness.welcome(epoch=lead.epoch, leader="b")
    assert harness.follower.state is FollowerState.FOLLOWING


def test_a_successor_without_a_leader_of_its_own_stops_in_time():
    harness = test_follower.Harness(away_timeout_s=30.0)
    harness.welcome()
    harness.start(committee=(), fenced=False)
    harness.says(p.HandOver(epoch=test_follower.EPOCH, ledger=harness.follower.knows.ledger))
    harness.pass_time(29.9)
    assert not harness.all(c.StopRanks)
    harness.pass_time(0.2)
    assert harness.all(c.StopRanks)


def test_an_old_word_of_a_leader_that_was_replaced_is_not_heard():
    harness = test_follower.Harness().running()
    harness.says(p.HandOver(epoch=0, ledger=harness.follower.knows.ledger))
    assert not harness.all(c.Lead)
