"""The ledger's upkeep."""

from __future__ import annotations

from tests.coordinator.core.seats import ledger, table
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core.config import PolicyConfig
from undaunted.coordinator.core.policy import JobPolicy
from undaunted.coordinator.core.record import Record


def record(known: p.Ledger, *, takeover: bool = True) -> Record:
    config = c.LeaderConfig("job", PolicyConfig(), node="a", incarnation="a1", takeover=takeover)
    return Record(config, known, 7)


def test_a_new_job_inherits_nothing() -> None:
    made = record(p.Ledger(run_id=""))
    assert not made.inherited
    assert (made.ledger.run_id, made.ledger.epoch, made.ledger.leader) == ("job", 7, "a")


def test_what_was_prepared_by_the_leader_before_is_doubtful_until_a_table_is_started() -> None:
    made = record(ledger("abc", pending_round=1, pending=table("abd")))
    assert made.inherited
    assert made.doubtful == table("abd")
    made.prepare(2, table("abc"))
    prepared = made.ledger.version
    made.start()
    assert made.doubtful == ()
    assert made.started == prepared
    assert (made.ledger.round, made.ledger.version) == (2, prepared + 1)
    assert made.ledger.casting_vote == "a"


def test_nobody_votes_where_nobody_can_take_over() -> None:
    made = record(p.Ledger(run_id=""), takeover=False)
    made.prepare(0, table("abc"))
    made.start()
    assert made.ledger.casting_vote == ""


def test_every_change_has_a_version_and_no_change_has_none() -> None:
    made = record(ledger("abc"))
    policy = JobPolicy(PolicyConfig())
    version = made.ledger.version
    assert made.catch_up(policy) == []
    policy.restarts_used = 1
    assert made.catch_up(policy) == [c.Persist(made.ledger)]
    made.stop(policy)
    stopped = made.ledger
    made.stop(policy)
    assert made.ledger is stopped, "one version for the orders to all nodes"
    assert stopped.version == version + 2
    assert not stopped.running
    made.take_epoch(9)
    assert made.learn() == p.Learn(epoch=9, ledger=made.ledger)
    assert made.ledger.epoch == 9
