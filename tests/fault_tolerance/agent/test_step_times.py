from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from undaunted.fault_tolerance.agent.step_times import StepTimes

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
