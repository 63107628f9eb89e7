from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.lead.seats import committee, ledger, seat, table
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.follower import Follower, FollowerState
from undaunted.coordinator.lead.register import Member
from undaunted.coordinator.lead.tables import Tables
from undaunted.coordinator.lead.times import Durations
from undaunted.coordinator.policy import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

S = 1_000_000_000
EPOCH = 1


def prepared(nodes: str = "abc", **changes: object) -> p.Ledger:
    """Round 0 of these nodes is being prepared; it becomes `ledger()` when it is started."""
    about = {
        "round": -1,
        "running": False,
        "version": 2,
        "table": (),
        "fenced": False,
        "pending_round": 0,
        "pending": table(nodes),
        "pending_fenced": changes.get("committee", True) != (),
    }
    return ledger("abc", **{**about, **changes})


def started(
    number: int,
    seat: int,
    *,
    epoch: int = EPOCH,
    version: int = 3,
    prepared: int = 2,
    round: int = 0,  # noqa: A002 - called so everywhere
    replaceable: bool = False,
) -> p.Order:
    """The order to start a round of nodes with two ranks each."""
    start = m.Start("b", round, seat, 3, 2 * seat, 2, 6, 3, "host-a", 7)
    change = p.Started(version=version, prepared=prepared, replaceable=replaceable)
    return p.Order(number=number, epoch=epoch, command=start, change=change)


def stopped(number: int, *, epoch: int = EPOCH, **change: Any) -> p.Order:
    """The order to stop round 0."""
    stop = m.Stop("b", 0, "x", 2)
    return p.Order(number=number, epoch=epoch, command=stop, change=p.Stopped(**change))


class Harness:
    """A follower of node b, with a clock and timers that fire in order."""

    def __init__(self, node: str = "b", **config: object) -> None:
        about = {
            "node": node,
            "incarnation": f"{node}1",
            "slots": 2,
            "endpoints": ("host-a:1",),
            "address": f"host-{node}:1",
        }
        self.follower = Follower(c.FollowerConfig(**{**about, **config}))
        self.now = 100 * S
        self.timers: dict[str, int] = {}
        self.out: list[c.FollowerCommand] = []
        self.handle(c.Begin())

    def handle(self, event: c.FollowerEvent) -> list[c.FollowerCommand]:
        commands = self.follower.handle(event, self.now)
        for command in commands:
            if isinstance(command, c.SetTimer):
                self.timers[command.name] = self.now + round(command.delay_s * S)
        self.out += commands
        return commands

    def pass_time(self, seconds: float) -> list[c.FollowerCommand]:
        """Let timers fire for so long; return what came out."""
        end, before = self.now + round(seconds * S), len(self.out)
        while True:
            due = [(at, name) for name, at in self.timers.items() if at <= end]
            if not due:
                self.now = end
                return self.out[before:]
            at, name = min(due)
            self.now = max(self.now, at)
            del self.timers[name]
            self.handle(c.TimerFired(name))

    def last(self, kind: type) -> c.FollowerCommand:
        return [each for each in self.out if isinstance(each, kind)][-1]

    def all(self, kind: type) -> list[c.FollowerCommand]:
        return [each for each in self.out if isinstance(each, kind)]

    @property
    def link(self) -> int:
        return self.last(c.Dial).link

    def says(self, message: p.Message) -> list[c.FollowerCommand]:
        return self.handle(c.Received(self.link, message))

    def welcome(self, epoch: int = EPOCH, leader: str = "a") -> list[c.FollowerCommand]:
        self.handle(c.Opened(self.link))
        return self.says(p.Welcome(epoch=epoch, leader=leader, lease_s=5.0))

    def start(
        self, number: int = 1, *, replaceable: bool = False, **changes: object
    ) -> list[c.FollowerCommand]:
        self.says(p.Learn(epoch=EPOCH, ledger=prepared(**changes)))
        self.says(p.Beat(epoch=EPOCH, sent=self.now))
        return self.says(
            started(
                number=number,
                epoch=EPOCH,
                version=3,
                prepared=2,
                round=0,
                seat="abc".find(self.follower.config.node),
                replaceable=replaceable,
            )
        )

    def running(self, **about: Any) -> Harness:
        self.welcome()
        self.start(**about)
        return self

    def stops_after(self) -> float:
        """In how many seconds its ranks are stopped; the leader says nothing any more."""
        before = self.now
        while not self.all(c.StopRanks):
            self.pass_time(0.1)
            assert self.now - before < 200 * S
        return round((self.now - before) / S, 1)

    def others_say(self, **lost: bool) -> list[c.FollowerCommand]:
        commands = []
        for node, has in lost.items():
            about = {"node": node, "incarnation": f"{node}1", "epoch": EPOCH, "round": 0}
            answer = p.MissAnswer(**about, lost=has)
            commands += self.handle(c.Answered(node, answer))
        return commands


def kinds(commands: list[c.FollowerCommand]) -> dict[str, int]:
    count: dict[str, int] = defaultdict(int)
    for command in commands:
        count[type(command).__name__] += 1
    return count


def test_introduces_itself_and_renews():
    harness = Harness()
    assert harness.last(c.Dial).address == "host-a:1"
    hello = harness.handle(c.Opened(harness.link))[0].message
    assert (hello.node, hello.incarnation, hello.slots, hello.round) == ("b", "b1", 2, -1)
    harness.says(p.Welcome(epoch=EPOCH, leader="a", lease_s=6.0))
    sent = harness.pass_time(4.5)
    renewed = [each.message for each in sent if isinstance(each, c.Send)]
    assert [each.epoch for each in renewed] == [EPOCH, EPOCH]
    assert renewed[1].sent - renewed[0].sent == 2 * S


def test_a_connection_on_which_nobody_answers_is_given_up():
    harness = Harness()
    harness.handle(c.Opened(harness.link))
    silent = harness.link
    harness.pass_time(5.1)
    assert harness.last(c.Hangup).link == silent
    assert harness.link > silent


def test_dials_again_with_growing_pauses():
    harness = Harness()
    pauses = []
    for _ in range(8):
        began = harness.now
        harness.handle(c.Closed(harness.link, "refused"))
        before = harness.link
        while harness.link == before:
            harness.pass_time(0.05)
        pauses.append(round((harness.now - began) / S, 2))
    assert pauses == sorted(pauses)
    assert pauses[0] <= 0.1
    assert 1.0 <= pauses[-1] <= 1.1


def test_gives_up_without_a_coordinator():
    harness = Harness(give_up_s=10.0)
    harness.handle(c.Closed(harness.link, "connection refused"))
    assert not harness.all(c.GiveUp)
    for _ in range(20):
        harness.pass_time(1)
        harness.handle(c.Closed(harness.link, "connection refused"))
    assert "host-a:1" in harness.last(c.GiveUp).reason
    assert "connection refused" in harness.last(c.GiveUp).reason
    assert harness.follower.state is FollowerState.ENDED
    assert harness.follower.leader == ""


