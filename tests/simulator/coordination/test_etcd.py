"""Jobs in which etcd decides who leads, with the real candidacy and client on a stand-in for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from simulator.coordination.faults import ETCD_KINDS, KINDS
from simulator.coordination.run import run, vary
from simulator.coordination.setup import Setup
from simulator.etcd.members import MEMBERS
from tests.simulator.coordination.jobs import S, finish, job
from undaunted.coordinator.etcd.client import Client
from undaunted.coordinator.lead.fence import Preparation

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.coordination.cluster import Cluster

ALL = (*KINDS, *ETCD_KINDS)
TRIES = 60
FOUR = Setup(4, 2, etcd=True)


def leader(cluster: Cluster) -> str:
    alive = cluster.simulation.is_alive
    (name,) = (name for name, agent in cluster.agents.items() if agent.leads and alive(name))
    return name


@pytest.mark.parametrize("seed", range(15))
def test_every_kind_of_fault(seed: int) -> None:
    assert not run(vary(seed, 4, 2, etcd=True), seed, kinds=ALL).problem


def test_a_spare_that_knows_an_old_state_comes_to_a_job_that_has_begun_anew() -> None:
    assert not run(vary(910175, 2, 1, etcd=True), 910175, kinds=ALL).problem


@pytest.mark.parametrize(
    ("nodes", "spares", "seed"),
    [(4, 2, 1065), (2, 3, 1046), (2, 1, 563), (2, 3, 1141), (2, 3, 5079), (2, 3, 5156)],
)
def test_who_was_cut_off_brings_no_old_state_back(nodes: int, spares: int, seed: int) -> None:
    """Neither where nobody had answered of a start that was left in etcd, nor after its end."""
    setup = vary(seed, nodes, spares, elastic=spares == 3, etcd=True)
    assert not run(setup, seed, kinds=ALL).problem


def test_a_launcher_that_is_started_after_the_end_has_a_job_of_its_own() -> None:
    assert not run(vary(535, 2, 1, etcd=True), 535, kinds=ALL).problem


def test_a_round_that_is_stopped_since_etcd_does_not_answer_is_beside_the_budget() -> None:
    assert not run(vary(95080, 4, 2, etcd=True), 95080, kinds=ALL).problem


@pytest.mark.parametrize(("nodes", "spares"), [(1, 1), (2, 0), (2, 1), (3, 0)])
def test_every_kind_of_fault_in_a_small_job(nodes: int, spares: int) -> None:
    for seed in range(4):
        assert not run(vary(seed, nodes, spares, etcd=True), seed, kinds=ALL).problem, seed


def test_the_next_leader_is_there_within_a_second_of_the_end_of_a_launcher() -> None:
    cluster = job(FOUR)
    lost = leader(cluster)
    cluster.kill(lost)
    cluster.simulation.run(5 * S)
    assert leader(cluster) != lost
    cluster.simulation.run(8 * S)
    assert cluster.checker.job_runs
    assert finish(cluster) == "finished"


@pytest.mark.parametrize("how", ["one is killed", "all stand still"])
def test_what_happens_to_etcd_costs_no_restart(how: str) -> None:
    cluster = job(FOUR)
    if how == "one is killed":
        cluster.simulation.kill(MEMBERS[0])
    else:
        for member in MEMBERS:
            cluster.stop_member(member)
    cluster.simulation.run(16 * S)
    for member in MEMBERS:
        cluster.let_member_go_on(member)
    cluster.simulation.run(40 * S)
    assert cluster.checker.job_runs
    assert cluster.checker.rounds == 1
    assert finish(cluster) == "finished"


def test_a_table_waits_for_ranks_of_before_and_for_no_fraction_of_a_nanosecond() -> None:
    """A timer of no time at all was set again and again."""
    assert not run(Setup(2, 2, etcd=True), 57, kinds=("isolate", "one-way"), faults=2).problem


def test_nothing_starts_while_etcd_does_not_answer() -> None:
    cluster = job(FOUR)
    for member in MEMBERS:
        cluster.stop_member(member)
    ranks = cluster.agents[leader(cluster)].ranks
    assert ranks is not None
    ranks.end_later(0, 1, 0)
    cluster.simulation.run(7 * S)
    assert not cluster.checker.job_runs
    assert cluster.checker.rounds == 1
    for member in MEMBERS:
        cluster.let_member_go_on(member)
    cluster.simulation.run(30 * S)
    assert cluster.checker.job_runs
    assert cluster.checker.rounds == 2


# --- planted bugs ---------------------------------------------------------------------------------


def a_ledger_is_written_whoever_leads(patch: pytest.MonkeyPatch) -> None:
    transact = Client._transact

    async def careless(self: Client, success: list[bytes], *args: Any, **more: Any) -> Any:
        if len(success) == 1 and "epoch" in more:
            del more["epoch"]
        return await transact(self, success, *args, **more)

    patch.setattr(Client, "_transact", careless)


def nobody_waits_for_the_leader_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Preparation, "_has_stopped_alone", True)
    patch.setattr(Preparation, "_unheard_left_s", lambda *_, **__: 0.0)


BUGS = [
    (
        a_ledger_is_written_whoever_leads,
        "one history",
        Setup(4, 2, etcd=True),
        ("member", "etcd", "pause", "kill", "crash"),
        12,
    ),
    (
        nobody_waits_for_the_leader_before,
        "each rank once",
        Setup(2, 2, etcd=True),
        ("isolate",),
        2,
    ),
]


@pytest.mark.parametrize(("plant", "finds", "setup", "kinds", "faults"), BUGS)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    finds: str,
    setup: Setup,
    kinds: tuple[str, ...],
    faults: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    runs = (run(setup, seed, kinds=kinds, faults=faults) for seed in range(TRIES))
    assert any(each.problem.startswith(finds) for each in runs)
