from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from undaunted.coordinator.policy import messages as job
from undaunted.fault_tolerance.agent.step_times import StepTimes, _Seen
from undaunted.fault_tolerance.slow_ranks.own_times import Chunk, OwnTimes, RankTimes
from undaunted.progress.snapshot import SectionSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

PIDS = (70, 71)


class Asked:
    """In the place of recordings: notes who was asked."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    async def ask_idly(self, pids: Iterable[int], what: bytes) -> dict[int, bytes | None]:
        self.pids += pids
        return {}


def asked(first_iterations: list[int | None]) -> list[int]:
    """Which processes are asked if the ranks began with these iterations."""
    workers: Any = SimpleNamespace(
        all=[SimpleNamespace(pid=pid, local_rank=i, code=None) for i, pid in enumerate(PIDS)]
    )
    area: Any = SimpleNamespace(
        snapshot=lambda index: SimpleNamespace(first_iteration=first_iterations[index])
    )
    orders: Any = None
    current: Any = SimpleNamespace(start=SimpleNamespace(world_size=len(PIDS)))
    recordings: Any = Asked()
    asyncio.run(StepTimes("n0", area, recordings, workers, orders)._ask(current))
    return list(recordings.pids)


def test_only_ranks_that_step_are_asked() -> None:
    assert asked([None, None]) == []
    assert asked([None, 0]) == [71]
    assert asked([5, 5]) == [70, 71]


def seen(**totals_ms: int) -> _Seen:
    sections = {
        name: SectionSnapshot(name, total_ns=1_000_000 * ms) for name, ms in totals_ms.items()
    }
    return _Seen.of(os.getpid(), sections)


def test_how_long_the_longest_sections_took() -> None:
    before = seen(data=1000, step=5000, loss=7)
    now = seen(data=1040, step=5100, loss=7, log=1, save=30, eval=2)
    assert now.sections_us_since(before) == {
        "step": 100_000,
        "data": 40_000,
        "save": 30_000,
        "eval": 2_000,
    }


class Posted:
    """In the place of orders: keeps what is posted."""

    def __init__(self) -> None:
        self.events: list[job.NodeTimes] = []

    def post(self, event: job.NodeTimes) -> None:
        self.events.append(event)


def told(ranks: int, chunks: int) -> tuple[int, list[RankTimes]]:
    """How many bytes a node of so many ranks posts, if each has so many chunks; and which."""
    own = msgspec.msgpack.encode(
        OwnTimes(
            tuple(
                Chunk(100_000 + n, 400, 9_000_000, (8_000_000,) * 4, 99_999) for n in range(chunks)
            )
        )
    )
    names = {f"{index} " * 21: SectionSnapshot("", total_ns=1) for index in range(9)}
    area: Any = SimpleNamespace(
        snapshot=lambda _: SimpleNamespace(first_iteration=0, sections=names)
    )
    workers: Any = SimpleNamespace(
        all=[SimpleNamespace(pid=2**22 + i, local_rank=i, code=None) for i in range(ranks)]
    )

    async def ask_idly(pids: Iterable[int], what: bytes) -> dict[int, bytes | None]:
        return dict.fromkeys(pids, own)

    start = SimpleNamespace(world_size=ranks, group_world_size=1)
    current: Any = SimpleNamespace(number=3, start=start, rank=lambda local: local)
    orders: Any = Posted()
    recordings: Any = SimpleNamespace(ask_idly=ask_idly)
    asyncio.run(StepTimes("n0", area, recordings, workers, orders)._ask(current))
    (event,) = orders.events
    assert (event.node, event.round) == ("n0", 3)
    return len(event.times), msgspec.msgpack.decode(event.times, type=list[RankTimes])


def test_a_report_of_few_ranks_has_all_chunks() -> None:
    size, times = told(ranks=16, chunks=32)
    assert size <= job.MOST_TIMES
    assert {len(each.chunks) for each in times} == {32}


@pytest.mark.parametrize("ranks", [64, 128, 200])
def test_a_long_report_is_cut_to_the_length_of_a_message(ranks: int) -> None:
    size, times = told(ranks, chunks=32)
    assert size <= job.MOST_TIMES
    assert [each.rank for each in times] == list(range(ranks)), "each has something to compare"
    (kept,) = {tuple(chunk.first for chunk in each.chunks) for each in times}
    assert len(kept) > 1
    every = kept[1] - kept[0]
    assert list(kept) == [n for n in range(100_000, 100_032) if n % every == 0]
