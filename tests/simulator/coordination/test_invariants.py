"""Each invariant, broken by hand."""

from __future__ import annotations

import pytest

from simulator.coordination.invariants import BegunAnew, Checker
from simulator.coordination.setup import BY_HAND, Setup
from simulator.run import InvariantError
from simulator.virtual.engine import Simulation
from undaunted.coordinator.lead.leader import UNHELD
from undaunted.coordinator.policy.messages import NodeFailed, Outcome, RestartOrdered
from undaunted.coordinator.policy.policy import Ending, JobPolicy
from undaunted.coordinator.policy.verdict import Examination
from undaunted.coordinator.protocol import Ledger, Seat

S = 1_000_000_000


def checker(setup: Setup | None = None) -> Checker:
    made = Checker(setup or Setup(2, 2, max_restarts=1), Simulation(1))
    for node in "abcd":
        made.launched((node, "1"))
    return made


def table(*nodes: str) -> tuple[Seat, ...]:
    return tuple(
        Seat(node=n, incarnation="1", address="", group_rank=g, first_rank=2 * g, slots=2)
        for g, n in enumerate(nodes)
    )


def ledger(number: int, *nodes: str, **more: object) -> Ledger:
    return Ledger(run_id="x", round=number, table=table(*nodes), **more)  # type: ignore[arg-type]


def run(made: Checker, number: int, *nodes: str) -> None:
    for node in "abcdefgh":
        made.touch(node, made._simulation.now)  # who is evicted is not what this is about
    for node in nodes:
        made.begin((node, "1"), ledger(number, *nodes))
        made.up((node, "1"), number)


def test_restarts_within_a_time() -> None:
    made = checker(Setup(2, 2, restart_intensity=(2, 60.0)))
    policy = JobPolicy(made._setup.policy)
    made.restarts(policy)
    for used in (1, 2, 1, 2):  # one was called off
        policy.restarts_used = used
        made.restarts(policy)
    policy.restarts_used = 3
    with pytest.raises(InvariantError, match="the budget: 3 restarts within 60 s of 2"):
        made.restarts(policy)
    made.restarts(JobPolicy(made._setup.policy, restarts_used=9))  # another leader counts anew


def test_a_job_runs_while_every_rank_of_a_table_does() -> None:
    made = checker()
    run(made, 0, "a", "b")
    assert made.job_runs
    made.down(("a", "1"), 0)
    assert not made.job_runs


def test_a_history_that_is_lost() -> None:
    made = checker(Setup(2, 2, max_restarts=9))
    run(made, 0, "a", "b")
    for node in "ab":
        made.down((node, "1"), 0)
        made.touch(node, 10 * S)
    made.begin(("a", "1"), ledger(1, "a", "b", history=b"0"))
    made.begin(("b", "1"), ledger(1, "a", "b", history=b"0"))
    made.begin(("a", "1"), ledger(2, "a", "b", history=b"01"))
    made.begin(("b", "1"), ledger(2, "a", "b", history=b"01"))
    with pytest.raises(InvariantError, match="a history is kept"):
        made.begin(("a", "1"), ledger(3, "a", "b", history=b"12"))


def alone(made: Checker) -> None:
    """Leave out what finds most of the others before they come to it."""
    made._is_not_twice = lambda _rank: None  # type: ignore[method-assign]


def test_a_rank_with_two_processes() -> None:
    made = checker()
    run(made, 0, "a", "b")
    made.down(("a", "1"), 0, 0)
    made.down(("b", "1"), 0)
    with pytest.raises(InvariantError, match=r"each rank once: .* rank 1 on a in round 0 and on c"):
        run(made, 1, "c", "d")


def test_ranks_of_a_machine_that_was_paused_may_live_on_until_it_has_stopped_them() -> None:
    made = checker()
    run(made, 0, "a", "b")
    made.down(("b", "1"), 0)
    made.paused(("a", "1"))
    run(made, 1, "c", "d")
    made.resumed(("a", "1"))
    made._simulation.run(made._simulation.now + 2 * S)
    with pytest.raises(InvariantError, match=r"each rank once: .* rank 0 on a in round 0 and on c"):
        made._simulation.run(made._simulation.now + S)


def test_time_in_which_no_round_has_all_its_ranks_is_lost() -> None:
    made = checker()
    made._simulation.run(3 * S)
    run(made, 0, "a", "b")
    made._simulation.run(10 * S)
    assert made.idle_s == 3
    made.down(("a", "1"), 0)
    made._simulation.run(12 * S)
    assert made.idle_s == 5


