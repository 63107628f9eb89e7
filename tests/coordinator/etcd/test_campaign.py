from __future__ import annotations

from dataclasses import replace

import pytest

from undaunted.coordinator.etcd import campaign_messages as e
from undaunted.coordinator.etcd.campaign import Campaign, State
from undaunted.coordinator.protocol import Ledger

S = 1_000_000_000
LEASE_S = 6.0
MINE = e.Leadership("host-me:1", "me", lease=5, revision=40)
OTHER = e.Leadership("host-a:1", "a1", lease=7, revision=30)
LEDGER = Ledger(run_id="job", epoch=40, version=2)


class Harness:
    """A campaign with a clock, and timers that fire in order."""

    def __init__(self) -> None:
        self.campaign = Campaign("me", "host-me:1", LEASE_S)
        self.now = 100 * S
        self.timers: dict[str, int] = {}
        self.out: list[e.Command] = []
        self.handle(e.Begin())

    def handle(self, *events: e.Event) -> list[e.Command]:
        """Feed events; return what the last one causes, without timers."""
        commands: list[e.Command] = []
        for event in events:
            commands = self.campaign.handle(event, self.now)
            self.out += commands
            for command in commands:
                if isinstance(command, e.SetTimer):
                    self.timers[command.name] = self.now + round(command.delay_s * S)
        return [each for each in commands if not isinstance(each, e.SetTimer)]

    def pass_time(self, seconds: float, *, renewed: bool = False) -> list[e.Command]:
        """Let timers fire; ``renewed``: etcd answers when the lease is to be renewed."""
        end, before = self.now + round(seconds * S), len(self.out)
        while due := [(at, name) for name, at in self.timers.items() if at <= end]:
            at, name = min(due)
            self.now = max(self.now, at)
            del self.timers[name]
            commands = self.handle(e.TimerFired(name))
            if renewed and e.Renew(MINE.lease) in commands:
                self.handle(e.Renewed(MINE.lease, self.now))
        self.now = end
        return [each for each in self.out[before:] if not isinstance(each, e.SetTimer)]

    def leading(self, ledger: Ledger | None = None) -> Harness:
        self.handle(e.Seen(None, 39), e.Won(MINE.lease, MINE.revision, self.now, ledger))
        self.handle(e.Seen(MINE, 40))
        assert self.campaign.state is State.LEADING
        return self


def away(during: str, **more: object) -> e.Failed:
    return e.Failed(during, "etcd at e:1: no answer in time", **more)


# --- who leads ------------------------------------------------------------------------------------


def test_follows_who_leads():
    harness = Harness()
    assert harness.out == [e.Look()]
    assert harness.handle(e.Seen(OTHER, 35)) == [e.Follow("host-a:1")]
    assert harness.campaign.state is State.FOLLOWING


def test_leads_where_nobody_does_and_follows_itself():
    harness = Harness()
    assert harness.handle(e.Seen(None, 39)) == [e.Follow(""), e.Claim()]
    won = e.Won(MINE.lease, MINE.revision, harness.now, LEDGER)
    led = harness.handle(won)
    assert [type(each) for each in led] == [e.Lead, e.Follow]
    assert led[0].ledger == LEDGER
    assert led[1] == e.Follow("host-me:1")


def test_the_epoch_is_the_revision_of_the_key():
    harness = Harness().leading(replace_epoch(30))
    (lead,) = [each for each in harness.out if isinstance(each, e.Lead)]
    assert lead.epoch == 40


def test_the_epoch_rises_also_with_another_etcd():
    harness = Harness().leading(replace_epoch(10_000))
    (lead,) = [each for each in harness.out if isinstance(each, e.Lead)]
    assert lead.epoch > 10_000


def replace_epoch(epoch: int) -> Ledger:
    return Ledger(run_id="job", epoch=epoch, version=2)


def test_somebody_else_is_faster():
    harness = Harness()
    harness.handle(e.Seen(None, 29))
    assert harness.handle(e.Seen(OTHER, 30)) == []
    assert harness.handle(e.NotWon(OTHER)) == [e.Follow("host-a:1")]
    assert harness.handle(e.Seen(None, 31)) == [e.Follow(""), e.Claim()]


def test_somebody_was_faster_and_is_gone_already():
    harness = Harness()
    harness.handle(e.Seen(None, 29))
    assert harness.handle(e.NotWon(None)) == [e.Follow(""), e.Claim()]


def test_its_own_key_that_it_does_not_know_of_is_given_back():
    harness = Harness()
    harness.handle(e.Seen(None, 29), away("claim"))
    assert harness.pass_time(1) == [e.Look()]
    assert e.Release(MINE.lease) in harness.handle(e.Seen(MINE, 41))
    assert harness.handle(e.Seen(None, 42)) == [e.Follow(""), e.Claim()]


# --- while it leads -------------------------------------------------------------------------------


def test_the_lease_is_renewed_in_time():
    harness = Harness().leading()
    assert harness.pass_time(60, renewed=True) == 30 * [e.Renew(MINE.lease)]
    assert harness.campaign.state is State.LEADING


def test_the_lease_counts_from_when_it_was_asked_for():
    harness = Harness()
    harness.handle(e.Seen(None, 39))
    asked_ns, harness.now = harness.now, harness.now + 2 * S
    harness.handle(e.Won(MINE.lease, MINE.revision, asked_ns, None))
    harness.pass_time(3.9)
    assert harness.campaign.state is State.LEADING
    said = harness.pass_time(0.2)
    assert e.StandDown("etcd could not be reached for 6 s") in said


