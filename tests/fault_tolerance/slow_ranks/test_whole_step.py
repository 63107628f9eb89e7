"""Where in a step a rank is slow: records of generated steps become lines about slow ranks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest

from undaunted.coordinator.policy.messages import Place, Slow
from undaunted.fault_tolerance.slow_ranks import own_times
from undaunted.fault_tolerance.slow_ranks.own_times import RankTimes, Step
from undaunted.fault_tolerance.slow_ranks.pace import Pace

MS = 1_000_000
PARTS_MS = {
    "data": 10,
    "forward": 25,
    "backward": 40,
    "clipping": 5,
    "optimizer": 15,
    "logging": 5,
}
BEFORE, BETWEEN, AFTER = "before collectives", "between collectives", "after collectives"
WHERE = {
    "data": BEFORE,
    "forward": BEFORE,
    "backward": BETWEEN,
    "clipping": AFTER,
    "optimizer": AFTER,
    "logging": AFTER,
}
BUCKETS = 3  # collectives of a step, all of them called in the backward pass


@dataclass
class Rank:
    steps: list[Step] = field(default_factory=list)
    called: list[int] = field(default_factory=lambda: [0])
    told_ns: int = 0


def found(
    *,
    slow: int = -1,
    part: str = "",
    more_ms: float = 30,
    noise: float = 0.03,
    seed: int = 0,
    nodes: tuple[Place, ...] = (Place("a", 0, 0, 4),),
    ahead_ms: float = 0,
    waited: bool = True,
) -> list[Slow]:
    """Let 4 ranks make 400 steps of 100 ms; all wait for the last one to call its last collective.

    Args:
        slow: a rank that takes ``more_ms`` longer in this part of each step.
        noise: standard deviation of what a part takes; 1 step in 50 takes three times as long.
        ahead_ms: how far the clock of the second node is ahead.
        waited: as torch's recorder says of gloo.
    """
    rng = random.Random(f"{slow} {part} {noise} {seed}")
    pace = Pace(0, nodes)
    node_of = {p.first_rank + i: p.node for p in nodes for i in range(p.slots)}
    ranks = {rank: Rank() for rank in node_of}
    clock = {rank: ahead_ms * MS * (node != "a") for rank, node in node_of.items()}
    now = dict.fromkeys(ranks, 1_000 * MS)
    lines = []
    for number in range(400):
        calls = {}
        behind = {}
        for rank, each in ranks.items():
            spike = 3 if rng.random() < 0.02 else 1
            took = {
                name: MS
                * (
                    ms * spike * rng.lognormvariate(0, noise)
                    + more_ms * (rank == slow and name == part)
                )
                for name, ms in PARTS_MS.items()
            }
            each.steps.append(Step(int(now[rank] + clock[rank]), number))
            begun = now[rank] + took["data"] + took["forward"]
            calls[rank] = [begun + took["backward"] * n / BUCKETS for n in range(1, BUCKETS + 1)]
            each.called += [int(at + clock[rank]) for at in calls[rank]]
            behind[rank] = took["clipping"] + took["optimizer"] + took["logging"]
        end = max(each[-1] for each in calls.values())
        now = {rank: int(end + rng.random() * MS / 4 + behind[rank]) for rank in ranks}
        if number % 20 == 19:
            for place in nodes:
                told = []
                for rank in range(place.first_rank, place.first_rank + place.slots):
                    each = ranks[rank]
                    chunks, each.told_ns = own_times.chunks(
                        each.steps[-41:], each.called[-41 * BUCKETS :], each.told_ns, waited=waited
                    )
                    told.append(RankTimes(rank, chunks, 2_000_000))
                lines += list(pace(place.node, msgspec.msgpack.encode(told)))
    assert all(isinstance(one, Slow) for one in lines)
    return [one for one in lines if isinstance(one, Slow) and one.line]


@pytest.mark.parametrize("part", PARTS_MS)
def test_a_rank_that_is_slow_anywhere_in_a_step_is_named_with_the_part(part: str) -> None:
    (line,) = found(slow=2, part=part)
    assert (line.rank, line.over) == (2, False)
    assert WHERE[part] in line.beside
    assert line.lost == pytest.approx(30 / 130, abs=0.03)


@pytest.mark.parametrize("noise", [0.03, 0.1])
def test_nobody_is_named_where_none_is_slow(noise: float) -> None:
    assert [found(noise=noise, seed=seed) for seed in range(5)] == [[]] * 5


TWO_NODES = (Place("a", 0, 0, 4), Place("b", 1, 4, 4))


def test_clocks_of_nodes_that_differ_make_nobody_slow() -> None:
    assert found(nodes=TWO_NODES, ahead_ms=500) == []


def test_with_clocks_that_differ_ranks_are_compared_on_their_node() -> None:
    (line,) = found(nodes=TWO_NODES, ahead_ms=500, slow=5, part="optimizer")
    assert (line.node, line.rank) == ("b", 5)
    assert AFTER in line.beside


def test_where_only_the_device_waits_what_comes_after_collectives_says_nothing() -> None:
    """A rank that waits for its device now and then is behind others, and keeps nobody waiting."""
    assert found(slow=0, part="logging", waited=False) == []