def test_two_worlds() -> None:
    made = checker()
    alone(made)
    run(made, 0, "a", "b")
    with pytest.raises(InvariantError, match=r"never two worlds: .* 0 on a,b and 1 on c,d"):
        run(made, 1, "c", "d")


def test_ranks_that_were_told_to_stop_are_part_of_a_world_until_they_have() -> None:
    made = checker()
    alone(made)
    run(made, 0, "a", "b")
    made.stopping(("a", "1"), 0)
    with pytest.raises(InvariantError, match=r"never two worlds: .* 0 on a,b and 1 on c,d"):
        run(made, 1, "c", "d")


def test_a_world_that_has_been_told_to_stop_or_is_paused_is_none() -> None:
    made = checker()
    run(made, 0, "a", "b")
    made.stopping(("a", "1"), 0)
    assert not made.job_runs
    made.down(("a", "1"), 0)
    made.down(("b", "1"), 0)
    run(made, 1, "c", "d")
    made.paused(("c", "1"))
    assert not made.job_runs
    made.resumed(("c", "1"))
    assert made.job_runs


def test_a_machine_that_is_paused_again_before_it_could_hear_anything() -> None:
    made = checker()
    run(made, 0, "a", "b")
    made.paused(("a", "1"))
    made.paused(("a", "1"))
    made.resumed(("a", "1"))
    assert not made.job_runs
    made.resumed(("a", "1"))
    assert made.job_runs
    made.resumed(("a", "1"))
    made.stopping(("b", "1"), 0)
    assert not made.job_runs, "it counts once"


def test_an_order_to_stop_counts_before_the_ranks_are_there() -> None:
    made = checker()
    made.begin(("a", "1"), ledger(0, "a", "b"))
    made.stopping(("a", "1"), 0)
    made.up(("a", "1"), 0)
    made.begin(("b", "1"), ledger(0, "a", "b"))
    made.up(("b", "1"), 0)
    assert not made.job_runs


def test_a_round_with_two_tables() -> None:
    made = checker()
    made.begin(("a", "1"), ledger(0, "a", "b"))
    with pytest.raises(InvariantError, match="round 0 begins with two tables, a,b and a,c"):
        made.begin(("c", "1"), ledger(0, "a", "c"))


@pytest.mark.parametrize(
    "broken",
    [
        ledger(0, "a", "a"),
        ledger(0, "a"),
        Ledger(run_id="x", round=0, table=table("a", "b")[:1] * 2),
        Ledger(run_id="x", round=0, table=(table("a", "b")[0], table("c", "d", "b")[2])),
    ],
)
def test_a_table_that_is_none(broken: Ledger) -> None:
    with pytest.raises(InvariantError, match="each rank in one place"):
        checker().begin(("a", "1"), broken)


def test_a_round_started_twice_or_without_a_seat() -> None:
    made = checker()
    made.begin(("a", "1"), ledger(0, "a", "b"))
    with pytest.raises(InvariantError, match="a starts round 0 twice"):
        made.begin(("a", "1"), ledger(0, "a", "b"))
    with pytest.raises(InvariantError, match="without a seat"):
        made.begin(("b", "2"), ledger(0, "a", "b"))


def test_an_old_world_that_goes_on_in_part() -> None:
    made = checker(Setup(4, 4))
    alone(made)
    run(made, 0, "a", "b", "c", "d")
    made.down(("b", "1"), 0)
    for node in "efgh":
        made.launched((node, "1"))
    run(made, 1, "e", "f", "g", "h")
    with pytest.raises(InvariantError, match="an old world ends: a runs round 0"):
        made._simulation.run(60 * S)


def old_and_new() -> Checker:
    """Round 0 of a and b has been over for long: c and d run round 1."""
    made = checker()
    alone(made)
    run(made, 0, "a", "b")
    for node in "ab":
        made.down((node, "1"), 0)
    run(made, 1, "c", "d")
    made.down(("d", "1"), 1)
    made._simulation.run(60 * S)
    return made


def test_ranks_of_an_old_world_that_come_late_though_the_new_one_is_over_as_well() -> None:
    made = old_and_new()
    with pytest.raises(InvariantError, match="an old world ends: a runs round 0"):
        made.up(("a", "1"), 0)


def test_a_machine_that_goes_on_with_an_old_world() -> None:
    made = old_and_new()
    made.paused(("a", "1"))
    made.up(("a", "1"), 0)
    with pytest.raises(InvariantError, match="an old world ends: a runs round 0"):
        made.resumed(("a", "1"))