def test_away_longer_than_the_lease():
    harness = Harness().leading()
    harness.pass_time(2)
    (say,) = harness.handle(away("renew"))
    assert "nothing new is started until it answers" in say.text
    assert harness.handle(away("renew")) == []
    said = harness.pass_time(4.1)
    reason = "etcd could not be reached for 6 s"
    assert [e.StandDown(reason), e.Release(MINE.lease), e.Look()] == said[-3:]
    assert harness.campaign.state is State.LOOKING
    assert harness.handle(away("look"))[0] == e.Follow("", "etcd at e:1: no answer in time")


def test_back_within_the_lease():
    harness = Harness().leading()
    harness.pass_time(2)
    harness.handle(away("renew"))
    assert harness.pass_time(1)[0] == e.Renew(MINE.lease)
    back = harness.handle(e.Renewed(MINE.lease, harness.now))
    assert back == [e.Say("etcd answers again")]
    harness.pass_time(5.9)
    assert harness.campaign.state is State.LEADING


@pytest.mark.parametrize(
    "event",
    [e.LeaseGone(MINE.lease), e.NotWritten(), e.Seen(None, 41), e.Seen(OTHER, 50)],
    ids=["lease", "write", "key", "other"],
)
def test_stands_down_when_the_lead_is_gone(event):
    harness = Harness().leading()
    stand_down, *more = harness.handle(event)
    assert isinstance(stand_down, e.StandDown)
    assert more == [e.Release(MINE.lease), e.Look()]


def test_a_leader_that_has_stood_down_by_itself_makes_room():
    harness = Harness().leading()
    assert harness.handle(e.StepDown()) == [e.Release(MINE.lease), e.Look()]
    assert harness.handle(e.StepDown()) == []
    assert harness.handle(e.Seen(None, 41)) == [e.Follow(""), e.Claim()]


def test_what_was_true_before_it_led_does_not_count():
    harness = Harness().leading()
    assert harness.handle(e.Seen(None, 39)) == []
    assert harness.handle(e.LeaseGone(OTHER.lease)) == []
    assert harness.campaign.state is State.LEADING


def test_answers_that_come_after_it_has_stood_down():
    harness = Harness().leading()
    harness.handle(e.Keep(LEDGER), e.LeaseGone(MINE.lease))
    for event in (e.Written(2), e.NotWritten(), e.Renewed(MINE.lease, harness.now)):
        assert harness.handle(event) == []
    assert harness.handle(e.Keep(LEDGER)) == []
    late = e.Won(9, 60, harness.now, None)
    assert harness.handle(late) == [e.Release(9)]


# --- the ledger -----------------------------------------------------------------------------------


def version(number: int) -> Ledger:
    return Ledger(run_id="job", epoch=40, version=number)


def test_one_ledger_is_written_at_a_time_and_the_newest_next():
    harness = Harness().leading()
    assert harness.handle(e.Keep(version(1))) == [e.Write(version(1), 40)]
    assert harness.handle(e.Keep(version(2)), e.Keep(version(3))) == []
    assert harness.handle(e.Written(1)) == [e.Persisted(1), e.Write(version(3), 40)]
    assert harness.handle(e.Written(3)) == [e.Persisted(3)]


def test_a_write_that_failed_is_made_again_unless_there_is_a_newer_one():
    harness = Harness().leading()
    harness.handle(e.Keep(version(1)), away("write", ledger=version(1)))
    assert e.Write(version(1), 40) in harness.pass_time(0.5)
    harness.handle(e.Keep(version(2)), away("write", ledger=version(1)))
    writes = [each for each in harness.pass_time(1.1) if isinstance(each, e.Write)]
    assert writes == [e.Write(version(2), 40)]


# --- trouble, and the end -------------------------------------------------------------------------


def test_away_at_the_start():
    harness = Harness()
    why = "etcd at e:1: no answer in time"
    first = harness.handle(away("look"))
    assert first == [e.Follow("", why), e.Say(f"{why}; it is tried again and again")]
    for _ in range(10):
        assert harness.pass_time(1.1) == [e.Look()]
        assert harness.handle(away("look")) == [e.Follow("", why)]
    harness.pass_time(1.1)
    back = harness.handle(e.Seen(OTHER, 30))
    assert back == [e.Say("etcd answers again"), e.Follow("host-a:1")]


def test_etcd_does_not_want_this_launcher():
    harness = Harness()
    assert harness.handle(away("look", final=True)) == [e.GiveUp(away("look").reason)]
    assert harness.handle(e.Seen(None, 3)) == []


def test_etcd_that_has_worked_before_is_not_given_up():
    harness = Harness().leading()
    (say,) = harness.handle(away("renew", final=True))
    assert isinstance(say, e.Say)
    assert harness.campaign.state is State.LEADING


def test_the_lead_is_given_back():
    harness = Harness().leading()
    assert harness.handle(e.Withdraw()) == [e.Release(MINE.lease)]
    assert harness.handle(e.Withdraw(erase=True)) == []


def test_a_job_that_is_over_leaves_no_ledger():
    harness = Harness().leading()
    assert harness.handle(e.Withdraw(erase=True)) == [e.Release(MINE.lease, 40)]


def test_who_does_not_lead_has_nothing_to_give_back():
    harness = Harness()
    harness.handle(e.Seen(None, 29))
    assert harness.handle(e.Withdraw(erase=True)) == []
    won = e.Won(MINE.lease, MINE.revision, harness.now, None)
    assert harness.handle(won) == [e.Release(MINE.lease)]
    assert harness.handle(replace(won, lease=6)) == [e.Release(6)]
