"""Slow ranks among made-up ones, in noise."""

from __future__ import annotations

import random
import statistics

import pytest

from undaunted.fault_tolerance.slow_ranks.slow import SlowRanks, Times

RANKS = 8


def found(
    seed: int,
    *,
    slow: int | None = None,
    noise: float = 0.1,
    factor: float = 1.15,
    since: int = 0,
    of: int = 1,
) -> tuple[int, set[int]] | None:
    """The first step with a slow rank, and it; 1 step in 50 of a rank takes three times.

    ``of``: what is compared is the median of so many steps, as in a job of five.
    """
    rng = random.Random(seed)
    ranks = SlowRanks()

    def took(step: int, rank: int) -> float:
        usual = 20 * rng.lognormvariate(0, noise) * (3 if rng.random() < 0.02 else 1)
        return usual * (factor if rank == slow and step >= since else 1)

    for step in range(200):
        own = {
            rank: statistics.median_low(took(step, rank) for _ in range(of))
            for rank in range(RANKS)
        }
        longest = max(own.values()) + 5
        ranks.step({rank: Times((each,), longest) for rank, each in own.items()})
        if ranks.slow:
            return step, ranks.slow
    return None


def alike(own: dict[int, float], step: float) -> dict[int, Times]:
    return {rank: Times((each,), step) for rank, each in own.items()}


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1, 0.2])
def test_the_slow_rank_is_found_in_200_steps(noise: float) -> None:
    for seed in range(20):
        step_and_ranks = found(seed, slow=seed % RANKS, noise=noise)
        assert step_and_ranks is not None
        assert step_and_ranks[1] == {seed % RANKS}


@pytest.mark.parametrize(("factor", "within"), [(1.07, 1000), (1.10, 200), (1.12, 200)])
def test_a_rank_that_is_less_slow_is_found_later(factor: float, within: int) -> None:
    for seed in range(24):
        chunk_and_ranks = found(seed, slow=seed % RANKS, noise=0.1, factor=factor, of=5)
        assert chunk_and_ranks is not None
        assert chunk_and_ranks[1] == {seed % RANKS}
        assert 5 * (chunk_and_ranks[0] + 1) <= within


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1, 0.2, 0.3])
def test_nobody_is_found_in_noise(noise: float) -> None:
    assert [seed for seed in range(20) if found(seed, noise=noise)] == []


def test_a_rank_that_becomes_slow() -> None:
    step_and_ranks = found(1, slow=2, factor=1.5, since=100)
    assert step_and_ranks is not None
    step, slow = step_and_ranks
    assert 100 < step < 130
    assert slow == {2}


def test_how_slow_it_is_and_the_share_of_time_lost() -> None:
    ranks = SlowRanks()
    for _ in range(100):
        ranks.step(alike({0: 10.0, 1: 10.0, 2: 20.0}, 25.0))
    assert ranks.slow == {2}
    assert ranks.of(2) == pytest.approx((1.0, 0.4))
    for _ in range(400):
        ranks.step(alike(dict.fromkeys(range(3), 10.0), 15.0))
    assert not ranks.slow, "it is as fast as the others again"
    assert ranks.of(2) == (0.0, 0.0)


def test_what_is_said_of_a_rank_is_not_more_than_what_is_certain() -> None:
    ranks = SlowRanks()
    for _ in range(40):
        own = {0: 10.0, 1: 10.0, 2: 20.0}
        ranks.step({rank: Times((each,), 25.0, None, 5.0) for rank, each in own.items()})
    assert ranks.slow == {2}
    assert ranks.of(2) == pytest.approx((0.5, 0.2))
    assert ranks.costs(2) == pytest.approx(0.2)
    for _ in range(1000):
        ranks.step({rank: Times((each,), 25.0, None, -3.0) for rank, each in own.items()})
    assert ranks.of(2) == pytest.approx((0.05, 0.0), abs=0.03), "more than the allowance"
    assert ranks.costs(2) == 0.0


def test_who_could_be_compared() -> None:
    ranks = SlowRanks()
    ranks.step(alike({0: 1.0, 1: 1.0, 2: 1.0, 3: 0.0}, 2.0))
    assert ranks.compared == {0, 1, 2}
    ranks.step(alike({0: 1.0, 1: 1.0}, 2.0))
    assert ranks.compared == set()


def test_work_of_another_role_is_no_slowness() -> None:
    own = {0: 10.0, 1: 10.0, 2: 10.0, 3: 30.0, 4: 30.0, 5: 45.0}
    ranks = SlowRanks()
    for _ in range(50):
        ranks.step({rank: Times((each,), 50, rank >= 3) for rank, each in own.items()})
    assert ranks.slow == {5}


def test_where_the_later_times_hold_waits_the_earlier_ones_say_who_is_late() -> None:
    """The second collective is called after the first one has ended, at the same time by all."""
    own = {0: (10.0, 30.0), 1: (10.0, 30.0), 2: (13.0, 30.0), 3: (10.0, 30.0)}
    ranks = SlowRanks()
    for _ in range(50):
        ranks.step({rank: Times(each, 40.0) for rank, each in own.items()})
    assert ranks.slow == {2}
    assert ranks.of(2) == pytest.approx((0.2, 0.075)), "of half of 30: 10 may be too little"


@pytest.mark.parametrize("own", [(3.0, 1.0, 2.0), (1.0, 1.0, 5.0, 1.0), (4.0, 2.0, 9.0, 2.0, 5.0)])
def test_each_is_compared_with_the_median_of_the_others(own: tuple[float, ...]) -> None:
    ranks = SlowRanks()
    ranks.step({rank: Times((each,), 10.0) for rank, each in enumerate(own)})
    for rank, mine in enumerate(own):
        usual = statistics.median_low(own[:rank] + own[rank + 1 :])
        assert ranks.of(rank)[0] == pytest.approx(max(0.0, mine / usual - 1))


@pytest.mark.parametrize("own", [{}, {0: 1.0}, {0: 1.0, 1: 9.0}, {0: 0.0, 1: 0.0, 2: 0.0}])
def test_too_few_peers_and_times_of_zero_say_nothing(own: dict[int, float]) -> None:
    ranks = SlowRanks()
    for _ in range(100):
        ranks.step(alike(own, 10.0))
    assert not ranks.slow
