from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from undaunted.coordinator.core.leader import State
from undaunted.coordinator.protocol import Ledger
from undaunted.coordinator.service.leading import Listener
from undaunted.fault_tolerance.agent.orders import candidacy


class Campaign:
    """In place of the one that talks to etcd."""

    def __init__(self, *about: Any) -> None:
        self.about = about[:-1]
        self.done: list[str] = []

    def withdraw(self) -> None:
        self.done.append("withdrawn")

    def step_down(self) -> None:
        self.done.append("stepped down")

    async def close(self, *, erase: bool) -> None:
        self.done.append("erased" if erase else "closed")


class Party:
    """A candidacy of node b, what it has said, and the leader that it made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, promised: int = 0) -> None:
        self.said: list[Any] = []
        self.state = State.LEADING
        monkeypatch.setattr(candidacy, "Campaigning", Campaign)
        nodes = SimpleNamespace(store="etcd://e:1", lease_s=5.0)
        config: Any = SimpleNamespace(node="b", run_id="job", nodes=nodes)
        self.listener: Any = Listener()
        self.listener.following = SimpleNamespace(
            follower=SimpleNamespace(knows=SimpleNamespace(promised=promised)),
            leader_at=lambda *what: self.said.append(("leader at", *what)),
        )
        self.candidacy = candidacy.Candidacy(
            config, "host-b:1", "b1", self.listener, self.lead, self.said.append, self.said.append
        )
        self.campaign: Any = self.candidacy._campaigning

    def lead(self, epoch: int, ledger: Ledger) -> None:
        self.said.append(("lead", epoch, ledger))
        self.listener.leading = SimpleNamespace(
            leader=self,
            persisted=lambda version: self.said.append(("persisted", version)),
            deposed=lambda reason: self.said.append(("deposed", reason)),
        )


@pytest.fixture
def party(monkeypatch: pytest.MonkeyPatch) -> Party:
    return Party(monkeypatch)


def close(party: Party) -> list[str]:
    with pytest.raises(StopIteration):
        party.candidacy.close().send(None)
    done: list[str] = party.campaign.done
    return done


def test_where_and_who(party):
    place, _, *about = party.campaign.about
    assert place.endpoints == ("e:1",)
    assert about == ["job", 5.0, "host-b:1", "b1"]


def test_the_first_leader_says_nothing_and_a_later_one_does(party):
    empty = Ledger(run_id="")
    party.candidacy.lead(7, empty)
    assert party.said == [("lead", 7, empty)]
    party.candidacy.lead(9, Ledger(run_id="job", leader="a"))
    assert party.said[1] == "this node takes over the coordination of the job from node a"


def test_an_epoch_is_later_than_what_this_node_has_promised(monkeypatch):
    party = Party(monkeypatch, promised=7)
    party.candidacy.lead(7, Ledger(run_id=""))
    assert party.said[0][1] > 7


def test_the_leader_is_told_what_concerns_it(party):
    party.candidacy.persisted(3)
    party.candidacy.depose("gone")
    assert party.said == ["this node coordinates the job no more: gone"]
    party.candidacy.lead(7, Ledger(run_id=""))
    party.candidacy.persisted(4)
    party.candidacy.depose("gone")
    assert party.said[2] == ("persisted", 4)
    assert party.said[-1] == ("deposed", "gone")


def test_the_follower_is_told_who_leads(party):
    party.candidacy.leader_at("host-a:1", "")
    assert party.said == [("leader at", "host-a:1", "")]
    party.listener.following = None
    party.candidacy.leader_at("host-c:1", "")
    assert len(party.said) == 1


def test_a_node_that_is_done_leads_on_if_it_does(party):
    party.candidacy.lead(7, Ledger(run_id=""))
    party.candidacy.node_is_done()
    assert party.campaign.done == []
    party.listener.leading = None
    party.candidacy.node_is_done()
    assert party.campaign.done == ["withdrawn"]


@pytest.mark.parametrize(("state", "done"), [(State.ENDED, []), (State.DEPOSED, ["stepped down"])])
def test_a_leader_that_stands_down_by_itself_makes_room(party, state, done):
    party.candidacy.leading_is_over()
    party.candidacy.lead(7, Ledger(run_id=""))
    party.state = state
    party.candidacy.leading_is_over()
    assert party.campaign.done == done


@pytest.mark.parametrize(
    ("state", "done"), [(None, "closed"), (State.LEADING, "closed"), (State.ENDED, "erased")]
)
def test_only_the_leader_of_a_job_that_is_over_erases_its_ledger(party, state, done):
    if state is not None:
        party.candidacy.lead(7, Ledger(run_id=""))
        party.state = state
    assert close(party) == [done]
