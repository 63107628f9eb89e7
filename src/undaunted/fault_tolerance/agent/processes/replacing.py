"""Starts a process in the place of a rank that the others go on without, to join them again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from undaunted.journal.events import RankReplaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.agent.processes.workers import Workers
    from undaunted.fault_tolerance.agent.ranks.watch import PageWatch
    from undaunted.fault_tolerance.agent.round.round import Round
    from undaunted.fault_tolerance.agent.telling.scribe import Scribe
    from undaunted.fault_tolerance.worker.spawner import Spawner
    from undaunted.progress.area import PageArea


@dataclass(frozen=True)
class Replacing:
    """For one node.

    Attributes:
        is_current: whether a round is still the one that the node is in.
        is_stopping: whether that one is to end.
        failed: called with a local rank for which no process could be started.
    """

    spawner: Spawner
    workers: Workers
    area: PageArea
    watch: PageWatch
    scribe: Scribe
    is_current: Callable[[Round], bool]
    is_stopping: Callable[[], bool]
    failed: Callable[[int], None]

    async def start(self, current: Round, local_rank: int) -> None:
        """Start one."""
        spec = current.specs[local_rank]
        spec = msgspec.structs.replace(spec, env={**spec.env, "UNDAUNTED_INPROCESS_REJOIN": "1"})
        rank = current.rank(local_rank)
        self.area.reset(local_rank)
        began_ns = time.monotonic_ns()
        try:
            spawned = await self.spawner.spawn([spec])
        except OSError as error:
            if self.is_current(current):
                self.scribe.say(f"no process could be started in the place of rank {rank}: {error}")
                self.failed(local_rank)
            return
        (pid,) = spawned.pids
        if not self.is_current(current):
            self.workers.end(pid)
            return
        if self.is_stopping():
            self.workers.end(pid)
        self.watch.rank_replaced(local_rank, time.monotonic_ns())
        self.scribe.record(RankReplaced, rank=rank, pid=pid)
        self.workers.replace(local_rank, pid, began_ns)
