"""Slow ranks among made-up ones, in noise."""

from __future__ import annotations

import random
from typing import Any

import pytest

from undaunted.attribution.straggler.slow import SlowRanks

RANKS = 8


def found(
    seed: int,
    *,
    slow: int | None = None,
    noise: float = 0.1,
    factor: float = 1.15,
    since: int = 0,
    **options: Any,
) -> tuple[int, Any] | None:
    """The first step with a finding, and the findings; 1 step in 50 of a rank takes three times."""
    rng = random.Random(seed)
    ranks = SlowRanks(**options)
    for step in range(200):
        own = {
            rank: 20
            * rng.lognormvariate(0, noise)
            * (factor if rank == slow and step >= since else 1)
            * (3 if rng.random() < 0.02 else 1)
            for rank in range(RANKS)
        }
        if findings := ranks.step(step, own, max(own.values()) + 5):
            return step, findings
    return None


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1, 0.2])
def test_the_slow_rank_is_found_in_200_steps(noise: float) -> None:
    for seed in range(20):
        step_and_findings = found(seed, slow=seed % RANKS, noise=noise)
        assert step_and_findings is not None
        _, (finding,) = step_and_findings
        assert finding.ranks == (seed % RANKS,)


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1, 0.2, 0.3])
def test_nobody_is_found_in_noise(noise: float) -> None:
    assert [seed for seed in range(20) if found(seed, noise=noise)] == []


def test_a_rank_that_becomes_slow() -> None:
    step_and_findings = found(1, slow=2, factor=1.5, since=100)
    assert step_and_findings is not None
    step, (finding,) = step_and_findings
    assert 100 < step < 130
    assert finding.cause == "slow_rank"
    assert finding.ranks == (2,)
    assert finding.t == step


def test_a_finding_names_the_node_and_the_share_of_time_lost() -> None:
    ranks = SlowRanks(nodes={2: "n1"})
    for step in range(100):
        findings = ranks.step(step, {0: 10.0, 1: 10.0, 2: 20.0}, 25.0)
    (finding,) = findings
    assert finding.nodes == ("n1",)
    assert "40 %" in finding.quote
    for step in range(400):
        findings = ranks.step(step, dict.fromkeys(range(3), 10.0), 15.0)
    assert not findings, "it is as fast as the others again"


def test_work_of_another_role_is_no_slowness() -> None:
    times = {0: 10.0, 1: 10.0, 2: 10.0, 3: 30.0, 4: 30.0, 5: 45.0}
    ranks = SlowRanks(roles={3: "last", 4: "last", 5: "last"})
    for step in range(50):
        findings = ranks.step(step, times, 50.0)
    assert [finding.ranks for finding in findings] == [(5,)]


@pytest.mark.parametrize("own", [{}, {0: 1.0}, {0: 1.0, 1: 9.0}, {0: 0.0, 1: 0.0, 2: 0.0}])
def test_too_few_peers_and_times_of_zero_say_nothing(own: dict[int, float]) -> None:
    ranks = SlowRanks()
    assert not any(ranks.step(step, own, 0.0) for step in range(100))