def test_the_budget() -> None:
    made = checker()
    with pytest.raises(InvariantError, match="2 restarts have been used of 1"):
        made.budget(ledger(0, "a", "b", restarts_used=2))
    for number in (0, 1):
        made.begin(("a", "1"), ledger(number, "a", "b"))
    with pytest.raises(InvariantError, match="the budget: round 2 is number 3 of 2"):
        made.begin(("a", "1"), ledger(2, "a", "b"))


def test_who_leaves_in_order_costs_nothing() -> None:
    made = checker()
    made.told_to_leave.add("b")
    for number in (0, 1, 2):
        made.begin(("a", "1"), ledger(number, "a", "b"))


def test_a_healthy_node_that_is_evicted() -> None:
    made = checker()
    made._simulation.run(60 * S)
    made.begin(("a", "1"), ledger(0, "a", "b"))
    with pytest.raises(InvariantError, match="no healthy node is evicted: b has had no fault"):
        made.begin(("a", "1"), ledger(1, "a", "c"))


def test_a_node_that_nothing_has_ever_happened_to_is_healthy_from_the_beginning() -> None:
    made = checker()
    made.begin(("a", "1"), ledger(0, "a", "b"))
    with pytest.raises(InvariantError, match="no healthy node is evicted: b has had no fault"):
        made.begin(("a", "1"), ledger(1, "a", "c"))


@pytest.mark.parametrize(("leader", "may"), [("a", True), ("b", False), ("c", False)])
def test_what_cuts_a_leader_off_is_no_excuse_of_others(leader: str, may: bool) -> None:
    made = checker()
    made._simulation.run(60 * S)
    made.leads((leader, "1"), 7, takeover=True)
    made.cut(["a"], 61 * S)
    made.begin(("a", "1"), ledger(0, "a", "b"))
    later = ledger(1, "a", "c", epoch=7)
    if may:
        made.begin(("a", "1"), later)
        return
    with pytest.raises(InvariantError, match="no healthy node is evicted: b has had no fault"):
        made.begin(("a", "1"), later)


@pytest.mark.parametrize("begun", [True, False])
def test_a_round_that_not_all_of_its_nodes_have_begun_may_be_passed_over(begun: bool) -> None:
    made = checker(Setup(2, 2))
    made.begin(("a", "1"), ledger(0, "a", "b"))
    made._simulation.run(60 * S)
    made.touch("b", 60 * S)
    made.begin(("a", "1"), ledger(1, "a", "c", epoch=3))
    if begun:
        made.begin(("c", "1"), ledger(1, "a", "c", epoch=3))
    made.budget(ledger(0, "a", "b", epoch=7, pending_round=2, pending=table("a", "b")))
    if not begun:
        made.begin(("a", "1"), ledger(2, "a", "b", epoch=7))
        return
    with pytest.raises(InvariantError, match="no healthy node is evicted: c has had no fault"):
        made.begin(("a", "1"), ledger(2, "a", "b", epoch=7))


def test_a_node_with_a_fault_may_be_replaced() -> None:
    made = checker()
    made._simulation.run(60 * S)
    made.begin(("a", "1"), ledger(0, "a", "b"))
    made.touch("b", 60 * S)
    made.begin(("a", "1"), ledger(1, "a", "c"))


def test_a_node_that_is_excluded_without_having_asked() -> None:
    made = checker()
    made.asked_for_exclusion.add("b")
    made.budget(ledger(0, "a", "b", excluded={"b": "bad NIC"}))
    with pytest.raises(InvariantError, match="c is excluded and never asked"):
        made.budget(ledger(0, "a", "b", excluded={"c": "bad NIC"}))


def test_one_verdict_but_for_those_who_leave_or_cannot_hear() -> None:
    made = checker()
    made._simulation.run(60 * S)
    made.told_to_leave.add("a")
    made.ended(("a", "1"), "preempted", "SIGTERM")
    made.ended(("b", "1"), "finished", "")
    made.touch("d", 61 * S)
    made.ended(("d", "1"), "failed", "cut off")
    with pytest.raises(InvariantError, match="ended as failed for c"):
        made.ended(("c", "1"), "failed", "")


@pytest.mark.parametrize("faulty", ["b", "d"])
def test_another_verdict_of_one_that_could_not_know_or_of_whom_it_leads(faulty: str) -> None:
    made = checker()
    made._simulation.run(60 * S)
    made.ended(("a", "1"), "finished", "", "a")
    made._simulation.run(69 * S)
    made.touch(faulty, 90 * S)
    made.ended(("d", "1"), "failed", "nobody came", "b")


