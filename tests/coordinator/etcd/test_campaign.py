from __future__ import annotations

from dataclasses import replace

import pytest

from undaunted.coordinator.etcd import campaign
from undaunted.coordinator.etcd.campaign import Campaign, State
from undaunted.coordinator.protocol import Ledger

S = 1_000_000_000
LEASE_S = 6.0
MINE = campaign.Leadership("host-me:1", "me", lease=5, revision=40)
OTHER = campaign.Leadership("host-a:1", "a1", lease=7, revision=30)
LEDGER = Ledger(run_id="job", epoch=40, version=2)


class Harness:
    """A campaign with a clock, and timers that fire in order."""

    def __init__(self) -> None:
        self.campaign = Campaign("me", "host-me:1", LEASE_S)
        self.now = 100 * S
        self.timers: dict[str, int] = {}
        self.out: list[campaign.Command] = []
        self.handle(campaign.Begin())

    def handle(self, *events: campaign.Event) -> list[campaign.Command]:
        """Feed events; return what the last one causes, without timers."""
        commands: list[campaign.Command] = []
        for event in events:
            commands = self.campaign.handle(event, self.now)
            self.out += commands
            for command in commands:
                if isinstance(command, campaign.SetTimer):
                    self.timers[command.name] = self.now + round(command.delay_s * S)
        return [each for each in commands if not isinstance(each, campaign.SetTimer)]

    def pass_time(self, seconds: float, *, renewed: bool = False) -> list[campaign.Command]:
        """Let timers fire; ``renewed``: etcd answers when the lease is to be renewed."""
        end, before = self.now + round(seconds * S), len(self.out)
        while due := [(at, name) for name, at in self.timers.items() if at <= end]:
            at, name = min(due)
            self.now = max(self.now, at)
            del self.timers[name]
            commands = self.handle(campaign.TimerFired(name))
            if renewed and campaign.Renew(MINE.lease) in commands:
                self.handle(campaign.Renewed(MINE.lease, self.now))
        self.now = end
        return [each for each in self.out[before:] if not isinstance(each, campaign.SetTimer)]

    def leading(self, ledger: Ledger | None = None) -> Harness:
        self.handle(
            campaign.Seen(None, 39), campaign.Won(MINE.lease, MINE.revision, self.now, ledger)
        )
        self.handle(campaign.Seen(MINE, 40))
        assert self.campaign.state is State.LEADING
        return self


def away(during: str, **more: object) -> campaign.Failed:
    return campaign.Failed(during, "etcd at e:1: no answer in time", **more)


# --- who leads ------------------------------------------------------------------------------------


def test_follows_who_leads():
    harness = Harness()
    assert harness.out == [campaign.Look()]
    assert harness.handle(campaign.Seen(OTHER, 35)) == [campaign.Follow("host-a:1")]
    assert harness.campaign.state is State.FOLLOWING


def test_leads_where_nobody_does_and_follows_itself():
    harness = Harness()
    assert harness.handle(campaign.Seen(None, 39)) == [campaign.Follow(""), campaign.Claim()]
    won = campaign.Won(MINE.lease, MINE.revision, harness.now, LEDGER)
    led = harness.handle(won)
    assert [type(each) for each in led] == [campaign.Lead, campaign.Follow]
    assert led[0].ledger == LEDGER
    assert led[1] == campaign.Follow("host-me:1")


def test_the_epoch_is_the_revision_of_the_key():
    harness = Harness().leading(replace_epoch(30))
    (lead,) = [each for each in harness.out if isinstance(each, campaign.Lead)]
    assert lead.epoch == 40


def test_the_epoch_rises_also_with_another_etcd():
    harness = Harness().leading(replace_epoch(10_000))
    (lead,) = [each for each in harness.out if isinstance(each, campaign.Lead)]
    assert lead.epoch > 10_000


def replace_epoch(epoch: int) -> Ledger:
    return Ledger(run_id="job", epoch=epoch, version=2)


