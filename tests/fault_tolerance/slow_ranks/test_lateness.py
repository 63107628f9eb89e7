"""How late made-up ranks come, in noise."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from undaunted.fault_tolerance.slow_ranks.lateness import Lateness
from undaunted.fault_tolerance.slow_ranks.slow import Times


def after(steps: int, *, more: float, noise: float, seed: int = 0) -> Lateness:
    """Eight ranks work for 20 in a step, rank 2 for ``more``; ``noise``: sigma, log-normal."""
    rng = random.Random(seed)
    known = Lateness()
    for _ in range(steps):
        own = {rank: 20 * rng.lognormvariate(0, noise) + more * (rank == 2) for rank in range(8)}
        known.step({rank: Times((each,), 60.0) for rank, each in own.items()})
    return known


def test_nothing_is_known_before_the_first_step_and_of_too_few_ranks() -> None:
    known = Lateness()
    known.step({0: Times((1.0,), 10.0), 1: Times((9.0,), 10.0)})
    assert (known.mean(1), known.most(1), known.is_late(1)) == (math.inf, math.inf, False)


def test_without_noise_it_is_what_it_is() -> None:
    known = after(50, more=3, noise=0)
    assert known.mean(2) == pytest.approx(3)
    assert known.most(2) == pytest.approx(3)
    assert known.mean(0) == 0
    assert [rank for rank in range(8) if known.is_late(rank)] == [2]


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.5])
def test_it_is_hardly_ever_more_than_the_most(noise: float) -> None:
    known = [after(100, more=3, noise=noise, seed=seed) for seed in range(100)]
    assert statistics.mean(each.mean(2) for each in known) == pytest.approx(3, abs=6 * noise)
    assert sum(each.most(2) < 3 for each in known) <= 5


def test_the_most_comes_down_with_the_steps() -> None:
    few, many = after(1, more=0, noise=0.3, seed=1), after(200, more=0, noise=0.3, seed=1)
    assert few.most(5) - few.mean(5) > 2 * (many.most(5) - many.mean(5))


def test_a_rank_that_is_late_no_more() -> None:
    known = after(50, more=10, noise=0)
    for _ in range(60):
        known.step({rank: Times((20.0,), 60.0) for rank in range(8)})
    assert not known.is_late(2)
    assert known.most(2) < 1
