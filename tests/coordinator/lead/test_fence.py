"""The next table: who has to know it, and when the round may start."""

from __future__ import annotations

import pytest

from tests.coordinator.lead.seats import committee, ledger, table, voters
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.fence import (
    Preparation,
)
from undaunted.coordinator.lead.record import Record
from undaunted.coordinator.lead.sessions import Session, Sessions
from undaunted.coordinator.lead.times import AWAY_MARGIN_S, Durations
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy import placement
from undaunted.coordinator.policy.config import PolicyConfig

S = 1_000_000_000

LASTS = Durations(5.0)
STOPPED_S = LASTS.stopped_s


class Prepared:
    """A preparation for nodes that are connected."""

    def __init__(
        self,
        known: p.Ledger,
        nodes: str,
        *,
        store: bool = False,
        lost: str = "",
        stops_s: float = 0.0,
    ) -> None:
        config = c.LeaderConfig(
            "job", PolicyConfig(), node="a", incarnation="a1", away_timeout_s=60, store=store
        )
        self.sessions, self.store = Sessions(LASTS), store
        self.record = Record(config, known, 7)
        self.record.agree(voters(nodes))
        self.preparation = Preparation(config, self.record, self.sessions, lost, stops_s)
        for link, node in enumerate(nodes):
            self.sessions.add(Session(p.Hello(node=node, incarnation=f"{node}1", slots=2), link, 0))

    def begin(self, nodes: str) -> list[c.LeaderCommand]:
        infos = [m.NodeInfo(node, 2) for node in nodes]
        return self.preparation.begin(m.Prepare(1, placement.places(infos)), now=0)

    def acknowledge(self, nodes: str) -> None:
        for node in nodes:
            known = p.Prepared(
                epoch=7,
                version=self.record.ledger.version,
                round=1,
                master_addr=f"host-{node}",
                master_port=9,
            )
            self.preparation.acknowledged(self.sessions.by_node[node], known)
        if not self.store:
            self.record.kept = self.record.ledger.version

    def may_start(self, now: int) -> bool:
        """Whether it may, if all that are connected have renewed their leases a moment ago."""
        for session in self.sessions.connected():
            session.counts_ns = now
        return self.preparation.may_start(now)


def told(commands: list[c.LeaderCommand]) -> dict[int, int]:
    """Seats by link."""
    return {
        each.link: each.message.seat
        for each in commands
        if isinstance(each, c.Send) and isinstance(each.message, p.PrepareOrder)
    }


def test_everybody_is_told_and_every_node_of_the_table_must_know_it() -> None:
    job = Prepared(ledger("abc"), "abcd")
    assert told(job.begin("abd")) == {0: 0, 1: 1, 2: -1, 3: 2}
    job.acknowledge("abc")
    assert not job.preparation.complete
    job.acknowledge("d")
    assert job.preparation.complete
    assert job.may_start(0)
    assert job.preparation.accepted == m.TableAccepted(1, "host-a", 9)
    job.preparation.start(replaceable=False)
    assert not job.preparation.complete
    assert [seat.node for seat in job.record.ledger.table] == ["a", "b", "d"]


@pytest.mark.parametrize("silent", ["b", "cy"])
def test_nobody_starts_whose_leases_are_over_or_whose_committee_is_silent(silent: str) -> None:
    """The leader may have stood still since they have acknowledged it."""
    job = Prepared(ledger("abx", committee=committee("acy")), "abcxy")
    job.begin("abx")
    job.acknowledge("abcxy")
    assert job.may_start(0)
    lease = 5 * S
    assert not job.preparation.may_start(lease)
    for session in job.sessions.connected():
        session.counts_ns = 0 if session.node in silent else 1
    assert not job.preparation.may_start(lease)


def test_a_majority_of_the_committee_must_know_it_as_well() -> None:
    job = Prepared(ledger("abc"), "axyc")
    job.begin("axy")
    job.acknowledge("axy")
    assert not job.may_start(0)
    (line,) = job.preparation.say(0)
    assert "waiting to hear of b" in line.text
    assert "ranks may still be running" in line.text
    assert job.preparation.say(0) == []
    later = round((5 + STOPPED_S) * S)
    assert not job.may_start(later)
    job.acknowledge("c")
    assert not job.may_start(later - 1), "b may run"
    assert job.may_start(later)


def test_it_is_written_down_first_where_that_is_asked_for() -> None:
    job = Prepared(ledger("abc", committee=()), "abc", store=True)
    job.begin("abc")
    job.acknowledge("abc")
    version = job.record.ledger.version
    job.record.kept = version - 1
    assert not job.may_start(900 * S)
    job.record.kept = version
    assert job.may_start(0)


def test_a_file_is_waited_for_no_longer_than_a_lease() -> None:
    job = Prepared(ledger("ab", committee=()), "ab")
    job.begin("ab")
    job.store = True
    job.acknowledge("ab")
    assert not job.may_start(0)
    assert job.may_start(5 * S)


