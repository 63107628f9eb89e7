from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from undaunted.fault_tolerance.agent.step_times import StepTimes, _Seen
from undaunted.progress.snapshot import SectionSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

PIDS = (70, 71)


class Asked:
    """In the place of recordings: notes who was asked."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    async def ask_times(self, pids: Iterable[int]) -> dict[int, bytes | None]:
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
    current: Any = None
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
