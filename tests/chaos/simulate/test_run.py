"""Whole runs: they repeat exactly, and nothing that must not happen does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.simulate.bugs import BUGS, Bug
from undaunted.chaos.simulate.run import run, vary
from undaunted.chaos.simulate.trace import line

# How many seeds are tried to find a planted bug.
TRIES = 200


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


@pytest.mark.parametrize("seed", range(100))
def test_every_kind_of_fault(seed: int) -> None:
    assert not run(vary(seed, 4, 2), seed).problem


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
