"""Times that nodes tell become lines about slow ranks."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING

import msgspec
import pytest

from undaunted.coordinator.policy.messages import MOST_TIMES, Place, Say, Slow
from undaunted.fault_tolerance.slow_ranks.own_times import Chunk, RankTimes
from undaunted.fault_tolerance.slow_ranks.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACES = (Place("a", 0, 0, 4), Place("b", 1, 4, 4))
EACH = 6  # chunks of a report
BEFORE = "before collectives"


def report(
    node: str,
    number: int,
    *,
    slow: int = -1,
    noise: float = 0.03,
    factor: float = 1.15,
    queue: tuple[float, ...] = (),
    gc: int = 0,
    cpu: int = 0,
    loading: int = 0,
    seed: int = 0,
) -> bytes:
    """A node tells of six chunks of 40 ms of work; ``queue``: shares of time without a core."""
    rng = random.Random(f"{node}{number}{seed}")
    told = []
    for rank in range(4) if node == "a" else range(4, 8):
        waits = queue[rank % 4] if queue else 0.0
        own = [
            40_000 * rng.lognormvariate(0, noise) * (factor if rank == slow else 1) + 60_000 * waits
            for _ in range(EACH)
        ]
        chunks = tuple(
            Chunk(number * EACH + index, 1, 60_000, (int(us),)) for index, us in enumerate(own)
        )
        wall = 2_000_000
        gc_us, cpu_us = (gc, cpu) if rank == slow else (0, 500_000)
        sections = {"data": 100_000 + loading} if rank == slow else {"data": 100_000, "loss": 9}
        told.append(RankTimes(rank, chunks, wall, gc_us, cpu_us, int(waits * wall), sections))
    return msgspec.msgpack.encode(told)


def tell(pace: Pace, node: str, data: bytes) -> list[Slow]:
    """What is new of slow ranks, by what a node tells."""
    told = list(pace(node, data))
    assert all(isinstance(one, Slow) for one in told)
    return [one for one in told if isinstance(one, Slow) and one.line]


def said(pace: Pace, reports: int = 7, first: int = 0, **options: object) -> list[Slow]:
    return [
        slow
        for number in range(first, first + reports)
        for node in ("a", "b")
        for slow in tell(pace, node, report(node, number, **options))  # type: ignore[arg-type]
    ]


def test_a_slow_rank_is_named_once_with_its_node() -> None:
    (slow,) = said(Pace(3, PLACES), slow=5)
    assert (slow.round, slow.node, slow.rank, slow.over) == (3, "b", 5, False)
    assert slow.slower == pytest.approx(0.15, abs=0.04)
    assert slow.lost == pytest.approx(0.1, abs=0.03)
    assert "rank 5 (node b)" in slow.line
    assert slow.beside == (BEFORE,)


def test_a_rank_that_becomes_much_slower_is_named_again() -> None:
    pace = Pace(0, PLACES)
    (begin,) = said(pace, 7, slow=5)
    (again,) = said(pace, 20, first=7, slow=5, factor=1.6)
    assert again.rank == 5
    assert again.lost > 2 * begin.lost
    assert not again.over
    (end,) = said(pace, 20, first=27)
    assert end.over


def test_nobody_is_named_in_noise() -> None:
    for seed in range(20):
        assert said(Pace(0, PLACES), 10, noise=0.2, seed=seed) == []


def test_the_end_is_said_too() -> None:
    pace = Pace(0, PLACES)
    (begin,) = said(pace, 7, slow=5)
    (end,) = said(pace, 20, first=7)
    assert (begin.over, end.over) == (False, True)
    assert end.rank == 5
    assert said(pace, 3, first=27) == []


def test_what_goes_along_with_it_is_named() -> None:
    (slow,) = said(Pace(0, PLACES), slow=5, gc=200_000)
    assert slow.beside == ("gc", BEFORE)
    assert "10% of its time, others 0%" in slow.line
    (slow,) = said(Pace(0, PLACES), slow=5, cpu=700_000)
    assert slow.beside == ("cpu", BEFORE)
    assert "35% of its time, others 25%" in slow.line
    (slow,) = said(Pace(0, PLACES), slow=5, loading=200_000, cpu=500_000)
    assert slow.beside == ("section data", BEFORE)
    assert "'data'" in slow.line
    assert "15% of its time, others 5%" in slow.line


def test_where_a_node_has_too_few_cores_waits_for_one_say_nothing() -> None:
    crowded = (0.1, 0.3, 0.15, 0.2)
    assert said(Pace(0, PLACES), queue=crowded) == []
    (slow,) = said(Pace(0, PLACES), queue=crowded, slow=5)
    assert slow.rank == 5


def crowded(node: str, number: int, *, seed: int, cpu_ms: dict[int, float], waits: float) -> bytes:
    """A node tells of steps with 4 ms of CPU time, in which chance says who waits for a core.

    ``cpu_ms``: of ranks with other than 4; ``waits``: the share of time in which they wait for
    something else than a core; above 1 = no waits for a core.
    """
    rng = random.Random(f"{node}{number}{seed}")
    told = []
    for rank in range(4) if node == "a" else range(4, 8):
        cpu_us = 1000 * cpu_ms.get(rank, 4.0)
        share = waits * rng.lognormvariate(0, 0.1)
        stretch = max(1.0, (1 - waits) * 60_000 / 4_000) if waits > 0.1 else 0.0
        own_us = 24_000 + stretch * (cpu_us - 4_000)
        chunks = tuple(
            Chunk(
                number * EACH + index,
                1,
                60_000,
                (int(own_us * rng.lognormvariate(0, 0.5)),),
                int(cpu_us * rng.lognormvariate(0, 0.04)),
            )
            for index in range(EACH)
        )
        wall = 2_000_000
        cpu = int(cpu_us * wall / 60_000)
        told.append(RankTimes(rank, chunks, wall, 0, cpu, max(0, int((1 - share) * wall) - cpu)))
    return msgspec.msgpack.encode(told)


def said_of_crowded(
    seed: int, cpu_ms: dict[int, float] | None = None, waits: float = 0.6
) -> list[Slow]:
    pace = Pace(0, PLACES)
    return [
        slow
        for number in range(7)
        for node in ("a", "b")
        for slow in tell(
            pace, node, crowded(node, number, seed=seed, cpu_ms=cpu_ms or {}, waits=waits)
        )
    ]


def test_with_too_few_cores_cpu_time_tells_who_is_slow() -> None:
    found = []
    for seed in range(20):
        (slow,) = said_of_crowded(seed, {5: 4.6})
        assert slow.rank == 5
        assert 0.03 < slow.slower < 0.2
        assert slow.lost < 0.1
        assert "cpu" in slow.beside
        found.append((slow.slower, slow.lost))
    slower, lost = (statistics.mean(each) for each in zip(*found, strict=True))
    assert slower == pytest.approx(0.12, abs=0.04)
    assert lost == pytest.approx(0.045, abs=0.015)


def test_with_too_few_cores_nobody_is_named_by_chance() -> None:
    for seed in range(50):
        assert said_of_crowded(seed) == []


def test_where_ranks_wait_by_polling_cpu_time_says_nothing() -> None:
    for seed in range(20):
        assert said_of_crowded(seed, {5: 10.0}, waits=0.01) == []


ALONE = (Place("a", 0, 0, 4),)


def mostly_asleep(number: int, *, more_ms: float, seed: int, queue: float = 0.04) -> bytes:
    """Ranks sleep 20 ms and compute 0.35 ms in a step; rank 2 computes ``more_ms`` more.

    ``queue``: share of the time for which they wait for a core, whenever they wake up.
    """
    rng = random.Random(f"{number}{seed}")
    told = []
    for rank in range(4):
        more_us = 1000 * more_ms if rank == 2 else 0
        step_us = 27_000 + 1000 * more_ms
        waits = (queue + more_ms * 0.1 / 27 * (rank == 2)) * rng.lognormvariate(0, 0.05)
        own_us = 20_300 + more_us + waits * step_us
        chunks = tuple(
            Chunk(
                number * 13 + index,
                1,
                int(step_us),
                (int(own_us + rng.gauss(0, 500)),),
                int(350 * rng.lognormvariate(0, 0.2) + more_us),
            )
            for index in range(13)
        )
        wall = 2_000_000
        cpu = (350 + more_us) / step_us
        told.append(RankTimes(rank, chunks, wall, 0, int(cpu * wall), int(waits * wall)))
    return msgspec.msgpack.encode(told)


def told_of_sleepers(*, more_ms: float, seed: int, queues: tuple[float, ...]) -> list[Slow]:
    pace = Pace(0, ALONE)
    return [
        slow
        for number, queue in enumerate(queues)
        for slow in pace("a", mostly_asleep(number, more_ms=more_ms, seed=seed, queue=queue))
        if isinstance(slow, Slow)
    ]


@pytest.mark.parametrize(("more_ms", "most"), [(0.7, 0.05), (1.5, 0.09), (3.0, 0.15), (10, 0.37)])
@pytest.mark.parametrize("queues", [(0.04,) * 20, (0.15,) * 20, (0.04, 0.01) * 10, (0.01,) * 20])
def test_a_rank_costs_no_more_than_others_have_waited_for_it(
    more_ms: float, most: float, queues: tuple[float, ...]
) -> None:
    """How long the little CPU time of ranks that sleep takes says nothing about another rank."""
    for seed in range(4):
        told = told_of_sleepers(more_ms=more_ms, seed=seed, queues=queues)
        assert {slow.rank for slow in told} <= {2}
        assert max((slow.lost for slow in told), default=0.0) < most


@pytest.mark.parametrize("queues", [(0.04,) * 20, (0.15,) * 20, (0.04, 0.01) * 10, (0.01,) * 20])
def test_a_rank_that_stays_slow_is_named_once_and_is_not_said_to_be_fast(
    queues: tuple[float, ...],
) -> None:
    for seed in range(4):
        told = told_of_sleepers(more_ms=10, seed=seed, queues=queues)
        (line,) = [slow for slow in told if slow.line]
        assert not line.over
        assert line.slower == pytest.approx(0.5, abs=0.1)
        assert line.lost == pytest.approx(0.3, abs=0.06)


def waiting_for_a_core(number: int, *, usual: float) -> bytes:
    """Somebody else uses the core of rank 2; ``usual``: for what share the others wait for one."""
    told = []
    for rank in range(4):
        own_us = 20_000 + 20_000 * (rank == 2)
        waits = 0.5 if rank == 2 else usual
        chunks = tuple(Chunk(number * 13 + each, 1, 45_000, (own_us,), 350) for each in range(13))
        told.append(RankTimes(rank, chunks, 2_000_000, 0, 15_000, int(2_000_000 * waits)))
    return msgspec.msgpack.encode(told)


def test_a_rank_that_waits_for_a_core_is_not_fast_when_others_wait_a_little_too() -> None:
    pace = Pace(0, ALONE)
    told = [
        one
        for number, usual in enumerate((0.01, 0.01) + (0.03, 0.01) * 10)
        for one in pace("a", waiting_for_a_core(number, usual=usual))
        if isinstance(one, Slow)
    ]
    assert [(one.rank, one.over) for one in told if one.line] == [(2, False)]


def test_on_a_node_with_enough_cores_cpu_time_says_nothing() -> None:
    for seed in range(20):
        assert said_of_crowded(seed, {5: 10.0}, waits=1.5) == []


def test_one_rank_that_waits_for_a_core_is_slow() -> None:
    (slow, *_) = said(Pace(0, PLACES), queue=(0.0, 0.0, 0.2, 0.0))
    assert slow.rank in (2, 6)
    assert slow.beside == ("queue", BEFORE)


def test_a_node_that_tells_nothing_is_not_waited_for_for_ever() -> None:
    pace = Pace(0, PLACES)
    for number in range(40):
        if told := tell(pace, "b", report("b", number, slow=6)):
            break
    assert [slow.rank for slow in told] == [6]


def test_reports_of_nodes_that_come_late_are_compared_with_their_own_steps() -> None:
    pace = Pace(0, PLACES)
    for number in range(4):
        assert tell(pace, "a", report("a", number)) == []
    told = [slow for number in range(8) for slow in tell(pace, "b", report("b", number, slow=6))]
    told += [slow for number in range(4, 8) for slow in tell(pace, "a", report("a", number))]
    assert [slow.rank for slow in told] == [6]


def test_iterations_that_are_counted_anew() -> None:
    pace = Pace(0, PLACES)
    assert said(pace, 3) == []
    assert [slow.rank for slow in said(pace, 7, slow=2)] == [2]


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x91\x01", b"x" * (MOST_TIMES + 1)])
def test_what_is_no_report_says_nothing(data: bytes) -> None:
    assert tell(Pace(0, PLACES), "a", data) == []


def test_a_node_tells_of_its_own_ranks_only() -> None:
    pace = Pace(0, PLACES)
    for number in range(10):
        assert tell(pace, "c", report("b", number, slow=5)) == []
        assert tell(pace, "a", report("b", number, slow=5)) == []


def test_numbers_that_make_no_sense() -> None:
    odd = [RankTimes(0, (Chunk(-5, 0, -1, ()), Chunk(2**60, 1, 0, (0, -9))), 0, -1, -1, -1)]
    assert tell(Pace(0, PLACES[:1]), "a", msgspec.msgpack.encode(odd)) == []


def costs(pace: Pace, first: int, reports: int, **options: object) -> list[tuple[int, float]]:
    """Which ranks are slow, and what they cost, by the newest steps."""
    return [
        (one.rank, one.lost)
        for number in range(first, first + reports)
        for node in ("a", "b")
        for one in pace(node, report(node, number, **options))  # type: ignore[arg-type]
        if isinstance(one, Slow) and not one.over and not one.line
    ]


def test_what_a_slow_rank_costs_is_told_by_its_newest_steps() -> None:
    pace = Pace(0, PLACES)
    said(pace, 7, slow=5, factor=1.4)
    before = costs(pace, 7, 4, slow=5, factor=1.4)
    after = costs(pace, 11, 8, slow=5, factor=1.12)
    assert {rank for rank, _ in before + after} == {5}
    assert before[-1][1] == pytest.approx(0.27, abs=0.03)
    assert after[-1][1] == pytest.approx(0.08, abs=0.02)


def test_a_rank_that_is_usual_again_is_so_soon() -> None:
    pace = Pace(0, PLACES)
    said(pace, 20, slow=5, factor=1.5)
    (end,) = said(pace, 2, first=20)
    assert end.over


def test_a_rank_that_tells_nothing_any_more_is_not_slow_for_ever() -> None:
    pace = Pace(0, PLACES)
    said(pace, 7, slow=5)
    told = []
    for number in range(7, 60):
        told += tell(pace, "a", report("a", number))
        others = msgspec.msgpack.decode(report("b", number), type=list[RankTimes])
        told += tell(pace, "b", msgspec.msgpack.encode([one for one in others if one.rank != 5]))
    assert [(one.rank, one.over) for one in told] == [(5, True)]
    assert told[0].line == "rank 5 (node b) is not compared with the other ranks any more"


def test_more_slow_ranks_than_lines_are_known() -> None:
    places = (Place("a", 0, 0, 12), Place("b", 1, 12, 12))
    pace = Pace(0, places)
    told: list[Slow] = []
    for number in range(20):
        for place in places:
            ranks = range(place.first_rank, place.first_rank + place.slots)
            times = [
                RankTimes(rank, (Chunk(number, 1, 60_000, (40_000 + 9_000 * (rank < 10),)),), 1)
                for rank in ranks
            ]
            told += list(pace(place.node, msgspec.msgpack.encode(times)))
    assert len([one for one in told if one.line]) == 8
    assert {one.rank for one in told} == set(range(10))


def test_times_of_0_end_nothing() -> None:
    """They are left where a rank was not to blame for any of it."""
    pace, said_once = Pace(0, PLACES), []
    for number in range(3):
        for place in PLACES:
            ranks = range(place.first_rank, place.first_rank + place.slots)
            own = {7: (0, 30)}
            times = [
                RankTimes(rank, (Chunk(number, 2, 120, own.get(rank, (60, 100))),), 1)
                for rank in ranks
            ]
            said_once += list(pace(place.node, msgspec.msgpack.encode(times)))
    assert said_once == []


def test_an_error_of_ours_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undaunted.fault_tolerance.slow_ranks.pace._loads", lambda _: 1 // 0)
    pace = Pace(0, PLACES)
    told = [one for number in range(3) for one in pace("a", report("a", number))]
    assert [type(one) for one in told] == [Say]


def test_what_was_found_before_an_error_of_ours_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report holds six chunks: the rank is found in one of them, and the next one fails."""
    judge = Pace._judge
    found: list[int] = []

    def fails_after_the_find(pace: Pace) -> Iterator[bool]:
        for newest in judge(pace):
            yield newest
            if pace._own.slow:
                found.append(pace._judged)
                raise ZeroDivisionError

    monkeypatch.setattr(Pace, "_judge", fails_after_the_find)
    pace = Pace(0, PLACES)
    told = [
        one
        for number in range(7)
        for node in ("a", "b")
        for one in pace(node, report(node, number, slow=5))
    ]
    assert [type(one) for one in told[:2]] == [Slow, Say]
    assert [one.rank for one in told if isinstance(one, Slow) and one.line] == [5]
    assert found[0] % EACH != EACH - 1, "chunks of the same report were left"
