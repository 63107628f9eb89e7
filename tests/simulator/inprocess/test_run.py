"""Whole runs: they repeat exactly, and nothing that must not happen does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.inprocess.run import run
from simulator.inprocess.setup import Setup, vary
from tests.simulator.inprocess.bugs import BUGS, Bug
from undaunted.inprocess.core import messages as m

# How many seeds are tried to find a planted bug.
TRIES = 200


def story(seed: int) -> list[str]:
    lines: list[str] = []

    def trace(now: int, name: str, what: Any) -> None:
        lines.append(f"{now} {name} {what}")

    run(vary(seed, 4), seed, trace=trace)
    return lines


def test_the_same_seed_gives_the_same_run_event_for_event() -> None:
    first = story(5)
    assert first == story(5)
    assert len(first) > 100
    assert first != story(6)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_faults_of_every_kind(ranks: int) -> None:
    problems = {seed: run(vary(seed, ranks), seed).problem for seed in range(25)}
    assert not any(problems.values()), problems


def test_a_job_without_faults_finishes_its_calls() -> None:
    result = run(Setup(4, reserves=1), 0, faults=0)
    assert not result.problem
    assert set(result.ends) == {"finished"}


@pytest.mark.parametrize("kind", ["raise", "kill", "leave", "block", "stop"])
def test_one_fault_and_the_others_go_on(kind: str) -> None:
    for seed in range(5):
        result = run(Setup(4), seed, kinds=(kind,), faults=1)
        assert not result.problem
        assert result.ends["finished"] >= 3


def test_a_lost_rank_is_replaced() -> None:
    result = run(Setup(4, per_node=2, moves=True, rejoin=True), 1, kinds=("kill",), faults=3)
    assert not result.problem


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_seeds_find_a_planted_bug(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        bug.plant(patch)
        found = next(seed for seed in range(TRIES) if problem(bug, seed).startswith(bug.finds))
    assert not problem(bug, found), "it is not the planted bug that was found"


def problem(bug: Bug, seed: int) -> str:
    return run(bug.setup, seed, kinds=bug.kinds).problem


@pytest.mark.parametrize("seed", [201781, 201798])
def test_a_guard_that_has_found_the_new_controller_stays_connected(seed: int) -> None:
    """It was told of the move later, and dropped the connection where the network was cut."""
    result = run(vary(seed, 8), seed)
    assert not result.problem


def test_a_reserve_waits_without_a_limit_while_others_work() -> None:
    """The limit of its wait for the record went on."""
    result = run(vary(206331, 8), 206331)
    assert not result.problem


@pytest.mark.parametrize("seed", [406323, 429665])
def test_a_function_that_has_swallowed_an_interruption_returns(seed: int) -> None:
    """The rank has the verdict already, and waits for no other."""
    result = run(vary(seed, 3), seed)
    assert not result.problem


def test_the_others_wait_for_the_end_of_a_rank_that_is_late() -> None:
    """Its guard stood still and told it late to stop: it had time beyond the others' limit."""
    result = run(vary(410560, 8), 410560)
    assert not result.problem


def test_a_new_controller_waits_for_the_end_of_a_rank_that_is_cut_off() -> None:
    """It took the rank for lost, and the others began, when its guard had told it to leave."""
    setup = replace(vary(710362, 8), longest_ms=30_000, limits=m.Limits(heartbeat_timeout=12.0))
    kinds = ("stick", "cut", "move", "raise", "block", "reset")
    assert not run(setup, 710362, kinds=kinds).problem


@pytest.mark.parametrize("seed", [205425, 206396])
def test_late_messages_of_an_older_connection_do_not_count(seed: int) -> None:
    """They were taken for those of a newer one, since they came after its first message."""
    result = run(vary(seed, 8), seed)
    assert not result.problem