def test_somebody_else_is_faster():
    harness = Harness()
    harness.handle(campaign.Seen(None, 29))
    assert harness.handle(campaign.Seen(OTHER, 30)) == []
    assert harness.handle(campaign.NotWon(OTHER)) == [campaign.Follow("host-a:1")]
    assert harness.handle(campaign.Seen(None, 31)) == [campaign.Follow(""), campaign.Claim()]


def test_somebody_was_faster_and_is_gone_already():
    harness = Harness()
    harness.handle(campaign.Seen(None, 29))
    assert harness.handle(campaign.NotWon(None)) == [campaign.Follow(""), campaign.Claim()]


def test_its_own_key_that_it_does_not_know_of_is_given_back():
    harness = Harness()
    harness.handle(campaign.Seen(None, 29), away("claim"))
    assert harness.pass_time(1) == [campaign.Look()]
    assert campaign.Release(MINE.lease) in harness.handle(campaign.Seen(MINE, 41))
    assert harness.handle(campaign.Seen(None, 42)) == [campaign.Follow(""), campaign.Claim()]


# --- while it leads -------------------------------------------------------------------------------


def test_the_lease_is_renewed_in_time():
    harness = Harness().leading()
    assert harness.pass_time(60, renewed=True) == 30 * [campaign.Renew(MINE.lease)]
    assert harness.campaign.state is State.LEADING


def test_the_lease_counts_from_when_it_was_asked_for():
    harness = Harness()
    harness.handle(campaign.Seen(None, 39))
    asked_ns, harness.now = harness.now, harness.now + 2 * S
    harness.handle(campaign.Won(MINE.lease, MINE.revision, asked_ns, None))
    harness.pass_time(3.9)
    assert harness.campaign.state is State.LEADING
    said = harness.pass_time(0.2)
    assert campaign.StandDown("etcd could not be reached for 6 s") in said


def test_away_longer_than_the_lease():
    harness = Harness().leading()
    harness.pass_time(2)
    (say,) = harness.handle(away("renew"))
    assert "nothing new is started until it answers" in say.text
    assert harness.handle(away("renew")) == []
    said = harness.pass_time(4.1)
    reason = "etcd could not be reached for 6 s"
    assert [campaign.StandDown(reason), campaign.Release(MINE.lease), campaign.Look()] == said[-3:]
    assert harness.campaign.state is State.LOOKING
    assert harness.handle(away("look"))[0] == campaign.Follow("", "etcd at e:1: no answer in time")


def test_back_within_the_lease():
    harness = Harness().leading()
    harness.pass_time(2)
    harness.handle(away("renew"))
    assert harness.pass_time(1)[0] == campaign.Renew(MINE.lease)
    back = harness.handle(campaign.Renewed(MINE.lease, harness.now))
    assert back == [campaign.Say("etcd answers again")]
    harness.pass_time(5.9)
    assert harness.campaign.state is State.LEADING


@pytest.mark.parametrize(
    "event",
    [
        campaign.LeaseGone(MINE.lease),
        campaign.NotWritten(),
        campaign.Seen(None, 41),
        campaign.Seen(OTHER, 50),
    ],
    ids=["lease", "write", "key", "other"],
)
def test_stands_down_when_the_lead_is_gone(event):
    harness = Harness().leading()
    stand_down, *more = harness.handle(event)
    assert isinstance(stand_down, campaign.StandDown)
    assert more == [campaign.Release(MINE.lease), campaign.Look()]


def test_a_leader_that_has_stood_down_by_itself_makes_room():
    harness = Harness().leading()
    assert harness.handle(campaign.StepDown()) == [campaign.Release(MINE.lease), campaign.Look()]
    assert harness.handle(campaign.StepDown()) == []
    assert harness.handle(campaign.Seen(None, 41)) == [campaign.Follow(""), campaign.Claim()]


