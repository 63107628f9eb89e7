"""How often the analysis is right about look-alikes of NCCL's dumps, which were made without it.

``python -m tests.attribution.flight.test_judgement`` judges all of them, and more with
``FIRST_SEED LAST_SEED WORLD``; it prints what was wrong.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.attribution.flight.lookalikes import (
    DEEP,
    FAULTS,
    SCENARIOS,
    VERSIONS,
    Scenario,
    Truth,
    generate,
)
from undaunted.attribution.flight import reader
from undaunted.attribution.flight.culprits import Analysis, analyse
from undaunted.attribution.flight.files import rank_of
from undaunted.attribution.flight.recording import reduce

if TYPE_CHECKING:
    from collections.abc import Iterable


def judge(scenario: Scenario) -> tuple[Truth, Analysis]:
    made = generate(*scenario)
    names = {rank: rank_of(name) for rank, name in made.names.items()}
    return made.truth, analyse(
        [reduce(reader.load(dump), names[rank]) for rank, dump in made.dumps.items()]
    )


def is_right(truth: Truth, found: Analysis) -> bool:
    causes = {one.cause for one in found.culprits}
    return truth.accepts({one.rank for one in found.culprits}) and causes <= truth.causes


@pytest.mark.parametrize("fault", FAULTS)
def test_the_right_ranks_and_cause(fault: str) -> None:
    all_of = [one for one in SCENARIOS if one.world == 16 and one.seed < DEEP]
    chosen = [one for one in all_of if one.fault == fault]
    wrong = [one for one in chosen if not is_right(*judge(one))]

    assert len(chosen) >= 10
    assert len(wrong) * 20 <= len(chosen), wrong


def main(scenarios: Iterable[Scenario]) -> None:
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for one in scenarios:
        truth, found = judge(one)
        total[one.fault] += 1
        right[one.fault] += is_right(truth, found)
        if not is_right(truth, found):
            print(f"  {one}: {truth}")
            for culprit in found.culprits[:8]:
                print(f"    {culprit.rank} {culprit.cause}: {culprit.evidence}")
    for fault, number in total.items():
        print(f"{fault:16} {right[fault]} of {number}")
    print(f"{sum(right.values())} of {sum(total.values())} right")


if __name__ == "__main__":
    if sys.argv[1:]:
        first, last, world = map(int, sys.argv[1:])
        main(
            Scenario(seed, world, version, fault)
            for seed in range(first, last)
            for version in VERSIONS
            for fault in FAULTS
        )
    else:
        main(SCENARIOS)
