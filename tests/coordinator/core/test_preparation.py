"""The next table: who has to know it, and when the round may start."""

from __future__ import annotations

from tests.coordinator.core.seats import ledger, table
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core import placement
from undaunted.coordinator.core.config import PolicyConfig
from undaunted.coordinator.core.preparation import FENCE_MARGIN_S, Preparation
from undaunted.coordinator.core.record import Record
from undaunted.coordinator.core.sessions import Session, Sessions

S = 1_000_000_000


class Prepared:
    """A preparation for nodes that are connected."""

    def __init__(self, known: p.Ledger, nodes: str, *, durable: bool = False) -> None:
        config = c.LeaderConfig(
            "job", PolicyConfig(), node="a", incarnation="a1", away_timeout_s=60, durable=durable
        )
        self.sessions = Sessions()
        self.record = Record(config, known, 7)
        self.preparation = Preparation(config, self.record, self.sessions)
        for link, node in enumerate(nodes):
            self.sessions.add(Session(p.Hello(node=node, incarnation=f"{node}1", slots=2), link, 0))

    def begin(self, nodes: str) -> list[c.Command]:
        infos = [m.NodeInfo(node, 2) for node in nodes]
        return self.preparation.begin(m.Prepare(1, placement.places(infos)))

    def acknowledge(self, nodes: str) -> None:
        for node in nodes:
            known = p.Prepared(
                epoch=7,
                version=self.record.ledger.version,
                round=1,
                master_addr=f"host-{node}",
                master_port=9,
            )
            self.preparation.acknowledged(self.sessions[node], known)


def told(commands: list[c.Command]) -> dict[int, int]:
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
    assert job.preparation.may_start(0)
    assert job.preparation.start() == m.TableAccepted(1, "host-a", 9)
    assert not job.preparation.complete
    assert [seat.node for seat in job.record.ledger.table] == ["a", "b", "d"]


def test_a_quorum_of_the_last_table_must_know_it_as_well() -> None:
    job = Prepared(ledger("abc", casting_vote="c"), "axyc")
    job.begin("axy")
    job.acknowledge("axy")
    assert not job.preparation.may_start(0)
    (remark,) = job.preparation.remark()
    assert "waiting to hear of b: ranks may still be running" in remark.text
    assert job.preparation.remark() == []
    job.acknowledge("c")
    assert job.preparation.may_start(0)


def test_it_is_written_down_first_where_that_is_asked_for() -> None:
    job = Prepared(ledger("abc"), "abc", durable=True)
    job.begin("abc")
    job.acknowledge("abc")
    version = job.record.ledger.version
    job.preparation.persisted(version - 1)
    assert not job.preparation.complete
    job.preparation.persisted(version)
    assert job.preparation.complete


def test_without_votes_the_old_world_must_be_over_and_what_was_prepared_before() -> None:
    known = ledger("xy", casting_vote="", pending_round=1, pending=table("zw"))
    job = Prepared(known, "ab")
    job.begin("ab")
    job.acknowledge("ab")
    over_s = 5 + 60 + FENCE_MARGIN_S
    assert not job.preparation.may_start(round((over_s - 0.1) * S))
    assert job.preparation.may_start(round(over_s * S))
    job.sessions.add(Session(p.Hello(node="x", incarnation="x2", slots=2), 8, 0))
    assert not job.preparation.may_start(0), "z and w may run"
    job.sessions.add(Session(p.Hello(node="z", incarnation="z1", slots=2), 9, 0))
    assert job.preparation.may_start(0)


def test_who_comes_later_is_told_and_who_comes_back_only_if_it_is_awaited() -> None:
    job = Prepared(ledger("abc"), "abc")
    assert told(job.preparation.joined(job.sessions["a"])) == {}
    assert job.preparation.begin_again() == []
    job.begin("abc")
    assert told(job.preparation.returned(job.sessions["b"])) == {1: 1}
    job.acknowledge("b")
    assert told(job.preparation.returned(job.sessions["b"])) == {}
    assert told(job.preparation.joined(job.sessions["c"])) == {2: -1}
    job.preparation.call_off()
    assert told(job.preparation.joined(job.sessions["c"])) == {}


def test_a_node_that_has_been_told_of_the_end_does_not_forget_it() -> None:
    job = Prepared(ledger("abc"), "abcd")
    job.sessions["b"].order(p.EndOrder(number=0, epoch=7, outcome="excluded", reason="x"))
    job.sessions["c"].order(p.Note(number=0, epoch=7, kind="remark", round=0, text="x"))
    job.begin("acd")
    kinds = {node: [type(each) for each in job.sessions[node].orders] for node in "bc"}
    assert kinds == {"b": [p.EndOrder, p.PrepareOrder], "c": [p.PrepareOrder]}