def test_the_first_search_for_a_coordinator_may_take_longer():
    harness = Harness(give_up_s=10.0, first_give_up_s=30.0)
    for _ in range(29):
        harness.handle(c.Closed(harness.link, "connection refused"))
        harness.pass_time(1)
    assert not harness.all(c.GiveUp)
    harness.pass_time(2)
    assert "no coordinator for 30 s" in harness.last(c.GiveUp).reason
    assert not harness.last(c.GiveUp).lost


def test_later_searches_have_their_own_limit():
    harness = Harness(give_up_s=10.0, first_give_up_s=1000.0).running()
    harness.handle(c.Tell(m.NodeStopped("b", 0)))
    for _ in range(11):
        harness.handle(c.Closed(harness.link, "no route to host"))
        harness.pass_time(1)
    assert "no coordinator for 10 s" in harness.last(c.GiveUp).reason
    assert harness.last(c.GiveUp).lost


def test_a_misfit_ends_it_after_a_while():
    harness = Harness()
    while not harness.all(c.GiveUp):
        harness.pass_time(1)
        harness.handle(c.Closed(harness.link, "the token is another one", refused=True))
    assert 10 <= harness.now / S - 100 < 13
    assert harness.last(c.GiveUp).reason == "the token is another one"
    assert len(harness.all(c.Say)) == 1


@pytest.mark.parametrize(("lease_s", "patience_s"), [(5.0, 10), (20.0, 40)])
def test_a_name_that_stays_taken_ends_it_after_two_leases(lease_s, patience_s):
    harness = Harness(lease_s=lease_s)
    while not harness.all(c.GiveUp):
        harness.pass_time(1)
        harness.handle(c.Opened(harness.link))
        harness.says(p.Refused(reason="the name is taken", taken=True))
    assert patience_s <= harness.now / S - 100 < patience_s + 3
    assert harness.last(c.GiveUp).reason == "the name is taken"


def test_a_coordinator_that_is_not_there_yet_is_worth_no_line():
    harness = Harness()
    for _ in range(4):
        harness.handle(c.Closed(harness.link, "connection refused"))
        harness.pass_time(0.5)
    assert not harness.all(c.Say)
    harness.pass_time(2)
    harness.handle(c.Closed(harness.link, "connection refused"))
    assert "connection refused" in harness.last(c.Say).text


def test_who_gives_up_says_how_the_coordinator_was_lost():
    harness = Harness(give_up_s=20.0).running()
    harness.pass_time(5.1)
    harness.handle(c.Closed(harness.link, "no route to host"))
    harness.pass_time(5)
    assert "the ranks are stopped" in harness.last(c.Say).text
    harness.handle(c.Tell(m.NodeStopped("b", 0)))
    for _ in range(25):
        harness.handle(c.Closed(harness.link, "no route to host"))
        harness.pass_time(1)
    reason = harness.last(c.GiveUp).reason
    assert "host-a:1 is gone: it has not answered for 5 s; the job may go on without" in reason


def test_final_refusal_ends_it():
    harness = Harness()
    harness.handle(c.Opened(harness.link))
    harness.says(p.Refused(reason="the job has ended", final=True))
    assert harness.last(c.GiveUp).reason == "the job has ended"


def test_refusal_with_a_leader_leads_there():
    harness = Harness()
    harness.handle(c.Opened(harness.link))
    harness.says(p.Refused(reason="not me", leader="host-c:1"))
    harness.pass_time(0)
    assert harness.last(c.Dial).address == "host-c:1"


def test_a_leader_that_wants_the_tables_gets_them_at_once():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    address = harness.last(c.Dial).address

    def told() -> tuple[bool, bool]:
        harness.handle(c.Opened(harness.link))
        hello = harness.last(c.Send).message
        return bool(hello.ledger.table), hello.brief

    assert told() == (False, True)
    harness.says(p.Refused(reason="all of it", tables=True))
    assert harness.last(c.Dial).address == address
    assert told() == (True, False)
    harness.says(p.Welcome(epoch=EPOCH, leader="a", lease_s=5.0))
    harness.handle(c.Closed(harness.link, "reset"))
    assert told() == (False, True), "the next one may know them"


def test_a_leader_that_leaves_says_where_its_followers_look_first():
    harness = Harness()
    harness.welcome()
    harness.start()
    harness.says(p.Refused(reason="the node has left", leader="host-c:1"))
    assert harness.last(c.Dial).address == "host-c:1"
    assert harness.follower.running


def test_orders_are_delivered_once_and_in_order():
    harness = Harness()
    harness.welcome()
    assert kinds(harness.start(number=4))["Deliver"] == 1
    assert not harness.start(number=4)
    assert not harness.start(number=3)
    assert harness.follower.running
    assert harness.follower.round == 0


def test_orders_of_another_epoch_are_ignored():
    harness = Harness()
    harness.welcome(epoch=7)
    assert not harness.start(number=1)


def test_a_spare_learns_the_table_without_starting():
    harness = Harness("x")
    harness.welcome()
    assert not harness.start()
    assert not harness.follower.running
    assert harness.follower.knows.ledger == ledger(
        "abc", pending_round=0, pending_fenced=True, birth=EPOCH
    )


def test_a_prepared_table_is_handed_on_and_acknowledged():
    harness = Harness()
    harness.welcome()
    harness.says(p.Learn(epoch=EPOCH, ledger=prepared(version=9)))
    delivered = harness.says(p.PrepareOrder(number=1, epoch=EPOCH, version=9, seat=1))
    assert delivered == [c.Prepare(0, 9, group_rank=1)]
    sent = harness.handle(c.TableKnown(1, 9, "host-b", 4321))
    assert sent[0].message == p.Prepared(
        epoch=EPOCH, version=9, round=1, master_addr="host-b", master_port=4321
    )


def test_a_table_without_this_node_is_acknowledged_at_once():
    harness = Harness("x")
    harness.welcome()
    harness.says(p.Learn(epoch=EPOCH, ledger=prepared(version=9)))
    sent = harness.says(p.PrepareOrder(number=1, epoch=EPOCH, version=9))
    assert [each.message.version for each in sent] == [9]


def test_a_table_that_has_been_replaced_is_not_acknowledged():
    harness = Harness()
    harness.welcome()
    harness.says(p.Learn(epoch=EPOCH, ledger=prepared(version=9)))
    assert not harness.says(p.PrepareOrder(number=1, epoch=EPOCH, version=8))


def test_a_node_that_does_not_know_a_table_connects_again_and_names_what_it_has():
    harness = Harness().running()
    known = harness.follower.knows.ledger
    wrong = p.Learn(epoch=EPOCH, ledger=p.brief(known), table=b"another")
    assert kinds(harness.says(wrong))["Hangup"] == 1
    assert harness.follower.knows.ledger == known
    harness.handle(c.Opened(harness.link))
    hello = harness.last(c.Send).message
    assert hello.tables == Tables().of(known)


