"""Whole runs: they repeat exactly, and nothing that must not happen does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from simulator.coordination.faults import KINDS
from simulator.coordination.run import run, vary
from simulator.coordination.setup import Setup
from simulator.coordination.trace import line
from tests.simulator.coordination.bugs import BUGS, Bug
from tests.simulator.coordination.jobs import S, at, job

if TYPE_CHECKING:
    from collections.abc import Sequence

# How many seeds are tried to find a planted bug.
TRIES = 200
# Some seeds were looked at when there were no other kinds.
BEFORE_ORDERS = tuple(kind for kind in KINDS if kind != "order")


def story(seed: int) -> list[str]:
    lines: list[str] = []

    def trace(now: int, name: str, what: Any) -> None:
        lines.append(line(now, name, what))

    run(vary(seed, 4, 2), seed, trace=trace)
    return lines


def test_the_same_seed_gives_the_same_run_event_for_event() -> None:
    first = story(5)
    assert first == story(5)
    assert len(first) > 100
    assert first != story(6)


@pytest.mark.parametrize(
    "seed",
    [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 100))],
)
def test_every_kind_of_fault(seed: int) -> None:
    assert not run(vary(seed, 4, 2), seed).problem


SMALL = [(1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1)]


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize(("nodes", "spares"), SMALL)
def test_every_kind_of_fault_in_a_small_job(nodes: int, spares: int, seed: int) -> None:
    assert not run(vary(seed, nodes, spares), seed).problem


@pytest.mark.parametrize("kinds", [tuple(KINDS), ("hang", "reset", "kill", "coordinator")])
@pytest.mark.parametrize(("nodes", "spares"), [(2, 3), (4, 2)])
def test_a_job_that_goes_on_with_healthy_nodes(
    nodes: int, spares: int, kinds: tuple[str, ...]
) -> None:
    for seed in range(15):
        assert not run(vary(seed, nodes, spares, min_healthy=True), seed, kinds=kinds).problem, seed


def test_restarts_are_limited_within_a_time() -> None:
    for seed in range(15):
        setup = vary(seed, 3, 1, restart_intensity=(3, 30.0))
        assert not run(setup, seed).problem, seed


# What was found once: each of them was a bug.
@pytest.mark.parametrize(
    ("nodes", "spares", "seed"),
    [
        (1, 1, 220),  # followers stopped later than the leader thought
        (1, 1, 1366),  # a leader whose node had left did not see that a round ran without it
        (1, 2, 1888),  # a node that had stopped and left was waited for as if it still ran
        (1, 2, 2461),  # the last leader was forgotten, since it was no member
        (2, 0, 371),  # a connection on which nobody answered was waited for
        (2, 1, 30),  # the node of the leader left a job too small for a vote
        (1, 2, 122),  # a leader that recovered let a node run a round that was over
        (1, 2, 3061),  # members of a table that was prepared were not asked for the leader
        (3, 1, 1293),  # a launcher that was told to stop took over
        (4, 2, 30840),  # a leader that stood still took who had missed it for lost
        (4, 2, 31553),  # what a machine that had stood still read late was a new lease
    ],
)
def test_what_was_found_once(nodes: int, spares: int, seed: int) -> None:
    kinds = [kind for kind in BEFORE_ORDERS if kind != "disk"]
    assert not run(vary(seed, nodes, spares), seed, kinds=kinds).problem


@pytest.mark.parametrize(
    ("nodes", "spares", "seed"),
    [
        (2, 3, 21578),  # a leader that met a later promise passed off what it knew as newer
        (2, 3, 20488),  # so did one that had stood still
        (2, 3, 20212),  # a round that no quorum had begun made every later leader stand down
        (2, 3, 21775),  # the elected leader gave way to one that nobody had agreed to
        (3, 4, 2072),  # two leaders gave way to each other
        (2, 3, 2109),  # a launcher whose disk was lost kept a member of a job that another led
        (2, 3, 3675),  # members took a ledger of no job at all for newer than their own
        (2, 3, 8885),  # what was begun last came from a leader that was not the latest
        (2, 3, 20029),  # here, and in the next, a leader that gave way to every promise was missed
        (2, 3, 20439),
        (3, 4, 16679),  # a reset that was heard of late made the lease of a member longer
        (3, 4, 24576),  # so did a leader that had been started again, and was cut off
        (2, 3, 12480),  # two led a job without votes, one of them after its disk was lost
        (2, 3, 24441),  # two leaders gave way to each other, one of them in a later round
        (2, 3, 10944),  # here, and in the next, what had been written last was lost with a disk
        (3, 4, 12351),
        (2, 3, 32891),  # a coordinator that was started again twice had an earlier epoch
        (2, 3, 46693),  # who began anew was told nothing by a leader without a quorum
        (3, 4, 26669),  # a launcher whose disk was lost waited for nodes beside a lost quorum
    ],
)
def test_what_was_found_once_in_an_elastic_job(nodes: int, spares: int, seed: int) -> None:
    assert not run(vary(seed, nodes, spares, elastic=True), seed, kinds=BEFORE_ORDERS).problem


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        # A leader without its disk was not told that the members all knew of their round.
        (40547, BEFORE_ORDERS),
        # A node that had failed was told to stop after an iteration that its ranks had passed.
        (1507, ["order", "order", "crash", "kill", "disk", "coordinator", "partition", "isolate"]),
        # A job that was said to end went on if the node that left was lost meanwhile.
        (60650, tuple(KINDS)),
    ],
)
def test_what_was_found_once_where_healthy_nodes_go_on(seed: int, kinds: Sequence[str]) -> None:
    assert not run(vary(seed, 4, 2, min_healthy=True), seed, kinds=kinds).problem


@pytest.mark.parametrize(
    ("setup", "seed", "kinds", "faults"),
    [
        # A leader that stood still started a round on acknowledgements of before.
        (vary(96, 3, 0), 96, tuple(KINDS), 20),
        # A node that still heard the leader before came back a moment before the next round began.
        (vary(4138, 2, 3, elastic=True), 4138, tuple(KINDS), 20),
        # A job ended as a spare left, though it was another node that was missing.
        (Setup(5, 2), 86, ("kill", "leave", "power"), 15),
        # A leader that kept the register alone lost its disk; one that began anew heard of the job
        # from a launcher that knew less.
        (vary(100, 1, 2), 100, tuple(KINDS), 20),
        # A launcher that had missed the end of its committee was refused by one that knew it.
        (vary(3036, 2, 1), 3036, tuple(KINDS), 20),
        # A leader was to keep the register alone, lost the lead before that, and claimed nothing.
        (vary(80002, 2, 1), 80002, tuple(KINDS), 20),
        # Of a launcher that was elected a member knew nothing but its claim, and did not find it.
        (vary(100039, 2, 1), 100039, tuple(KINDS), 20),
        # A leader without its disk stood still, and heard then that the job had begun.
        (vary(101228, 2, 1), 101228, tuple(KINDS), 20),
        # The leader of a job that had ended a moment before was still there: a wrong check.
        (vary(103266, 1, 2), 103266, tuple(KINDS), 20),
        # A start was heard after an order to end the job that had come after it: a wrong check.
        (vary(90177, 4, 2), 90177, tuple(KINDS), 20),
        # Only a leader whose machine was gone knew of a committee: wrongly one that could elect.
        (vary(95190, 2, 1), 95190, tuple(KINDS), 20),
        # The same where its launcher was started again: a wrong check.
        (vary(310275, 1, 2), 310275, tuple(KINDS), 20),
        # A node that had lost the only keeper took the job to a launcher that had begun nothing.
        (vary(103055, 2, 2), 103055, tuple(KINDS), 20),
    ],
)
def test_what_was_found_once_with_orders(
    setup: Setup, seed: int, kinds: Sequence[str], faults: int
) -> None:
    assert not run(setup, seed, kinds=kinds, faults=faults).problem


def test_who_has_missed_a_hand_over_has_stopped_before_others_take_its_place() -> None:
    assert not run(vary(50142, 8, 2), 50142, faults=12).problem


@pytest.mark.parametrize("seed", [910523, 910794])
def test_who_is_left_of_an_earlier_start_does_not_wait_for_members_that_have_ended(
    seed: int,
) -> None:
    assert not run(vary(seed, 2, 1), seed).problem


@pytest.mark.parametrize("seed", [18407, 27155])
def test_who_knows_only_a_node_that_is_gone_need_not_hear_of_the_end(seed: int) -> None:
    assert not run(vary(seed, 4, 2), seed, kinds=BEFORE_ORDERS).problem


def test_who_knows_only_a_node_that_is_gone_need_not_have_ended_when_the_last_one_leaves() -> None:
    """A node that led by hand-over leaves, and nobody else has heard of it."""
    assert not run(vary(30156, 1, 2), 30156, faults=12).problem


def test_a_node_that_came_in_the_place_of_another_one_hears_of_the_end() -> None:
    """A leader ends the job when it has just taken over."""
    away = [at(6, "kill", "n000", lasts=39), at(16, "power", "n001", lasts=29, to="n005")]
    cluster = job(Setup(2, 3, elastic=True), 2, [*away, at(44, "power", "n004")])
    cluster.simulation.run(55 * S)
    cluster.finish()
    cluster.simulation.run(200 * S)
    ended = {node: how for (node, _), (how, _) in cluster.checker.ended_as.items()}
    assert ended == dict.fromkeys(("n000", "n002", "n003", "n005"), "finished")


def test_a_newcomer_at_the_end_of_a_job_that_was_just_taken_over() -> None:
    setup = vary(6085, 2, 3, elastic=True, restart_intensity=(6, 60.0))
    assert not run(setup, 6085, kinds=BEFORE_ORDERS).problem


@pytest.mark.parametrize("min_healthy", [False, True])
def test_a_job_that_was_to_end_does_not_go_on(min_healthy: bool) -> None:
    more = {"min_healthy": min_healthy, "restart_intensity": (6, 60.0)}
    assert not run(vary(2335, 4, 2, **more), 2335, kinds=BEFORE_ORDERS).problem


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_fault_in_a_larger_job(seed: int) -> None:
    assert not run(vary(seed, 24, 3), seed).problem


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_seeds_find_a_planted_bug(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        bug.plant(patch)
        found = next(seed for seed in range(TRIES) if bug.finds in problem(bug, seed))
    assert bug.finds not in problem(bug, found), "it is not the planted bug that was found"


def problem(bug: Bug, seed: int) -> str:
    return run(bug.setup, seed, kinds=bug.kinds, faults=bug.faults).problem