def test_the_verdict_of_a_leader_that_is_cut_off_is_not_that_of_the_job() -> None:
    made = checker()
    made._simulation.run(60 * S)
    made.touch("a", 70 * S)
    made.ended(("a", "1"), "failed", "", "a")
    made._simulation.run(68 * S)
    made.ended(("b", "1"), "finished", "", "c")
    assert made.job_outcome == "finished"
    with pytest.raises(InvariantError, match=r"as failed for d .*as finished for others"):
        made.ended(("d", "1"), "failed", "", "c")


def test_a_fault_long_before_or_after_the_end_is_no_excuse() -> None:
    made = checker()
    made._simulation.run(40 * S)
    made.touch("b", 49 * S)
    made._simulation.run(60 * S)
    made.ended(("a", "1"), "finished", "", "a")
    made._simulation.run(71 * S)
    made.touch("b", 80 * S)
    with pytest.raises(InvariantError, match="ended as failed for b"):
        made.ended(("b", "1"), "failed", "", "a")


@pytest.mark.parametrize(("other", "after"), [(True, True), (True, False), (False, True)])
def test_a_launcher_that_is_started_after_the_end_may_lead_another_job(
    other: bool, after: bool
) -> None:
    made = checker()
    made.begin(("a", "1"), ledger(0, "a", "b"))
    made._simulation.run(60 * S)
    if not after:
        made.launched(("b", "2"))
    made.ended(("a", "1"), "finished", "", "a", birth=made.birth)
    made._simulation.run(80 * S)
    if after:
        made.launched(("b", "2"))
    birth = made.birth + other
    if other and after:
        assert not made.ended(("c", "1"), "failed", "nobody came", "b", birth=birth)
        return
    with pytest.raises(InvariantError, match="ended as failed for c"):
        made.ended(("c", "1"), "failed", "nobody came", "b", birth=birth)


def test_a_verdict_apart_is_that_of_a_launcher_that_began_anew() -> None:
    made = checker()
    made._simulation.run(60 * S)
    made.began_anew.add("b")
    assert not made.ended(("c", "1"), "failed", "nobody came", "b", unbegun=True)
    assert made.ended(("a", "1"), "finished", "", "a", unbegun=True)
    with pytest.raises(InvariantError, match="ended as failed for d"):
        made.ended(("d", "1"), "failed", "nobody came", "a", unbegun=True)


def test_what_may_keep_the_end_from_a_node_does_not_excuse_that_it_is_evicted() -> None:
    made = checker()
    made._simulation.run(60 * S)
    made.keep_from("b", 61 * S)
    assert not made.untouched_for("b", 1.0)
    made.begin(("a", "1"), ledger(0, "a", "b"))
    with pytest.raises(InvariantError, match="no healthy node is evicted: b"):
        made.begin(("a", "1"), ledger(1, "a", "c"))


def test_the_ledger_that_counts_is_the_newest_of_a_job_that_has_begun() -> None:
    made = checker()
    made.budget(ledger(2, "a", "b", epoch=5))
    made.budget(ledger(-1, epoch=9))
    assert made.ledger.epoch == 5
    made.budget(ledger(1, "a", "b", epoch=6))
    assert made.ledger.epoch == 6
    made.budget(ledger(2, "a", "b", epoch=5, version=3))
    assert made.ledger.epoch == 6


def test_one_leader_per_epoch() -> None:
    made = checker()
    made.leads(("a", "1"), 5, takeover=False)
    made.leads(("b", "1"), 6, takeover=True)
    assert made.takeovers == 1
    with pytest.raises(InvariantError, match="a and c both lead epoch 5"):
        made.leads(("c", "1"), 5, takeover=True)


@pytest.mark.parametrize("over", [False, True])
def test_another_job_under_the_same_name_waits_for_the_end_of_the_first(over: bool) -> None:
    made = checker()
    made.leads(("a", "1"), 5, takeover=False)
    made.begin(("a", "1"), ledger(0, "a", "b", epoch=5, birth=5))
    made._simulation.run(60 * S)
    if over:
        made.ended(("a", "1"), "finished", "every rank exited with 0", "a", birth=5)
    with pytest.raises(BegunAnew if over else InvariantError):
        made.begin(("c", "1"), ledger(0, "c", "d", epoch=9, birth=9))