def test_a_table_is_known_though_the_ledger_with_it_was_not_taken():
    """It came before this node followed under that epoch, and the leader does not know that."""
    harness = Harness()
    harness.welcome()
    early = ledger("abx", epoch=EPOCH + 1)
    harness.says(p.Learn(epoch=EPOCH + 1, ledger=early))
    assert harness.follower.knows.ledger == p.NO_LEDGER
    harness.says(p.Welcome(epoch=EPOCH + 1, leader="a", lease_s=5.0))
    digest = Tables().digest(early.table)
    harness.says(p.Learn(epoch=EPOCH + 1, ledger=p.brief(early), table=digest))
    assert harness.follower.knows.ledger == early


def test_a_start_of_a_table_that_is_not_known_is_not_carried_out():
    harness = Harness()
    harness.welcome()
    harness.says(p.Learn(epoch=EPOCH, ledger=ledger("abc", version=7, round=3)))
    assert not harness.start()
    assert not harness.follower.running


def test_it_is_carried_out_when_it_comes_again_after_the_ledger():
    harness = Harness()
    harness.welcome()
    other = ledger("abc", version=7, round=3)
    harness.says(p.Learn(epoch=EPOCH, ledger=other))
    harness.start(number=5)
    harness.says(p.Learn(epoch=EPOCH, ledger=ledger("abc", epoch=EPOCH + 1, version=8)))
    assert kinds(harness.start(number=5))["Deliver"] == 1


def test_what_is_said_of_a_hang_says_how_often_the_node_has_gone_on():
    harness = Harness().running()
    hang, failure = m.HangSuspected("b", 0), m.NodeFailed("b", 0, "hangs", hang=True)

    def told():
        sent = [*harness.handle(c.Tell(hang)), *harness.handle(c.Tell(failure))]
        return [each.message.event.gone_on for each in sent]

    assert told() == [0, 0]
    go_on = p.Order(number=7, epoch=EPOCH, command=m.GoOn("b", 0))
    assert kinds(harness.says(go_on)) == {"Deliver": 1}
    assert harness.says(go_on) == []
    assert told() == [1, 1]


def test_an_order_of_another_epoch_than_the_ledger_changes_nothing_in_it():
    """Members have not agreed to the leader yet; versions of two leaders say nothing."""
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    harness.welcome(epoch=EPOCH + 1)
    known = harness.follower.knows.ledger
    stop = stopped(
        number=9, epoch=EPOCH + 1, version=12,
        restarts_used=2, excluded={},
    )  # fmt: skip
    assert kinds(harness.says(stop)) == {"Deliver": 1}
    assert harness.follower.knows.ledger == known
    start = started(
        number=10, epoch=EPOCH + 1, version=13, prepared=known.version, round=1,
        seat=1,
    )  # fmt: skip
    assert harness.says(start) == []
    assert harness.follower.knows.ledger == known


def test_what_a_stop_says_goes_into_the_ledger():
    harness = Harness().running()
    stop = stopped(
        number=9,
        epoch=EPOCH,
        version=12,
        restarts_used=2,
        excluded={"c": "asked for"},
    )
    assert kinds(harness.says(stop)) == {"Deliver": 1}
    known = harness.follower.knows.ledger
    assert (known.version, known.running, known.restarts_used) == (12, False, 2)
    assert known.excluded == {"c": "asked for"}


def test_reports_are_sent_again_until_acknowledged():
    harness = Harness().running()
    harness.handle(c.Tell(m.NodeFinished("b", 0)))
    harness.handle(c.Tell(m.NodeStopped("b", 0)))
    harness.says(p.Beat(epoch=EPOCH, acknowledged=1))
    harness.handle(c.Closed(harness.link, "reset"))
    again = [each.message for each in harness.welcome() if isinstance(each, c.Send)]
    assert [each.event for each in again if isinstance(each, p.Report)] == [m.NodeStopped("b", 0)]


def test_a_later_leader_gets_all_reports_of_the_round():
    harness = Harness().running()
    harness.handle(c.Tell(m.NodeFinished("b", 0)))
    harness.says(p.Beat(epoch=EPOCH, acknowledged=1))
    harness.handle(c.Closed(harness.link, "reset"))
    again = [each.message for each in harness.welcome(epoch=5) if isinstance(each, c.Send)]
    assert [each.number for each in again if isinstance(each, p.Report)] == [1]


def test_silence_of_the_leader_is_noticed_after_the_lease():
    harness = Harness().running()
    harness.pass_time(4.9)
    assert harness.follower.state is FollowerState.FOLLOWING
    harness.pass_time(0.2)
    assert harness.follower.state is FollowerState.AWAY
    assert "not answered for 5 s" in harness.last(c.Say).text
    left_s = harness.follower.lease_left_s(harness.now + 2 * S)
    assert left_s == pytest.approx(-2.1), "people are told for how long it has been silent"


def test_before_there_is_a_leader_there_is_no_lease():
    harness = Harness()
    assert harness.follower.lease_left_s(harness.now) is None


def test_beats_keep_the_leader():
    harness = Harness().running()
    for _ in range(5):
        harness.pass_time(3)
        harness.says(p.Beat(epoch=EPOCH, sent=harness.now - S))
    assert harness.follower.state is FollowerState.FOLLOWING


def test_words_that_were_read_late_do_not_keep_the_leader():
    """The machine stood still, and its kernel took in what the leader said at the beginning."""
    harness = Harness().running()
    harness.says(p.Beat(epoch=EPOCH, sent=harness.now))
    harness.now += 12 * S
    harness.says(p.Order(number=9, epoch=EPOCH, command=m.Say("spare nodes: x")))
    assert harness.follower.state is FollowerState.FOLLOWING
    assert kinds(harness.pass_time(2))["StopRanks"] == 1, "the others may have gone on"


def test_all_that_stood_still_together_go_on():
    """The leader answers what is asked of it once it goes on."""
    harness = Harness().running()
    harness.says(p.Beat(epoch=EPOCH, sent=harness.now))
    harness.now += 60 * S
    asked = [each.message for each in harness.pass_time(1) if isinstance(each, c.Send)]
    assert isinstance(asked[-1], p.Renew)
    harness.says(p.Beat(epoch=EPOCH, sent=asked[-1].sent))
    assert not kinds(harness.pass_time(3)).get("StopRanks")
    assert harness.follower.state is FollowerState.FOLLOWING


def test_a_leader_that_has_gone_on_meanwhile_need_not_be_asked():
    harness = Harness().running()
    harness.now += 60 * S
    harness.handle(c.Closed(harness.link, "nothing was heard of it for 5 s"))
    assert kinds(harness.pass_time(0))["StopRanks"] == 1


