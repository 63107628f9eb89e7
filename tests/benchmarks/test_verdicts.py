"""How jobs that compute wrong numbers are drawn and judged; nothing is started."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import verdicts
from benchmarks.verdicts import (
    CORRECT,
    EXCLUDED,
    INVALID,
    PERSISTENT,
    STEPS,
    TRANSIENT,
    Case,
    Outcome,
    drawn,
    judged,
)
from undaunted.training.rerun.table import OPINIONS, RerunDiagnostic

UNDISTURBED = [[f"{step} {rank}" for step in range(STEPS)] for rank in range(4)]
TWO_NODES, SPARE = verdicts.SETUPS[2:]


def case(kind: RerunDiagnostic, setup: verdicts.Setup = TWO_NODES, **more: Any) -> Case:
    one = drawn(0, random.Random(1))
    about = {"place": ("b", 0), "ranks": (1,), "step": 5, "go_on": ()}
    return replace(one, setup=setup, kind=kind, **{**about, **more})


def told(rank: int, where: str, kind: RerunDiagnostic, step: int = 5) -> dict[str, Any]:
    opinion = OPINIONS[kind]
    text = f"norm is not finite in iteration {step}, computed on {where}: {opinion}"
    return {"event": "rank_event", "rank": rank, "name": "odd_result", "text": text}


def outcome(*events: dict[str, Any], steps: int, slots: int = 2, **codes: int) -> Outcome:
    ranks = {node: list(range(at * slots, (at + 1) * slots)) for at, node in enumerate("ab")}
    started = [
        {"event": "round_started", "round": 0, "node": node, "ranks": of_node}
        for node, of_node in ranks.items()
    ]
    used = [of_rank[:steps] for of_rank in UNDISTURBED[: 2 * slots]]
    return Outcome(codes, {"a": [*started, *events]}, used)


def test_all_kinds_are_drawn_for_all_jobs() -> None:
    chance = random.Random(1)
    cases = [drawn(number, chance) for number in range(96)]
    assert {(one.kind, one.setup) for one in cases} == {
        (kind, setup) for kind in RerunDiagnostic for setup in verdicts.SETUPS
    }
    assert {one.place for one in cases} > {("a", 0), ("a", 3), ("b", 1)}
    assert {len(one.ranks) for one in cases} == {1, 2, 4}
    assert all(0 < one.step < STEPS for one in cases)


@pytest.mark.parametrize(
    ("one", "event"),
    [
        (case(TRANSIENT), told(2, "cpu:0 of node b", TRANSIENT)),
        (case(PERSISTENT), told(2, "cpu:0 of node b", PERSISTENT)),
        (case(CORRECT), told(1, "cpu:1 of node a", CORRECT)),
    ],
)
def test_a_job_that_ends_with_the_right_verdict(one: Case, event: dict[str, Any]) -> None:
    assert judged(one, outcome(event, steps=5, a=INVALID, b=INVALID), UNDISTURBED) == ""
    assert "exit codes" in judged(one, outcome(event, steps=5, a=INVALID, b=0), UNDISTURBED)
    assert "used" in judged(one, outcome(event, steps=6, a=INVALID, b=INVALID), UNDISTURBED)
    assert "say so" in judged(one, outcome(steps=5, a=INVALID, b=INVALID), UNDISTURBED)


@pytest.mark.parametrize(
    "event",
    [
        told(2, "cpu:0 of node b", CORRECT),
        told(2, "cpu:1 of node b", PERSISTENT),
        told(2, "cpu:0 of node a", PERSISTENT),
        told(2, "cpu:0 of node b", PERSISTENT, step=6),
        told(3, "cpu:1 of node b", PERSISTENT),
    ],
)
def test_a_wrong_verdict(event: dict[str, Any]) -> None:
    found = outcome(event, steps=5, a=INVALID, b=INVALID)
    assert judged(case(PERSISTENT), found, UNDISTURBED) != ""


def test_a_job_that_goes_on_to_the_end() -> None:
    go_on = ("transient_error", "persistent_error")
    once = case(TRANSIENT, go_on=go_on)
    event = told(2, "cpu:0 of node b", TRANSIENT)
    assert judged(once, outcome(event, steps=STEPS, a=0, b=0), UNDISTURBED) == ""
    always = case(PERSISTENT, SPARE, go_on=go_on)
    event = told(1, "cpu:0 of node b", PERSISTENT)
    found = outcome(event, steps=STEPS, slots=1, a=0, b=EXCLUDED, c=0)
    assert judged(always, found, UNDISTURBED[:2]) == ""
    found = outcome(event, steps=STEPS, slots=1, a=EXCLUDED, b=0, c=0)
    assert "left out" in judged(always, found, UNDISTURBED[:2])