def test_what_was_true_before_it_led_does_not_count():
    harness = Harness().leading()
    assert harness.handle(campaign.Seen(None, 39)) == []
    assert harness.handle(campaign.LeaseGone(OTHER.lease)) == []
    assert harness.campaign.state is State.LEADING


def test_answers_that_come_after_it_has_stood_down():
    harness = Harness().leading()
    harness.handle(campaign.Keep(LEDGER), campaign.LeaseGone(MINE.lease))
    for event in (
        campaign.Written(2),
        campaign.NotWritten(),
        campaign.Renewed(MINE.lease, harness.now),
    ):
        assert harness.handle(event) == []
    assert harness.handle(campaign.Keep(LEDGER)) == []
    late = campaign.Won(9, 60, harness.now, None)
    assert harness.handle(late) == [campaign.Release(9)]


# --- the ledger -----------------------------------------------------------------------------------


def version(number: int) -> Ledger:
    return Ledger(run_id="job", epoch=40, version=number)


def test_one_ledger_is_written_at_a_time_and_the_newest_next():
    harness = Harness().leading()
    assert harness.handle(campaign.Keep(version(1))) == [campaign.Write(version(1), 40)]
    assert harness.handle(campaign.Keep(version(2)), campaign.Keep(version(3))) == []
    assert harness.handle(campaign.Written(1)) == [
        campaign.Persisted(1),
        campaign.Write(version(3), 40),
    ]
    assert harness.handle(campaign.Written(3)) == [campaign.Persisted(3)]


def test_a_write_that_failed_is_made_again_unless_there_is_a_newer_one():
    harness = Harness().leading()
    harness.handle(campaign.Keep(version(1)), away("write", ledger=version(1)))
    assert campaign.Write(version(1), 40) in harness.pass_time(0.5)
    harness.handle(campaign.Keep(version(2)), away("write", ledger=version(1)))
    writes = [each for each in harness.pass_time(1.1) if isinstance(each, campaign.Write)]
    assert writes == [campaign.Write(version(2), 40)]


# --- trouble, and the end -------------------------------------------------------------------------


def test_away_at_the_start():
    harness = Harness()
    why = "etcd at e:1: no answer in time"
    first = harness.handle(away("look"))
    assert first == [campaign.Follow("", why), campaign.Say(f"{why}; it is tried again and again")]
    for _ in range(10):
        assert harness.pass_time(1.1) == [campaign.Look()]
        assert harness.handle(away("look")) == [campaign.Follow("", why)]
    harness.pass_time(1.1)
    back = harness.handle(campaign.Seen(OTHER, 30))
    assert back == [campaign.Say("etcd answers again"), campaign.Follow("host-a:1")]


def test_etcd_does_not_want_this_launcher():
    harness = Harness()
    assert harness.handle(away("look", final=True)) == [campaign.GiveUp(away("look").reason)]
    assert harness.handle(campaign.Seen(None, 3)) == []


def test_etcd_that_has_worked_before_is_not_given_up():
    harness = Harness().leading()
    (say,) = harness.handle(away("renew", final=True))
    assert isinstance(say, campaign.Say)
    assert harness.campaign.state is State.LEADING


def test_the_lead_is_given_back():
    harness = Harness().leading()
    assert harness.handle(campaign.Withdraw()) == [campaign.Release(MINE.lease)]
    assert harness.handle(campaign.Withdraw(erase=True)) == []


def test_a_job_that_is_over_leaves_no_ledger():
    harness = Harness().leading()
    assert harness.handle(campaign.Withdraw(erase=True)) == [campaign.Release(MINE.lease, 40)]


def test_who_does_not_lead_has_nothing_to_give_back():
    harness = Harness()
    harness.handle(campaign.Seen(None, 29))
    assert harness.handle(campaign.Withdraw(erase=True)) == []
    won = campaign.Won(MINE.lease, MINE.revision, harness.now, None)
    assert harness.handle(won) == [campaign.Release(MINE.lease)]
    assert harness.handle(replace(won, lease=6)) == [campaign.Release(6)]