def test_a_welcome_that_was_read_late_is_none():
    harness = Harness()
    harness.handle(c.Opened(harness.link))
    harness.now += 12 * S
    harness.says(p.Welcome(epoch=EPOCH, leader="a", lease_s=5.0))
    harness.pass_time(0)
    assert harness.follower.state is FollowerState.AWAY


def test_a_reset_that_was_seen_late_does_not_prolong_an_old_world():
    harness = Harness().running()
    harness.now += 12 * S
    harness.handle(c.Closed(harness.link, "reset"))
    assert kinds(harness.pass_time(0))["StopRanks"] == 1


def test_a_reset_just_before_the_end_of_the_lease_does_not_make_it_longer():
    harness = Harness().running()
    harness.now += 4 * S  # nothing has been heard for so long
    harness.handle(c.Closed(harness.link, "reset"))
    assert harness.stops_after() == 1


def test_ranks_stop_once_a_majority_counts_on_the_leader_no_more_though_it_is_heard():
    harness = Harness().running()
    began = harness.now
    for left_s in (4.5, 3.5, 2.5, 1.5, 0.5):
        assert not harness.all(c.StopRanks)
        harness.says(p.Beat(epoch=EPOCH, sent=harness.now, majority_s=left_s))
        harness.pass_time(1)
    assert "too few nodes" in harness.last(c.StopRanks).reason
    assert 4.5 <= (harness.now - began) / S <= 5
    assert kinds(harness.pass_time(1))["StopRanks"] == 0, "once is enough"


@pytest.mark.parametrize(
    ("keepers", "left_s", "renewals"),
    [
        ("abc", 4.5, 4),  # all nodes count on the leader as long as the committee does
        ("acd", 4.5, 2),
        ("acd", 2.0, 4),  # soon the ranks are stopped unless it says more
    ],
)
def test_the_committee_renews_more_often_and_so_does_who_stops_soon(keepers, left_s, renewals):
    harness = Harness().running(committee=committee(keepers))
    harness.says(p.Beat(epoch=EPOCH, sent=harness.now, majority_s=left_s))
    harness.pass_time(1.6)
    before = len(harness.out)
    harness.says(p.Beat(epoch=EPOCH, sent=harness.now, majority_s=left_s))
    harness.pass_time(2.2)
    sent = [each.message for each in harness.out[before:] if isinstance(each, c.Send)]
    assert len([each for each in sent if isinstance(each, p.Renew) and each.sent]) == renewals


def test_a_leader_that_no_quorum_has_agreed_to_does_not_make_the_lease_longer():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    harness.pass_time(1)
    harness.welcome(epoch=9)  # the same leader, which was started again, and is cut off
    for _ in range(7):
        assert not harness.all(c.StopRanks)
        harness.pass_time(0.5)
        harness.says(p.Beat(epoch=9, acknowledged=0, sent=harness.now))
    assert harness.stops_after() == 0.8, "a leader that is heard says first what it lacks"
    assert "too few nodes" in harness.last(c.StopRanks).reason


def test_ranks_go_on_under_a_leader_that_a_quorum_agrees_to_in_time():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    harness.pass_time(1)
    harness.welcome(epoch=9)
    harness.pass_time(1)
    harness.says(p.Learn(epoch=9, ledger=ledger("abc", epoch=9, version=4)))
    for _ in range(9):
        harness.pass_time(1)
        harness.says(p.Beat(epoch=9, acknowledged=0, sent=harness.now))
    assert not harness.all(c.StopRanks)


def test_ranks_of_a_minority_are_stopped_in_time():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    assert harness.stops_after() == 3
    assert "too few nodes" in harness.last(c.StopRanks).reason
    assert harness.last(c.StopRanks).grace_s == 2.0


def test_ranks_of_a_member_with_a_vote_stop_when_its_lease_is_over_whoever_misses_the_leader():
    harness = Harness().running()
    harness.others_say(a=True, c=True)
    assert harness.stops_after() == 5
    assert "may go on without this node" in harness.last(c.StopRanks).reason
    assert harness.last(c.StopRanks).grace_s == 2.0
    assert [type(each) for each in harness.out if isinstance(each, c.Send | c.Hangup)][-2:] == [
        c.Send,
        c.Hangup,
    ]
    assert isinstance(harness.last(c.Send).message, p.Miss | p.Report)


def started_again(harness: Harness, nodes: str, **about: int) -> None:
    """Launchers that know of no round listen where members did."""
    for _ in range(5):
        for node in nodes:
            answer = p.MissAnswer(
                node=node, incarnation=f"{node}2", epoch=0, lost=True, **{"round": -1, **about}
            )
            harness.handle(c.Answered(node, answer))
        harness.pass_time(1)


def have_ended(harness: Harness, nodes: str) -> None:
    """Nobody listens where members did."""
    for _ in range(5):
        for node in nodes:
            harness.handle(c.Answered(node, None, ended=True))
        harness.pass_time(1)


@pytest.mark.parametrize("gone", [started_again, have_ended])
def test_a_member_ends_when_the_others_have_for_sure(gone: Callable[[Harness, str], None]) -> None:
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    gone(harness, "a")
    assert not harness.all(c.GiveUp), "c has a vote"
    gone(harness, "ac")
    assert "a, c" in harness.last(c.GiveUp).reason


def test_a_member_that_is_cut_off_does_not_end_soon() -> None:
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    for _ in range(10):
        for node in "ac":
            harness.handle(c.Answered(node, None))
        harness.pass_time(1)
    assert not harness.all(c.GiveUp)


def test_a_member_does_not_end_as_long_as_one_of_the_others_knows_of_a_round():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    for _ in range(5):
        started_again(harness, "a")
        started_again(harness, "c", round=3)
    assert not harness.all(c.GiveUp)


def test_a_spare_asks_members_in_turns_who_leads():
    harness = Harness(node="x").running()
    harness.pass_time(6)
    asked = {each.node for each in harness.all(c.Ask)}
    assert asked == set("abc")
    answer = p.MissAnswer(
        node="c", incarnation="c1", epoch=9, lost=False, leader="host-b:1", round=0
    )
    harness.handle(c.Answered("c", answer))
    harness.pass_time(0)
    assert harness.last(c.Dial).address == "host-b:1"
    harness.handle(c.Closed(harness.link, "refused"))
    harness.pass_time(20)
    assert not [e for e in harness.all(c.Ask) if isinstance(e.message, p.Claim)]


def test_nobody_looks_for_a_leader_that_begins_the_job_anew():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    about = {"node": "a", "incarnation": "a2", "epoch": 9, "lost": False, "leader": "new:1"}
    harness.handle(c.Answered("a", p.MissAnswer(**about, round=-1)))
    harness.pass_time(0.5)
    assert "new:1" not in {each.address for each in harness.all(c.Dial)}
    harness.handle(c.Answered("a", p.MissAnswer(**about, round=0)))
    harness.pass_time(0.5)
    assert "new:1" in {each.address for each in harness.all(c.Dial)}


