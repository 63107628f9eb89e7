"""Candidacies of launchers that share a register in memory, in virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from simulator.virtual.loop import Loop
from tests.coordinator.etcd.stand_in import HOLD_S, StandIn, Store
from tests.coordinator.lead.seats import table
from undaunted.coordinator.etcd import candidacy
from undaunted.coordinator.etcd.candidacy import Candidacy, Launcher
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.leader import LeaderState
from undaunted.coordinator.protocol import Ledger
from undaunted.coordinator.service.participant import Participant
from undaunted.coordinator.service.register import Leads, RegisterError

if TYPE_CHECKING:
    from collections.abc import Callable

S = 1_000_000_000
LEASE_S = 5.0
LEFT = Ledger(run_id="job", epoch=30, version=2, leader="a")
AWAY = RegisterError("etcd at e:1: no answer in time")
FIRST = c.Missed(lost=True, turn=0)


class Party:
    """Launcher b: its candidacy, and what follower, leader and user have heard."""

    def __init__(self, store: Store | None = None, world: Party | None = None, **known: Any):
        name, broken = known.pop("name", "b"), known.pop("broken", {})
        self.loop: Loop = Loop() if world is None else world.loop
        self.register = StandIn(store or Store(), f"host-{name}:1", f"{name}1")
        self.register.broken = broken
        self.heard: list[tuple[object, ...]] = []
        # Of the leader here.
        self.state, self.ledger = LeaderState.LEADING, Ledger(run_id="job", epoch=7, version=9)
        self.listener: Any = Participant()
        known = {"promised": 0, "told": LEFT, **known}
        self.listener.following = SimpleNamespace(
            follower=SimpleNamespace(
                knows=SimpleNamespace(**known), leader_stops_s=lambda now: 4.0
            ),
            leader_at=lambda *what: self.heard.append(("leader at", *what)),
        )
        launcher = Launcher(name, f"{name}1", f"host-{name}:1", "job", 0, LEASE_S)
        network: Any = SimpleNamespace(now_ns=lambda: self.loop.now)
        self.candidacy = Candidacy(
            launcher,
            self.register,
            self.listener,
            network,
            self._lead,
            lambda reason: self.heard.append(("given up", reason)),
            lambda text: self.heard.append(("said", text)),
        )
        self.do(self.candidacy.begin)

    def _lead(
        self, epoch: int, ledger: Ledger, lost: str, silent: tuple[str, ...], stops_s: float
    ) -> None:
        assert not silent
        self.heard.append(("lead", epoch, ledger, lost, stops_s))
        self.listener.leading = SimpleNamespace(
            leader=self,
            holds=lambda held: self.heard.append(("held", held)),
            deposed=self._deposed,
        )

    def _deposed(self, reason: str) -> None:
        self.heard.append(("deposed", reason))
        self.state, self.listener.leading = LeaderState.DEPOSED, None
        self.candidacy.leading_is_over()

    def do(self, call: Callable[..., object], *args: object) -> Party:
        self.loop.run(call, *args)
        return self

    def missed(self, missed: c.Missed = FIRST) -> Party:
        return self.do(self.candidacy.missed, missed)

    def keep(self, version: int, **more: Any) -> Party:
        ledger = Ledger(run_id="job", version=version, **more)
        return self.do(self.candidacy.keep, ledger, lambda v: self.heard.append(("written", v)))

    def change(self, **changes: object) -> Party:
        return self.do(lambda: self.register.store.change(**changes))

    def pass_time(self, seconds: float) -> Party:
        loop = self.loop
        end = loop.now + round(seconds * S)
        while (due := loop.due_ns()) is not None and due <= end:
            loop.now = max(loop.now, due)
            loop.run(loop.fire)
        loop.now = end
        return self

    def close(self) -> Party:
        self.do(lambda: self.loop.create_task(self.candidacy.close()))
        return self.pass_time(5)

    def all(self, what: str) -> list[Any]:
        """What was heard of one kind: one value each, or all of them."""
        found = [each[1:] for each in self.heard if each[0] == what]
        return [each[0] if len(each) == 1 else each for each in found]


def led_by_a(ledger: Ledger | None = LEFT, *, held: bool = True) -> Store:
    return Store(Leads(35, 30, "host-a:1", "a1", held), ledger)


def leading(**known: Any) -> Party:
    """A launcher that leads since it has found nobody."""
    party = Party(**known).pass_time(0.5)
    assert len(party.all("lead")) == 1
    return party


# --- who leads ------------------------------------------------------------------------------------


def test_follows_who_leads():
    party = Party(led_by_a()).pass_time(60)
    assert party.heard == [("leader at", "host-a:1", "", 30)]
    assert party.register.times("claim") == 0


def test_leads_where_nobody_does_and_follows_itself():
    party = Party(Store(ledger=LEFT)).pass_time(1)
    assert party.all("lead") == [(40, LEFT, "", 0.0)]
    assert party.heard[-1] == ("leader at", "host-b:1", "", 40)
    assert party.heard[0] == ("leader at", "", "", 0)


@pytest.mark.parametrize("known", ["ledger", "promised"])
def test_the_epoch_rises_also_where_the_register_was_made_anew(known):
    later = 1 << 40
    left = Ledger(run_id="job", epoch=later if known == "ledger" else 1)
    promised = later if known == "promised" else 0
    party = Party(Store(ledger=left), promised=promised).pass_time(1)
    assert party.all("lead")[0][0] > later


def test_one_of_two_leads():
    store = Store()
    one = Party(store)
    other = Party(store, one, name="c")
    one.pass_time(60)
    (leads,) = [each for each in (one, other) if each.all("lead")]
    assert store.leads.incarnation in {"b1", "c1"}
    for each in (one, other):
        assert each.heard[-1][1] == store.leads.address
    assert leads.register.times("claim") == 1


def test_its_own_claim_whose_answer_was_lost_is_given_back():
    party = Party()
    party.register.lost.add("claim")
    while not party.register.times("claim"):
        party.pass_time(0.01)
    party.register.lost.clear()
    party.pass_time(2)
    assert party.register.times("release") == 1
    assert [each[0] for each in party.all("lead")] == [party.register.store.leads.epoch]


# --- a leader is lost -----------------------------------------------------------------------------


def test_a_leader_that_the_register_hears_of_is_not_replaced():
    assert Party(led_by_a()).missed().pass_time(60).register.times("claim") == 0


def test_a_leader_that_is_followed_is_not_replaced_when_the_register_does_not_hear_of_it():
    party = Party(led_by_a()).change(held=False).pass_time(60)
    party.missed().do(party.candidacy.found).pass_time(60)
    assert party.register.times("claim") == 0


@pytest.mark.parametrize("register_first", [True, False])
def test_a_silent_leader_is_replaced_once_register_and_follower_have_lost_it(register_first):
    party = Party(led_by_a())
    if register_first:
        party.change(held=False).missed()
    else:
        party.missed().change(held=False)
    party.pass_time(0.1)
    assert [each[2:] for each in party.all("lead")] == [("a", 4.0)]
    assert party.all("said") == ["this node takes over the coordination of the job from node a"]


def test_a_leader_whose_launcher_has_ended_is_replaced_at_once():
    party = Party(led_by_a()).missed().pass_time(0.1)
    assert party.register.times("claim") == 0
    party.missed(c.Missed(lost=True, ended="host-a:1", turn=0)).pass_time(0.1)
    assert [each[2:] for each in party.all("lead")] == [("a", 0.0)]


def test_a_later_leader_at_the_same_address_is_another_one():
    party = Party(led_by_a()).missed(c.Missed(lost=True, ended="host-a:1", turn=0))
    party.do(party.register.store.claim, "host-a:1", "a2").pass_time(60)
    assert party.register.times("claim") == 0


def test_the_watch_of_a_member_that_is_lost_as_well_is_begun_anew():
    party = Party(led_by_a())
    for _ in range(2):
        party.missed(c.Missed(lost=True))
        assert party.register.times("watch") == 2


def test_launchers_claim_one_after_the_other():
    first_s = []
    for turn in (0, 1, 5, 100, None):
        party = Party(led_by_a(held=False)).missed(c.Missed(lost=True, turn=turn))
        while not party.register.times("claim"):
            party.pass_time(0.01)
        first_s.append(party.loop.now / S)
    assert first_s == sorted(first_s)
    assert first_s[-1] < 1.3


def test_a_leader_that_has_stood_down_was_not_lost():
    party = Party(led_by_a()).missed(c.Missed(turn=0))
    party.do(party.register.store.release).pass_time(0.1)
    assert [each[2:] for each in party.all("lead")] == [("", 0.0)]


@pytest.mark.parametrize("lives", [True, False])
def test_a_ledger_is_gone_on_from_if_a_member_of_it_lives(monkeypatch, lives):
    async def living(known: Ledger, network: object) -> dict[str, object]:
        del known, network
        return {"a": "answers"} if lives else {}

    monkeypatch.setattr(candidacy, "living", living)
    left = Ledger(run_id="job", leader="a", epoch=5, round=3, restarts_used=2)
    party = Party(Store(ledger=left), told=None).pass_time(1)
    ((epoch, found, _, _),) = party.all("lead")
    assert (found == left) is lives
    assert found.epoch == 5 < epoch
    assert bool(found.run_id) is lives


@pytest.mark.parametrize("lives", [True, False])
def test_a_job_of_which_nothing_is_left_has_ended_unless_others_of_its_round_live(
    monkeypatch, lives
):
    async def living(known: Ledger, network: object) -> dict[tuple[str, str], object]:
        del known, network
        return {("b", "b1"): "answers"} | ({("a", "a1"): "answers"} if lives else {})

    monkeypatch.setattr(candidacy, "living", living)
    told = Ledger(run_id="job", leader="a", epoch=5, round=3, table=table("ab"))
    party = Party(told=told).missed().pass_time(5)
    assert len(party.all("lead")) == lives
    assert len(party.all("given up")) == (not lives)
    assert (party.register.store.leads.epoch > 0) is lives


@pytest.mark.parametrize("version", [8, 9])
def test_the_register_says_that_the_job_has_ended(version: int) -> None:
    """A launcher that was cut off ends as well; one that knows nothing of it begins another job."""
    left = Ledger(run_id="", epoch=5, version=9)
    told = Ledger(run_id="job", leader="a", epoch=5, version=version, round=3, table=table("ab"))
    party = Party(Store(ledger=left), told=told).missed().pass_time(5)
    assert party.all("lead") == []
    assert len(party.all("given up")) == 1
    assert party.register.store.leads.epoch == 0
    ((_, found, _, _),) = Party(Store(ledger=left), told=None).pass_time(5).all("lead")
    assert found == left


# --- while it leads -------------------------------------------------------------------------------


def test_it_shows_that_it_is_there():
    party = leading().pass_time(60)
    assert party.register.store.leads.held
    assert party.register.times("hold") == pytest.approx(60, abs=2)
    assert party.all("held") == party.all("deposed") == []


def test_it_counts_as_there_from_when_it_asked():
    party = Party()
    party.register.takes_s["claim"] = 1.0
    party.register.takes_s["hold"] = 100.0
    while not party.all("lead"):
        party.pass_time(0.01)
    assert party.pass_time(HOLD_S - 1.1).all("held") == []
    assert party.pass_time(0.2).all("held") == [False]


def test_the_register_is_away_for_long_and_the_leader_goes_on():
    party = leading()
    party.register.broken["hold"] = AWAY
    party.pass_time(100)
    assert party.all("held") == [False]
    assert party.all("deposed") == []
    said = party.all("said")
    assert str(AWAY) in said[0]
    party.register.broken.clear()
    party.pass_time(2)
    assert party.all("held") == [False, True]
    assert len(party.all("said")) == len(said) + 1
    assert party.register.store.leads.held


@pytest.mark.parametrize("how", ["hold", "write", "key", "other"])
def test_stands_down_when_the_lead_is_gone(how):
    party = leading()
    store, epoch = party.register.store, party.register.store.leads.epoch
    if how in ("hold", "write"):  # the watch says nothing
        store._watchers.clear()
    party.do(store.release if how == "key" else lambda: store.claim("host-c:1", "c1"))
    if how == "write":
        party.keep(1)
    party.pass_time(1.1)
    assert len(party.all("deposed")) == 1
    assert ("release", epoch) not in party.register.asked, "it may be the other one's"
    assert (len(party.all("lead")) == 2) is (how == "key")
    assert party.all("leader at")[-1][0] == ("host-b:1" if how == "key" else "host-c:1")


def test_stands_down_where_a_register_that_was_made_anew_counts_as_before():
    party = leading()
    party.change(address="host-c:1", incarnation="c1").pass_time(1)
    assert len(party.all("deposed")) == 1
    assert party.all("leader at")[-1][0] == "host-c:1"


def test_a_leader_that_has_stood_down_by_itself_makes_room():
    party = leading()
    party.do(party._deposed, "a member knows more of the job").pass_time(1)
    assert party.register.times("release") == 1
    assert len(party.all("lead")) == 2


def test_what_comes_after_it_has_stood_down_changes_nothing():
    party = leading()
    party.register.takes_s |= {"hold": 2.0, "write": 2.0}
    party.keep(1).pass_time(1.1)
    party.do(lambda: party.register.store.claim("host-c:1", "c1")).pass_time(60)
    assert party.keep(2).all("written") == []
    assert len(party.all("deposed")) == 1
    assert [each[0] for each in party.register.asked].count("write") == 1


# --- the ledger -----------------------------------------------------------------------------------


def test_one_ledger_is_written_at_a_time_and_the_newest_next():
    party = leading()
    party.register.takes_s["write"] = 0.1
    party.keep(1).keep(2).keep(3).pass_time(0.3)
    assert party.all("written") == [1, 3]


def test_a_write_that_failed_is_made_again_unless_there_is_a_newer_one():
    party = leading()
    party.register.broken["write"] = AWAY
    party.keep(1).pass_time(0.15).keep(2)
    party.register.broken.clear()
    party.pass_time(1)
    assert party.all("written") == [2]


@pytest.mark.parametrize("pending", [-1, 0], ids=["noted", "prepared"])
def test_a_leader_that_cannot_write_makes_room_only_where_a_round_waits(pending):
    party = leading()
    party.register.broken["write"] = AWAY
    party.keep(1, pending_round=pending).pass_time(LEASE_S - 1)
    assert party.all("deposed") == []
    party.pass_time(LEASE_S)
    assert (party.all("deposed") == []) is (pending < 0)


# --- trouble, and the end -------------------------------------------------------------------------


def test_away_at_the_start():
    party = Party(led_by_a(), broken={"watch": AWAY}).missed(c.Missed()).pass_time(10)
    assert len(party.all("said")) == 1
    assert set(party.all("leader at")) == {("", str(AWAY), 0)}
    party.register.broken.clear()
    party.pass_time(1)
    assert len(party.all("said")) == 2
    assert party.all("leader at")[-1][0] == "host-a:1"


def test_the_register_does_not_want_this_launcher():
    party = Party(broken={"watch": RegisterError("denied", final=True)})
    assert party.all("given up") == ["denied"]
    party.register.broken.clear()
    assert party.pass_time(60).register.asked == [("watch",)]


def test_nothing_is_final_once_the_register_has_answered():
    party = Party(led_by_a(held=False)).missed()
    final = RegisterError("denied", final=True)
    party.register.broken |= {"claim": final, "watch": final}
    party.pass_time(20)
    assert party.all("given up") == []
    party.register.broken.clear()
    assert party.pass_time(10).all("lead")


def test_claims_that_fail_while_looking_works_neither_flood_the_register_nor_the_user():
    party = Party(led_by_a(held=False)).missed()
    party.register.broken["claim"] = AWAY
    party.pass_time(60)
    assert len(party.all("said")) == 1
    assert 5 < party.register.times("claim") < 25


def test_the_lead_is_given_back_and_the_ledger_stays():
    party = leading().keep(1).close()
    store = party.register.store
    assert store.leads.epoch == 0
    assert store.ledger is not None


def test_of_a_job_that_is_over_nothing_is_left_but_that_it_has_ended():
    party = leading().keep(1)
    party.state = LeaderState.ENDED
    assert party.close().register.store.ledger == Ledger(run_id="", epoch=7, version=9)


def test_who_does_not_lead_has_nothing_to_give_back():
    party = Party(led_by_a()).close()
    assert party.register.times("release") == 0


def test_a_lead_that_was_claimed_in_the_end_is_given_back():
    party = Party()
    party.register.takes_s["claim"] = 1.0
    while not party.register.times("claim"):
        party.pass_time(0.01)
    party.do(party.candidacy.node_is_done).pass_time(2)
    assert party.register.store.leads.epoch == 0
    assert party.all("lead") == []


def test_a_node_that_is_done_leads_on_if_it_does():
    party = leading()
    party.do(party.candidacy.node_is_done).pass_time(10)
    assert party.register.store.leads.held
