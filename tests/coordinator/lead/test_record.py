"""The ledger's upkeep."""

from __future__ import annotations

from tests.coordinator.lead.seats import committee, ledger, table, voters
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.record import Record
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.policy.policy import JobPolicy


def record(known: p.Ledger, *, takeover: bool = True) -> Record:
    config = c.LeaderConfig("job", PolicyConfig(), node="a", incarnation="a1", takeover=takeover)
    return Record(config, known, 7)


def test_a_new_job_inherits_nothing() -> None:
    made = record(p.Ledger(run_id=""))
    assert not made.inherited
    assert (made.ledger.run_id, made.ledger.epoch, made.ledger.leader) == ("job", 7, "a")


def test_what_the_leader_before_has_prepared_is_perhaps_started_until_a_table_is() -> None:
    known = ledger("abc", pending_round=1, pending=table("abd"))
    made = record(known)
    made.agree(voters("ab"))
    assert made.inherited
    assert made.perhaps_started == table("abd")
    made.prepare(2, table("abc"))
    prepared = made.ledger.version
    made.start(replaceable=False)
    assert made.perhaps_started == ()
    assert made.started == prepared
    assert (made.ledger.round, made.ledger.version) == (2, prepared + 1)
    assert made.ledger.fenced


def test_every_change_has_a_version_and_no_change_has_none() -> None:
    made = record(ledger("abc"))
    made.agree(voters("ab"))
    policy = JobPolicy(PolicyConfig())
    version = made.ledger.version
    assert made.catch_up(policy) == []
    policy.restarts_used = 1
    assert made.catch_up(policy) == [c.Persist(made.ledger)]
    policy.history, policy.slow_before, policy.turned = b"one more", (3,), 1
    policy.failure = "so"
    (persist,) = made.catch_up(policy)
    assert persist == c.Persist(made.ledger)
    assert (made.ledger.history, made.ledger.version) == (b"one more", version + 2)
    assert made.ledger.failure == "so"
    assert (made.ledger.slow, made.ledger.turned) == ((3,), 1)
    made.stop(policy)
    stopped = made.ledger
    made.stop(policy)
    assert made.ledger is stopped, "one version for the orders to all nodes"
    assert stopped.version == version + 3
    assert not stopped.running


def test_a_ledger_is_of_the_epoch_of_a_leader_once_a_quorum_follows_under_it() -> None:
    """Until then its leader makes no versions of it, and others have newer ones."""
    known = ledger("abc", leader="c")
    made = record(known)
    made.stop(JobPolicy(PolicyConfig()))
    assert not made.agree(voters("a"))
    assert made.learn().epoch == 7
    assert not p.newer(made.ledger, known)
    assert made.agree(voters("ab"))
    assert not made.agree(voters("abc")), "once"
    about = (made.ledger.epoch, made.ledger.version, made.ledger.leader, made.ledger.running)
    assert about == (7, known.version + 1, "a", False)


def test_so_it_is_again_under_a_later_epoch() -> None:
    made = record(ledger("abc"))
    made.agree(voters("abc"))
    before = made.ledger
    made.take_epoch(9)
    assert made.learn() == p.Learn(epoch=9, ledger=before)
    assert not made.agreed
    assert made.agree(voters("bc"))
    assert (made.ledger.epoch, made.ledger.version) == (9, before.version + 1)


def test_where_nobody_has_a_vote_it_is_so_at_once() -> None:
    made = record(ledger("ab", committee=()))
    assert (made.agreed, made.ledger.epoch) == (True, 7)
    made.take_epoch(9)
    assert (made.agreed, made.ledger.epoch) == (True, 9)


def test_versions_of_one_leader_rise_although_it_adopts_another_ledger() -> None:
    made = record(p.Ledger(run_id=""))
    made.prepare(0, table("abc"))
    prepared = made.ledger.version
    made.adopt(ledger("ab", version=1))
    assert made.ledger.version > prepared


def test_a_ledger_of_no_job_replaces_none_of_a_job_that_has_begun() -> None:
    begun, none = ledger("abc", epoch=5), p.Ledger(run_id="job", epoch=9, version=7)
    assert p.newer(begun, none)
    assert not p.newer(none, begun)
    assert p.further(begun, none)


def taken(made: Record, nodes: str) -> dict[tuple[str, str], int]:
    return dict.fromkeys(voters(nodes), made.ledger.version)


def test_one_committee_follows_another_and_both_are_needed_meanwhile() -> None:
    made = record(ledger("abc"))
    assert not made.replace(committee("abd")), "its committee has not agreed yet"
    made.agree(voters("ab"))
    assert made.replace(committee("ade"))
    assert made.ledger.before == committee("abc")
    assert not made.replace(committee("abd")), "one at a time"
    assert made.lacking(voters("ade")) == committee("abc")
    assert not made.settle(taken(made, "ade"))
    assert not made.settle(taken(made, "abc"))
    assert made.settle(taken(made, "abd"))
    assert made.ledger.before == ()
    assert not made.lacking(voters("de"))


def test_a_start_leaves_the_committee_before_as_its_table_was_held() -> None:
    made = record(ledger("abc"))
    made.agree(voters("ab"))
    made.replace(committee("ade"))
    made.prepare(1, table("ade"))
    assert made.holds(taken(made, "abd"), made.ledger.version)
    made.start(replaceable=False)
    assert (made.ledger.before, made.ledger.committee) == ((), committee("ade"))


def test_a_job_that_has_not_begun_asks_no_committee() -> None:
    made = record(p.Ledger(run_id=""))
    assert made.replace(committee("abc"))
    assert made.replace(committee("ade"))
    assert (made.ledger.before, made.lacking(())) == ((), ())