@pytest.mark.parametrize(
    ("replaceable", "reset", "store", "seconds"),
    [
        (True, False, "", 5),
        (False, False, "", 65),
        (True, True, "", 60),  # its process has ended, and replaces nobody
        (True, True, "etcd", 5),  # another one may lead in a moment
        (False, True, "etcd", 60),
    ],
)
def test_without_votes_ranks_stop_early_where_they_can_be_replaced(
    replaceable: bool, reset: bool, store: str, seconds: float
) -> None:
    harness = Harness(store=store).running(replaceable=replaceable, committee=(), fenced=False)
    if reset:
        harness.handle(c.Closed(harness.link, "reset"))
    assert harness.stops_after() == seconds


def test_a_connection_that_nobody_has_ended_is_silence_before_the_lease_is_over():
    harness = Harness().running(replaceable=True, committee=(), fenced=False)
    harness.pass_time(1)
    harness.handle(c.Closed(harness.link, "connection timed out", silent=True))
    assert harness.follower.state is FollowerState.AWAY
    assert harness.stops_after() == 4


def test_a_node_that_can_be_replaced_from_now_on_says_that_it_knows():
    harness = Harness().running(committee=(), fenced=False)
    assert not harness.last(c.Send).message.replaceable
    harness.says(p.Beat(epoch=EPOCH, sent=harness.now, replaceable=True))
    harness.pass_time(2)
    assert harness.last(c.Send).message.replaceable
    harness.says(p.Beat(epoch=EPOCH, sent=harness.now))
    assert harness.stops_after() == 5, "in that round it stays so"


def test_a_claim_is_granted_once_the_lease_is_over_and_says_how_long_ranks_may_live():
    """Ranks of the leader's node, should it live: it stops them as leases of a quorum are over."""
    harness = Harness().running()
    claim = p.Claim(node="c", incarnation="c1", epoch=9, ledger=ledger("abc"))
    harness.pass_time(4.9)
    harness.handle(c.Asked(1, claim))
    assert not harness.last(c.Answer).message.granted
    harness.pass_time(1.1)
    harness.handle(c.Asked(2, claim))
    grant = harness.last(c.Answer).message
    assert grant.granted
    assert grant.stops_s == pytest.approx(Durations(5.0).stopped_s - 1.0)


def test_who_is_made_the_leader_waits_for_the_one_who_has_lost_the_leader_last():
    harness = Harness().running()
    harness.pass_time(5.5)
    harness.others_say(c=True)
    claim = next(e.message for e in harness.pass_time(1) if is_claim(e))
    grant = p.Grant(
        node="c",
        incarnation="c1",
        epoch=claim.epoch,
        granted=True,
        ledger=ledger("abc"),
        stops_s=2.75,
    )
    harness.handle(c.Answered("c", grant))
    assert harness.last(c.Lead).stops_s == 2.75


def test_a_leader_where_nobody_listens_any_more_has_ended_and_so_have_its_ranks():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    harness.others_say(c=True)
    ended = c.Closed(harness.last(c.Dial).link, "refused", ended=True)
    claim = next(e.message for e in [*harness.handle(ended), *harness.pass_time(0)] if is_claim(e))
    harness.handle(
        c.Answered(
            "c",
            p.Grant(
                node="c",
                incarnation="c1",
                epoch=claim.epoch,
                granted=True,
                ledger=ledger("abc"),
                stops_s=2.75,
            ),
        )
    )
    assert harness.last(c.Lead).stops_s == 0


def test_members_that_ask_have_lost_the_leader_too():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    harness.handle(c.Asked(1, p.Miss(node="c", incarnation="c1", epoch=EPOCH)))
    assert any(is_claim(each) for each in harness.pass_time(0.8)), "nobody else was asked since"


def is_claim(command: c.FollowerCommand) -> bool:
    return isinstance(command, c.Ask) and isinstance(command.message, p.Claim)


def test_it_says_what_the_leader_has_answered():
    """So the leader knows until when it is counted on."""
    harness = Harness().running()
    sent = harness.now
    harness.pass_time(0.5)
    harness.says(p.Beat(epoch=EPOCH, sent=sent + 1))
    told = harness.last(c.Send).message
    assert (told.sent, told.answered) == (0, sent + 1)


def test_the_first_member_claims_after_a_reset_and_leads_by_quorum():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    harness.others_say(c=True)
    claimed = harness.pass_time(0.9)
    claim = next(
        e.message for e in claimed if isinstance(e, c.Ask) and isinstance(e.message, p.Claim)
    )
    assert claim.epoch > EPOCH
    assert not harness.all(c.Lead)
    grant = p.Grant(
        node="c", incarnation="c1", epoch=claim.epoch, granted=True, ledger=ledger("abc")
    )
    harness.handle(c.Answered("c", grant))
    lead = harness.last(c.Lead)
    assert (lead.epoch, lead.lost) == (claim.epoch, "a")
    assert lead.stops_s == pytest.approx(Durations(5.0).stopped_s - 0.9)
    harness.pass_time(0)
    assert harness.last(c.Dial).address == "host-b:1"


def test_a_new_leader_knows_which_members_are_silent():
    harness = Harness().running()
    harness.follower.knows.ledger = ledger("abcde")
    harness.handle(c.Closed(harness.link, "reset"))
    for _ in range(4):
        harness.others_say(c=True, d=True)
        harness.handle(c.Answered("e", None))
        harness.pass_time(0.9)
    claim = harness.last(c.Ask).message
    for name in "cd":
        about = {"node": name, "incarnation": f"{name}1", "epoch": claim.epoch}
        grant = p.Grant(granted=True, ledger=ledger("abcde"), **about)
        harness.handle(c.Answered(name, grant))
    assert harness.last(c.Lead).silent == ("e",)


def test_no_answer_of_the_dead_leader_does_not_undo_a_claim():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    while not [e for e in harness.all(c.Ask) if isinstance(e.message, p.Claim)]:
        harness.others_say(c=True)
        harness.handle(c.Answered("a", None))
        harness.pass_time(0.3)
    claim = harness.last(c.Ask).message
    harness.handle(c.Answered("a", None))
    grant = p.Grant(
        node="c", incarnation="c1", epoch=claim.epoch, granted=True, ledger=ledger("abc")
    )
    harness.handle(c.Answered("c", grant))
    assert harness.last(c.Lead).epoch == claim.epoch


def test_a_claim_that_nobody_answers_is_made_again():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    for _ in range(8):
        harness.others_say(c=True)
        harness.pass_time(1)
    claims = [e.message.epoch for e in harness.all(c.Ask) if isinstance(e.message, p.Claim)]
    assert len(set(claims)) > 2
    assert claims == sorted(claims)


