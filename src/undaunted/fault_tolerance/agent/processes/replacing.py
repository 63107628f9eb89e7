"""Starts a process in the place of a rank that the others go on without, to join them again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
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
        wanted: whether a round still runs, and is not being stopped.
        failed: called with a local rank for which no process could be started.
    """

    spawner: Spawner
    workers: Workers
    area: PageArea
    watch: PageWatch
    scribe: Scribe
    wanted: Callable[[Round], bool]
    failed: Callable[[int], None]
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self, current: Round, local_rank: int) -> None:
        """Start one."""
        spec = current.specs[local_rank]
        spec = msgspec.structs.replace(spec, env={**spec.env, "UNDAUNTED_INPROCESS_REJOIN": "1"})
        rank = current.rank(local_rank)
        self.area.reset(local_rank)
        try:
            async with self._one:
                spawned = await self.spawner.spawn([spec])
        except OSError as error:
            self.scribe.say(f"no process could be started in the place of rank {rank}: {error}")
            self.failed(local_rank)
            return
        (pid,) = spawned.pids
        if not self.wanted(current):
            os.kill(pid, signal.SIGKILL)  # only we reap it
        self.watch.rank_replaced(local_rank, time.monotonic_ns())
        self.scribe.record(RankReplaced, rank=rank, pid=pid)
        self.workers.replace(local_rank, pid)