def test_a_hang_is_judged_in_time_unless_its_leader_stood_still() -> None:
    made = checker()
    examination = Examination(("a", "b"), failed="a")
    made.examines("a", examination)
    made._simulation.run(3 * S)
    made.touch("a", made._simulation.now)
    made.examines("a", examination)
    made.examines("b", examination)
    made._simulation.run(6 * S)
    with pytest.raises(InvariantError, match="a hang is judged: b"):
        made.examines("b", examination)
    made.examines("b", None)
    made.examines("b", examination)


def test_who_ended_a_round_is_told_once() -> None:
    made = checker()
    made.blamed(("a", "1"), 7, 0, "rank 3 hangs")
    made.blamed(("b", "1"), 7, 0, "rank 3 hangs")
    made.blamed(("a", "1"), 8, 0, "rank 3 hangs")
    made.blamed(("a", "1"), 7, 0, "rank 1: exit code 1")  # hours after the hang
    with pytest.raises(InvariantError, match="one cause: a"):
        made.blamed(("a", "1"), 7, 0, "rank 3 hangs")


def test_a_round_that_begins_though_the_end_was_ordered() -> None:
    made = checker()
    made.leads(("a", "1"), 5, takeover=False)
    policy = JobPolicy(made._setup.policy)
    policy.last.closing.ending = Ending(Outcome.NO_RESTART, "a rank asked for a shutdown")
    made.decides(5, policy)
    made.begin(("a", "1"), ledger(0, "a", "b", epoch=5))
    policy.last.closing.ending = Ending(
        Outcome.NO_RESTART, f"{BY_HAND} on node a asked for a shutdown"
    )
    made.decides(6, policy)
    with pytest.raises(InvariantError, match="an order ends the job: round 1"):
        made.begin(("a", "1"), ledger(1, "a", "b", epoch=6))


def test_a_round_that_was_started_before_the_end_was_ordered_may_begin_after_it() -> None:
    made = checker()
    made.leads(("a", "1"), 5, takeover=False)
    ending = Ending(Outcome.NO_RESTART, f"{BY_HAND} on node a asked for a shutdown")
    policy = JobPolicy(made._setup.policy, round=1)
    policy.last.closing.ending = ending
    made.decides(5, policy)
    made.begin(("a", "1"), ledger(1, "a", "b", epoch=5))
    policy.round = 2
    made.decides(5, policy)
    with pytest.raises(InvariantError, match="an order ends the job: round 2"):
        made.begin(("a", "1"), ledger(2, "a", "b", epoch=5))


def test_what_is_ordered_costs_no_restart() -> None:
    made = checker()
    made.reported(RestartOrdered("a", 0, BY_HAND), 3, 3)
    made.reported(NodeFailed("a", 0, "exit code 1"), 3, 4)
    with pytest.raises(InvariantError, match="the budget"):
        made.reported(RestartOrdered("a", 0, BY_HAND), 3, 4)


def test_rounds_that_are_ordered_are_beside_the_budget() -> None:
    made = checker()
    made.free_rounds = 2
    for number in range(4):
        made.begin(("a", "1"), ledger(number, "a", "b"))
    with pytest.raises(InvariantError, match="the budget: round 4"):
        made.begin(("a", "1"), ledger(4, "a", "b"))


def test_rounds_after_a_silence_of_etcd_are_beside_the_budget() -> None:
    made = checker(Setup(2, 2, etcd=True, max_restarts=0))
    policy = JobPolicy(made._setup.policy, round=0)
    made.begin(("a", "1"), ledger(0, "a", "b"))
    policy.last.closing.reason = f"the job cannot go on: {UNHELD}"
    for _ in range(2):  # also once another leader stops the same round
        made.decides(5, policy)
    made.begin(("a", "1"), ledger(1, "a", "b"))
    with pytest.raises(InvariantError, match="the budget: round 2"):
        made.begin(("a", "1"), ledger(2, "a", "b"))


def test_who_is_excluded_is_in_no_later_round() -> None:
    made = checker(Setup(2, 2))
    made.may_be_excluded.add("c")
    out = {"c": "by hand"}
    made.budget(ledger(0, "a", "c", excluded=out))
    made.begin(("a", "1"), ledger(0, "a", "b", excluded=out))
    with pytest.raises(InvariantError, match="who is excluded stays so: c in round 1"):
        made.begin(("a", "1"), ledger(1, "a", "b", "c", excluded=out))
    with pytest.raises(InvariantError, match="who is excluded stays so: round 2 forgets c"):
        made.begin(("a", "1"), ledger(2, "a", "b"))