def test_a_member_whose_turn_is_late_claims_as_well():
    harness = Harness("e", incarnation="e1")
    harness.welcome()
    harness.says(p.Learn(epoch=EPOCH, ledger=prepared("abcde", committee=committee("abcde"))))
    harness.says(
        started(
            number=1, epoch=EPOCH, version=3, prepared=2, round=0, seat=4,
        )
    )  # fmt: skip
    harness.handle(c.Closed(harness.link, "reset"))
    for _ in range(40):
        harness.others_say(b=True, c=True, d=True)
        harness.pass_time(0.3)
    claims = {e.message.epoch for e in harness.all(c.Ask) if isinstance(e.message, p.Claim)}
    assert len(claims) >= 2


def test_ranks_do_not_wait_for_ever_for_a_leader():
    harness = Harness("c", give_up_s=20.0).running()
    harness.handle(c.Closed(harness.link, "reset"))
    for _ in range(30):
        harness.others_say(b=True)
        harness.pass_time(1)
    assert harness.all(c.StopRanks)


def test_told_to_stop_without_a_leader_and_without_ranks():
    harness = Harness()
    harness.handle(c.Tell(m.Preempted("b", 15, "SIGTERM")))
    assert harness.last(c.Leave).reason == "the launcher received SIGTERM"


def test_told_to_stop_while_the_leader_is_away():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    told = m.Preempted("b", 2, "SIGINT")
    stop = harness.handle(c.Tell(told))[0]
    assert (stop.signal, stop.grace_s) == (2, 1800.0)
    harness.handle(c.Tell(m.NodeFailed("b", 0, "x")))
    assert not harness.all(c.Leave)
    harness.handle(c.Tell(m.NodeStopped("b", 0)))
    assert harness.all(c.Leave)


@pytest.mark.parametrize(("agree", "leaves"), [("preempted", True), ("restart", False)])
def test_a_leader_that_is_lost_while_the_job_ends_is_not_waited_for_long(
    agree: str, *, leaves: bool
) -> None:
    harness = Harness(give_up_s=300.0).running()
    stop = m.Stop("b", 0, "the launcher on node a received SIGTERM", 1800.0, agree=agree)
    change = p.Stopped(version=4, restarts_used=0)
    harness.says(p.Order(number=2, epoch=EPOCH, command=stop, change=change))
    harness.handle(c.Closed(harness.link, "reset"))
    assert not harness.all(c.Leave), "its ranks save"
    harness.handle(c.Tell(m.NodeStopped("b", 0)))
    for _ in range(100):
        harness.pass_time(1)
    assert [each.reason for each in harness.all(c.Leave)] == (
        ["the launcher on node a received SIGTERM"] if leaves else []
    )


def test_who_has_been_made_the_leader_does_not_claim_again_at_once():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    while not [e for e in harness.all(c.Ask) if isinstance(e.message, p.Claim)]:
        harness.others_say(c=True)
        harness.pass_time(0.3)
    claim = harness.last(c.Ask).message
    grant = p.Grant(
        node="c", incarnation="c1", epoch=claim.epoch, granted=True, ledger=ledger("abc")
    )
    harness.handle(c.Answered("c", grant))
    for _ in range(6):
        harness.others_say(c=True)
        harness.pass_time(0.3)
    assert len(harness.all(c.Lead)) == 1
    assert harness.last(c.Ask).message == claim or isinstance(harness.last(c.Ask).message, p.Miss)


def test_who_has_no_vote_cannot_stop_a_claim():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    while not [e for e in harness.all(c.Ask) if isinstance(e.message, p.Claim)]:
        harness.others_say(c=True)
        harness.pass_time(0.3)
    claim = harness.last(c.Ask).message
    refusal = p.Grant(node="a", incarnation="a2", epoch=0, granted=False)
    harness.handle(c.Answered("a", refusal))
    grant = p.Grant(
        node="c", incarnation="c1", epoch=claim.epoch, granted=True, ledger=ledger("abc")
    )
    harness.handle(c.Answered("c", grant))
    assert harness.last(c.Lead).epoch == claim.epoch


LATER = 90_000_000


def claims(harness: Harness) -> p.Claim:
    """Node b claims to lead, as node c has lost the leader too."""
    before = len(harness.all(c.Ask))
    while not isinstance(message := harness.last(c.Ask).message, p.Claim):
        harness.others_say(c=True)
        harness.pass_time(0.1)
    assert len(harness.all(c.Ask)) > before
    return message


def refused() -> Harness:
    """Its claim is refused, as another one has claimed a later epoch at about that time."""
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    claims(harness)
    refusal = p.Grant(node="c", incarnation="c1", epoch=LATER, granted=False, ledger=None)
    harness.handle(c.Answered("c", refusal))
    assert not harness.all(c.Lead)
    return harness


def test_a_refused_claim_is_followed_by_one_of_a_later_epoch():
    harness = refused()
    harness.pass_time(1.1)
    assert claims(harness).epoch > LATER


def test_who_was_refused_for_a_later_claim_grants_that_one():
    """On a network that is slow it comes after the refusal."""
    harness = refused()
    claim = p.Claim(node="c", incarnation="c1", epoch=LATER, ledger=p.brief(ledger("abc")))
    answer, *_ = harness.handle(c.Asked(1, claim))
    assert answer.message.granted


def test_a_grant_counts_that_is_long_under_way():
    """The others are asked meanwhile whether they hear the leader again."""
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    epoch = claims(harness).epoch
    harness.pass_time(1.7)
    grant = p.Grant(node="c", incarnation="c1", epoch=epoch, granted=True)
    harness.handle(c.Answered("c", grant))
    assert harness.last(c.Lead).epoch == epoch


def large(nodes: int, me: int, keep: int = 3) -> Harness:
    """A node of a large table that has lost its leader; the first few keep the register."""
    names = [f"n{number:03}" for number in range(nodes)]
    seats = tuple(seat(name, rank) for rank, name in enumerate(names))
    keepers = tuple(Member(each.node, each.incarnation, each.address) for each in seats[:keep])
    harness = Harness(names[me])
    harness.welcome(leader=names[0])
    harness.says(p.Learn(epoch=EPOCH, ledger=prepared(pending=seats, committee=keepers)))
    harness.says(
        started(
            number=1, epoch=EPOCH, version=3, prepared=2, round=0, seat=me,
        )
    )  # fmt: skip
    harness.handle(c.Closed(harness.link, "reset"))
    return harness


def test_in_a_large_job_the_committee_asks_each_other_and_all_others_ask_one_of_it():
    assert [ask.node for ask in large(80, 1).all(c.Ask)] == ["n000", "n002"]
    harness = large(80, 40)
    harness.pass_time(2)
    assert [ask.node for ask in harness.all(c.Ask)] == ["n000", "n001", "n002"]


