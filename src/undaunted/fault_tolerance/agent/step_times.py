"""Now and then, asks the ranks of this node how long they have worked by themselves.

The answers go to the leader, who compares all ranks: `fault_tolerance.slow_ranks.pace`.
"""

from __future__ import annotations

import asyncio
import time
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from undaunted.coordinator.policy import messages as job
from undaunted.fault_tolerance.agent.parts import Part
from undaunted.fault_tolerance.slow_ranks.own_times import (
    OwnTimes,
    RankTimes,
    most_chunks,
    thinned,
)
from undaunted.fault_tolerance.worker.witness import TIMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.fault_tolerance.agent.orders import Orders
    from undaunted.fault_tolerance.agent.processes import Worker, Workers
    from undaunted.fault_tolerance.agent.recordings import Recordings
    from undaunted.fault_tolerance.agent.round import Round
    from undaunted.fault_tolerance.worker.spawner import Spawned
    from undaunted.progress.area import PageArea
    from undaunted.progress.snapshot import SectionSnapshot

# Nodes ask at the same moments, by clocks that hardly differ, so that they learn of the same steps.
_FIRST_S = 2.0
_OFTEN = 20  # so often that soon; from then on five times as long
_LATER_S = 10.0
_MOST_S = 160.0
# A rank shall not spend more than a thousandth of its time on answers; the leader, with many nodes,
# no more than this on one of them.
_COST = 1000
_EACH_NODE_S = 0.02
_SECTIONS = 4  # of a rank, of which the leader is told
_DECODER = msgspec.msgpack.Decoder(OwnTimes)


class StepTimes(Part):
    """Asks the ranks of one round after the other.

    Args:
        node: the name of this one.
        area: the pages of the ranks, which say who steps.
        recordings: asks.
        workers: the processes.
        orders: get the answers.
    """

    def __init__(
        self, node: str, area: PageArea, recordings: Recordings, workers: Workers, orders: Orders
    ) -> None:
        self._node = node
        self._area = area
        self._recordings = recordings
        self._workers = workers
        self._orders = orders
        self._asked = 0
        self._cost_s = 0.0
        self._seen: dict[int, _Seen] = {}  # by pid
        self._task: asyncio.Task[None] | None = None

    def ranks_run(self, current: Round, spawned: Spawned) -> None:
        """Ask them from now on."""
        del spawned
        self.close()
        self._asked, self._cost_s, self._seen = 0, 0.0, {}
        self._task = asyncio.get_running_loop().create_task(self._ask_again_and_again(current))

    def round_ends(self) -> None:
        """Ask no more."""
        self.close()

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
        self._task = None

    async def _ask_again_and_again(self, current: Round) -> None:
        while not current.stopping:
            await asyncio.sleep(self._delay_s(current.start.group_world_size))
            await self._ask(current)

    def _delay_s(self, nodes: int) -> float:
        usual = _FIRST_S if self._asked < _OFTEN else _LATER_S
        least = max(usual, self._cost_s * _COST, nodes * _EACH_NODE_S)
        every = usual
        while every < min(least, _MOST_S):
            every *= 2
        return every - time.time() % every

    async def _ask(self, current: Round) -> None:
        workers = {
            worker.pid: worker
            for worker in self._workers.all
            if worker.code is None
            and self._area.snapshot(worker.local_rank).first_iteration is not None
        }
        if not workers:
            return
        answers = await self._recordings.ask_idly(workers, TIMES)
        self._asked += 1
        told = [
            self._times(current, workers[pid], own)
            for pid, answer in answers.items()
            if (own := _decoded(answer)) is not None
        ]
        if data := _message(told, most_chunks(current.start.world_size)):
            self._orders.post(job.NodeTimes(self._node, current.number, data))

    def _times(self, current: Round, worker: Worker, own: OwnTimes) -> RankTimes:
        self._cost_s = max(self._cost_s / 2, own.cost_us / 1e6)
        now = _Seen.of(worker.pid, self._area.snapshot(worker.local_rank).sections)
        before = self._seen.get(worker.pid, now)
        self._seen[worker.pid] = now
        return RankTimes(
            rank=current.rank(worker.local_rank),
            chunks=own.chunks,
            wall_us=(now.wall_ns - before.wall_ns) // 1000,
            gc_us=own.gc_us,
            cpu_us=(now.cpu_ns - before.cpu_ns) // 1000,
            queue_us=(now.queue_ns - before.queue_ns) // 1000,
            sections_us=now.sections_us_since(before),
            looks=own.looks,
            lines=own.lines,
        )


def _decoded(answer: bytes | None) -> OwnTimes | None:
    """None = the rank did not answer, has nothing to say, or says what nobody understands."""
    try:
        return _DECODER.decode(answer) if answer else None
    except msgspec.MsgspecError:
        return None


def _message(told: Sequence[RankTimes], most: int) -> bytes:
    """Encode at most so many chunks of each rank, or as many as a message holds; b"" = none.

    Lines of the program are left out first.
    """
    while most:
        fewer = [replace(each, chunks=thinned(each.chunks, most)) for each in told]
        data = msgspec.msgpack.encode([each for each in fewer if each.chunks])
        if len(data) <= job.MOST_TIMES:
            return data if any(each.chunks for each in fewer) else b""
        if any(each.lines for each in told):
            told = [replace(each, looks=0, lines={}) for each in told]
        else:
            most //= 2
    return b""


class _Seen(msgspec.Struct, frozen=True):
    """What the kernel says of the main thread of a process, and its page of its sections."""

    wall_ns: int
    sections_ns: dict[str, int]
    cpu_ns: int = 0
    queue_ns: int = 0

    @classmethod
    def of(cls, pid: int, sections: Mapping[str, SectionSnapshot]) -> _Seen:
        now = time.monotonic_ns()
        totals = {name: section.total_ns for name, section in sections.items()}
        try:
            said = Path(f"/proc/{pid}/task/{pid}/schedstat").read_bytes().split()
            return cls(now, totals, int(said[0]), int(said[1]))
        except (OSError, ValueError, IndexError):  # it has ended, or the kernel keeps no figures
            return cls(now, totals)

    def sections_us_since(self, before: _Seen) -> dict[str, int]:
        """Of the `_SECTIONS` that took the longest."""
        took = {
            name: (total - before.sections_ns.get(name, 0)) // 1000
            for name, total in self.sections_ns.items()
        }
        return {name: took[name] for name in nlargest(_SECTIONS, took, key=took.__getitem__)}