def test_without_votes_the_old_world_must_be_over_and_what_was_prepared_before() -> None:
    known = ledger("xy", committee=(), fenced=False, pending_round=1, pending=table("zw"))
    job = Prepared(known, "ab")
    job.begin("ab")
    job.acknowledge("ab")
    over_s = 5 + 60 + AWAY_MARGIN_S
    assert not job.may_start(round((over_s - 0.1) * S))
    assert job.may_start(round(over_s * S))
    job.sessions.add(Session(p.Hello(node="x", incarnation="x2", slots=2), 8, 0))
    assert not job.may_start(0), "z and w may run"
    job.sessions.add(Session(p.Hello(node="z", incarnation="z1", slots=2), 9, 0))
    assert not job.may_start(0), "y and w may run"
    job.sessions.add(Session(p.Hello(node="y", incarnation="y1", slots=2), 10, 0))
    job.sessions.add(Session(p.Hello(node="w", incarnation="w2", slots=2), 11, 0))
    assert job.may_start(0)


def lost(job: Prepared, node: str, **more: object) -> None:
    """A node was heard a second ago, and is gone."""
    session = job.sessions.by_node[node]
    session.heard_ns = 1 * S
    job.sessions.disconnect(session, silent=bool(more.pop("silent", True)))
    for name, value in more.items():
        setattr(session, name, value)


def starts_after(job: Prepared) -> float:
    """When the round may start, in seconds after the node was heard."""
    moments = (number / 10 for number in range(1000))
    return next(s for s in moments if job.may_start(S + round(s * S)))


@pytest.mark.parametrize(
    ("votes", "more", "seconds"),
    [
        (True, {}, 5 + STOPPED_S),
        (False, {"replaceable": True}, 5 + STOPPED_S),
        (False, {}, 5 + 60 + AWAY_MARGIN_S),
        (False, {"stopped": 0}, 0),
        (False, {"silent": False}, 0),
    ],
)
def test_a_node_that_is_lost_has_stopped_its_ranks_before_others_get_them(
    votes: bool, more: dict[str, object], seconds: float
) -> None:
    about = {} if votes else {"committee": (), "fenced": False}
    job = Prepared(ledger("abc" if votes else "ac", **about), "abcx")
    lost(job, "c", **more)
    job.begin("abx")
    job.acknowledge("abx")
    assert starts_after(job) == seconds


@pytest.mark.parametrize("seconds", [2.2, 0])
def test_ranks_of_the_leader_that_was_lost_are_waited_for(seconds: float) -> None:
    job = Prepared(ledger("abc"), "bcx", lost="a", stops_s=seconds)
    job.begin("bcx")
    job.acknowledge("bcx")
    soonest = next(s for s in range(1000) if job.may_start(s * S // 10))
    assert soonest / 10 == seconds


def test_a_node_that_was_never_heard_is_waited_for_as_those_say_that_have_elected() -> None:
    job = Prepared(ledger("abc"), "bx", lost="a", stops_s=0.0)
    assert not job.preparation.old_world_is_over(7 * S), "it may have had a new lease"
    job.preparation.others_stop_s = 2.5
    assert not job.preparation.old_world_is_over(2 * S)
    assert job.preparation.old_world_is_over(3 * S)


def test_who_is_back_has_to_stop_first() -> None:
    job = Prepared(ledger("ac", committee=(), fenced=False), "acx")
    job.sessions.by_node["c"].draining = True
    job.begin("ax")
    job.acknowledge("acx")
    assert not job.may_start(500 * S)
    job.sessions.by_node["c"].draining = False
    assert job.may_start(500 * S)


def test_resets_alone_do_not_say_that_the_old_world_is_over() -> None:
    job = Prepared(ledger("cd", committee=(), fenced=False), "acdx")
    lost(job, "c", silent=False, replaceable=True)
    lost(job, "d", silent=False, replaceable=True)
    job.begin("ax")
    job.acknowledge("ax")
    assert starts_after(job) == 5 + STOPPED_S


def test_who_comes_later_is_told_and_who_comes_back_only_if_it_is_awaited() -> None:
    job = Prepared(ledger("abc"), "abc")
    assert told(job.preparation.joined(job.sessions.by_node["a"])) == {}
    assert job.preparation.begin_again(now=0) == []
    job.begin("abc")
    assert told(job.preparation.returned(job.sessions.by_node["b"])) == {1: 1}
    job.acknowledge("b")
    assert told(job.preparation.returned(job.sessions.by_node["b"])) == {}
    assert told(job.preparation.joined(job.sessions.by_node["c"])) == {2: -1}
    job.preparation.call_off()
    assert told(job.preparation.joined(job.sessions.by_node["c"])) == {}


def order(command: m.NodeCommand) -> p.Order:
    return p.Order(number=0, epoch=7, command=command)


def test_a_node_that_has_been_told_of_the_end_does_not_forget_it() -> None:
    job = Prepared(ledger("abc"), "abcd")
    job.sessions.by_node["b"].order(order(m.End("b", m.Outcome.EXCLUDED, "x")))
    job.sessions.by_node["c"].order(order(m.Say("x")))
    job.begin("acd")
    kinds = {node: [type(each) for each in job.sessions.by_node[node].orders] for node in "bc"}
    assert kinds == {"b": [p.Order, p.PrepareOrder], "c": [p.PrepareOrder]}