def test_nobody_else_claims():
    harness = large(80, 40)
    for _ in range(20):
        harness.others_say(n000=True, n001=True, n002=True)
        harness.pass_time(0.3)
    assert not [each for each in harness.all(c.Ask) if isinstance(each.message, p.Claim)]


def test_a_member_heard_of_after_the_claim_was_set_has_its_turn_first():
    harness = large(64, 3, keep=64)

    def claims_after(seconds: float) -> bool:
        for number in (*range(4, 50), 1):
            name = f"n{number:03}"
            about = {"node": name, "incarnation": f"{name}1", "epoch": EPOCH, "round": 0}
            answer = p.MissAnswer(**about, lost=True)
            harness.handle(c.Answered(name, answer))
        harness.now += round(seconds * S)
        out = harness.handle(c.TimerFired("claim"))
        return any(isinstance(each, c.Ask) and isinstance(each.message, p.Claim) for each in out)

    assert not claims_after(0.4)
    assert not claims_after(0.3)
    assert harness.timers["claim"] == harness.now + S // 2
    assert claims_after(0.5)


def test_no_claim_while_others_hear_the_leader():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    for _ in range(10):
        harness.others_say(c=False)
        harness.handle(c.Closed(harness.link, "unreachable"))
        harness.pass_time(0.5)
    assert not [e for e in harness.all(c.Ask) if isinstance(e.message, p.Claim)]
    assert harness.all(c.StopRanks)


def test_grants_one_claim_per_epoch_and_only_without_a_leader():
    harness = Harness("c").running()
    claim = p.Claim(node="b", incarnation="b1", epoch=50, ledger=ledger("abc"))
    assert not harness.handle(c.Asked(1, claim))[0].message.granted
    harness.handle(c.Closed(harness.link, "reset"))
    assert harness.handle(c.Asked(2, claim))[0].message.granted
    assert not harness.handle(c.Asked(3, claim))[0].message.granted
    harness.handle(c.Closed(harness.link, "refused"))
    harness.pass_time(0)
    assert harness.last(c.Dial).address == "host-b:1"


def test_whose_claim_was_granted_is_looked_for_where_only_its_claim_says():
    """A spare of which this node has not heard is elected by a committee that it does not know."""
    harness = Harness("c").running()
    harness.follower.knows.ledger = ledger("ac")
    harness.handle(c.Closed(harness.link, "reset"))
    claim = p.Claim(node="d", incarnation="d1", epoch=50, ledger=p.brief(ledger("acd", version=9)))
    assert harness.handle(c.Asked(1, claim))[0].message.granted
    dialled = []
    for _ in range(12):  # the first connections are cut
        harness.handle(c.Closed(harness.link, "unreachable"))
        harness.pass_time(1)
        dialled.append(harness.last(c.Dial).address)
    assert dialled[0] == "host-d:1"
    assert dialled.count("host-d:1") > 1
    assert "host-a:1" in dialled


def grants_to(harness: Harness, node: str, epoch: int) -> bool:
    claim = p.Claim(node=node, incarnation=f"{node}1", epoch=epoch, ledger=ledger("abcde"))
    answer = harness.handle(c.Asked(1, claim))[0]
    assert isinstance(answer, c.Answer)
    assert isinstance(answer.message, p.Grant)
    return answer.message.granted


def test_of_claims_that_cross_each_other_one_is_granted():
    """Two members claim at a moment: the first that is elected is not replaced by the other."""
    harness = Harness("c").running()
    harness.follower.knows.ledger = ledger("abcde")
    harness.handle(c.Closed(harness.link, "reset"))
    assert grants_to(harness, "b", 50)
    assert not grants_to(harness, "d", 60)
    assert grants_to(harness, "b", 70), "it was too few for the first time"
    harness.pass_time(Durations(5.0).other_succeeds_s)
    assert grants_to(harness, "d", 80), "the other one had the time to lead"


def test_who_was_elected_grants_no_claim_before_it_follows_itself():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    while not [e for e in harness.all(c.Ask) if isinstance(e.message, p.Claim)]:
        harness.others_say(c=True)
        harness.pass_time(0.3)
    claim = harness.last(c.Ask).message
    granted = p.Grant(node="c", incarnation="c1", epoch=claim.epoch, granted=True)
    harness.handle(c.Answered("c", granted))
    assert harness.all(c.Lead)
    later = p.Claim(node="c", incarnation="c1", epoch=claim.epoch + 9, ledger=ledger("abc"))
    assert not harness.handle(c.Asked(1, later))[0].message.granted


def test_does_not_grant_to_one_who_knows_less():
    harness = Harness("c").running()
    harness.handle(c.Closed(harness.link, "reset"))
    claim = p.Claim(node="b", incarnation="b1", epoch=50, ledger=ledger("abc", version=2))
    grant = harness.handle(c.Asked(2, claim))[0].message
    assert (grant.granted, grant.ledger) == (False, harness.follower.knows.ledger)


def test_an_earlier_leader_is_not_followed_after_a_promise():
    harness = Harness("c").running()
    harness.handle(c.Closed(harness.link, "reset"))
    claim = p.Claim(node="b", incarnation="b1", epoch=50, ledger=ledger("abc"))
    harness.handle(c.Asked(2, claim))
    assert not harness.welcome(epoch=EPOCH)[1:]
    assert harness.follower.state is FollowerState.AWAY
    harness.says(p.Welcome(epoch=60, leader="a", lease_s=5.0))
    assert harness.follower.state is FollowerState.FOLLOWING


def test_without_votes_ranks_go_on_for_the_away_timeout():
    harness = Harness(away_timeout_s=30.0)
    harness.welcome()
    harness.start(committee=(), fenced=False)
    harness.handle(c.Closed(harness.link, "reset"))
    assert not harness.all(c.Ask)
    harness.pass_time(29.9)
    assert not harness.all(c.StopRanks)
    harness.pass_time(0.2)
    assert harness.all(c.StopRanks)


def test_a_launcher_that_was_told_to_stop_does_not_take_over():
    harness = Harness().running()
    harness.handle(c.Closed(harness.link, "reset"))
    harness.handle(c.Tell(m.Preempted("b", 15, "SIGTERM")))
    for _ in range(6):
        harness.others_say(a=True, c=True)
        harness.pass_time(1)
    asked = [each.message for each in harness.all(c.Ask)]
    assert asked
    assert not [each for each in asked if isinstance(each, p.Claim)]


def test_without_votes_what_was_under_way_for_long_is_no_new_lease():
    harness = Harness(away_timeout_s=30.0)
    harness.welcome()
    harness.start(committee=(), fenced=False)
    sent = harness.now
    harness.says(p.Beat(epoch=EPOCH, sent=sent))
    harness.pass_time(4.0)
    harness.says(p.Learn(epoch=EPOCH, ledger=prepared(committee=(), fenced=False)))  # late
    harness.pass_time(30.9)
    assert not harness.all(c.StopRanks)
    harness.pass_time(0.2)
    assert harness.all(c.StopRanks)


def test_the_end_is_final():
    harness = Harness().running()
    end = p.Order(number=2, epoch=EPOCH, command=m.End("b", m.Outcome.FAILED, "x"))
    assert kinds(harness.says(end)) == {"Deliver": 1, "Hangup": 1}
    assert not harness.pass_time(1000)
    answer = harness.handle(c.Asked(1, p.Miss(node="c", incarnation="c1", epoch=EPOCH)))[0].message
    assert not answer.lost
    assert answer.leader == "host-a:1", "others hear of the end there"


def test_what_comes_from_an_earlier_connection_is_ignored():
    harness = Harness()
    old = harness.link
    harness.handle(c.Closed(old, "refused"))
    harness.pass_time(1)
    assert harness.link != old
    assert not harness.handle(c.Opened(old))
    assert not harness.handle(c.Closed(old, "late"))


@pytest.mark.parametrize(
    "message",
    [p.Renew(epoch=1), p.Miss(node="x", incarnation="x", epoch=3), p.Beat(epoch=99)],
)
def test_messages_that_make_no_sense_change_nothing(message):
    harness = Harness().running()
    assert harness.says(message) == []
    assert harness.follower.state is FollowerState.FOLLOWING


def asked_by_a_leader(**changes: object) -> c.Asked:
    about = {"node": "z", "incarnation": "", "epoch": 9, "leader": "host-z:1", "round": 4}
    return c.Asked(1, p.Miss(**{**about, **changes}))


def test_who_leads_a_job_that_has_not_begun_joins_the_one_that_has():
    harness = Harness("a")
    harness.welcome(epoch=99)
    commands = harness.handle(asked_by_a_leader())
    assert c.StandDown() in commands
    harness.pass_time(0.1)
    assert harness.last(c.Dial).address == "host-z:1"


@pytest.mark.parametrize(("birth", "epoch", "joins"), [(1, 9, False), (7, 9, True), (7, 0, False)])
def test_of_two_jobs_that_have_begun_the_later_epoch_goes_on(birth: int, epoch: int, joins: bool):
    harness = Harness()
    harness.welcome()
    harness.follower.knows.ledger = ledger("abc", birth=1)
    commands = harness.handle(asked_by_a_leader(birth=birth, epoch=epoch))
    assert (c.StandDown() in commands) is joins


@pytest.mark.parametrize(("epoch", "joins"), [(9, True), (0, False)])
def test_so_it_does_in_one_job_whose_members_have_no_votes(epoch: int, joins: bool):
    harness = Harness()
    harness.welcome()
    harness.follower.knows.ledger = ledger("ab", birth=1)
    commands = harness.handle(asked_by_a_leader(birth=1, epoch=epoch))
    assert (c.StandDown() in commands) is joins


@pytest.mark.parametrize(("birth", "joins"), [(1, True), (7, False)])
def test_who_follows_nobody_joins_any_leader_of_its_job(birth: int, joins: bool):
    harness = Harness().running(committee=(), fenced=False)
    harness.handle(c.Closed(harness.link, "reset"))
    harness.follower.knows.ledger = ledger("ab", birth=1)
    harness.handle(asked_by_a_leader(birth=birth, epoch=0))
    harness.pass_time(0)
    assert (harness.last(c.Dial).address == "host-z:1") is joins


def test_a_leader_that_is_not_sure_moves_nobody():
    harness = Harness("a")
    harness.welcome()
    assert len(harness.handle(asked_by_a_leader(leader=""))) == 1
    assert len(harness.handle(asked_by_a_leader(round=-1))) == 1


def test_a_machine_that_stood_still_says_so():
    harness = Harness().running()
    harness.now += 30 * S
    harness.pass_time(2)
    assert harness.last(c.StopRanks).reason == (
        f"the agent of node {harness.follower.config.node}, or its machine, stood still for "
        "30.0 s, and the others may go on without it"
    )
    harness.welcome(epoch=EPOCH + 5)
    harness.handle(c.Closed(harness.link, "reset"))
    assert "stood still" not in harness.last(c.Say).text


@pytest.mark.parametrize(("node", "lasts_s"), [("a", 35.5), ("b", 5.5)])
def test_ranks_outlive_the_agent_of_a_leader_whom_nobody_replaces(node: str, lasts_s: float):
    """Others replace those of another node, if the job can do without it."""
    harness = Harness(node, away_timeout_s=30.0)
    harness.running(replaceable=True, committee=(), fenced=False)
    assert harness.follower.ranks_outlive_s(harness.now) == lasts_s


@pytest.mark.parametrize("failed", [True, False])
def test_ranks_that_have_failed_are_not_said_to_go_on(failed: bool):
    harness = Harness(away_timeout_s=30.0).running(committee=(), fenced=False)
    if failed:
        harness.handle(c.Tell(m.NodeFailed("b", 1, "rank 1: exit code 1")))
    harness.handle(c.Closed(harness.link, "reset"))
    (said,) = [each.text for each in harness.all(c.Say) if "is gone" in each.text]
    assert said.endswith("the ranks go on") == (not failed)


def test_a_lease_that_is_over_is_found_when_it_would_be_renewed():
    """While a machine is suspended, its clock goes on and its timers do not."""
    harness = Harness().running()
    harness.now += 3600 * S
    harness.handle(c.TimerFired("renew"))
    harness.pass_time(2)
    assert harness.follower.state is FollowerState.AWAY
    assert "stood still" in harness.last(c.Say).text


def test_who_waits_for_the_only_coordinator_says_where_to_start_it_and_how_long_it_still_waits():
    harness = Harness(away_timeout_s=30.0, give_up_s=300.0)
    harness.running(committee=(), fenced=False)
    harness.handle(c.Closed(harness.link, "reset"))
    harness.pass_time(31)
    assert harness.all(c.StopRanks)
    harness.handle(c.Tell(m.NodeStopped("b", 0)))
    said = [one.text for one in harness.all(c.Say)]
    assert any("start its launcher on host-a again" in line for line in said)
    harness.pass_time(299)
    left = [one.text for one in harness.all(c.Say) if " left" in one.text]
    assert len(left) >= 4
    assert len(set(left)) == len(left)
    assert not harness.all(c.GiveUp)


def test_nobody_is_told_to_wait_for_a_coordinator_that_is_back():
    harness = Harness(away_timeout_s=30.0, give_up_s=300.0)
    harness.running(committee=(), fenced=False)
    harness.handle(c.Closed(harness.link, "reset"))
    harness.pass_time(31)
    harness.pass_time(10)
    harness.welcome()
    said = len(harness.all(c.Say))
    harness.says(p.Learn(epoch=EPOCH, ledger=ledger("abc", committee=())))
    harness.timers.pop("silence", None)
    harness.handle(c.TimerFired("waits"))
    assert not [one for one in harness.all(c.Say)[said:] if " left" in one.text]
