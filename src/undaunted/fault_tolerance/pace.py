"""Says which rank is slow, out of the times that all nodes tell: `core.config.Pace`. Pure.

Only this module and `agent.step_times` know the form of these bytes.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from undaunted.attribution.straggler.own_times import Chunk, RankTimes, most_chunks
from undaunted.attribution.straggler.slow import SlowRanks, Times
from undaunted.coordinator.core.messages import MOST_TIMES, Place, Slow

if TYPE_CHECKING:
    from collections.abc import Iterable

_DECODER = msgspec.msgpack.Decoder(tuple[RankTimes, ...])
_MOST_SLOW = 8  # lines of one round
# Where the usual rank of a node waits for a core more than this share of its time, the node has
# too few cores for its ranks, and whose turn it is says nothing about a rank.
_CROWDED = 0.02
_BESIDE = 0.02  # share of its time that a rank spends on something more than others do
_KINDS = (
    ("gc", "gc_us", "Python's garbage collector takes"),
    ("queue", "queue_us", "it waits for a CPU core"),
    ("cpu", "cpu_us", "its main thread computes"),
)


class Pace:
    """Compares the ranks of one round.

    Args:
        round: its number.
        places: which ranks are where.
    """

    def __init__(self, round: int, places: tuple[Place, ...]) -> None:  # noqa: A002
        self._round = round
        self._nodes = {
            place.first_rank + index: place.node for place in places for index in range(place.slots)
        }
        self._most_waiting = 2 * most_chunks(max(1, len(self._nodes)))
        self._waiting: dict[int, dict[int, Times]] = {}  # by number of the chunk, by rank
        self._judged = -1  # number of the last chunk that was judged
        self._newest: dict[int, int] = {}  # number of the last chunk that a rank has told
        self._ranks = SlowRanks()
        self._last: dict[int, RankTimes] = {}  # without the chunks
        self._named: set[int] = set()
        self._lines = 0

    def __call__(self, node: str, data: bytes) -> list[Slow]:
        """Take in what a node says of its ranks; return who is slow now, or is no more."""
        try:
            return self._compare(node, data)
        except Exception:  # noqa: BLE001 - an error of ours must not end a job
            return []

    def _compare(self, node: str, data: bytes) -> list[Slow]:
        if len(data) > MOST_TIMES:
            return []
        told = _DECODER.decode(data)
        told = tuple(each for each in told if self._nodes.get(each.rank) == node)
        queue = _queue(told)
        for each in told:
            self._last[each.rank] = msgspec.structs.replace(each, chunks=())
            for chunk in each.chunks:
                self._take(each.rank, chunk, queue.get(each.rank, 0.0))
        return [slow for _ in self._judge() for slow in self._changes()]

    def _take(self, rank: int, chunk: Chunk, queue: float) -> None:
        if chunk.first <= self._newest.get(rank, -1):  # iterations are counted anew
            self._waiting, self._newest, self._judged = {}, {}, -1
        self._newest[rank] = chunk.first
        if chunk.first > self._judged:
            self._waiting.setdefault(chunk.first, {})[rank] = _times(chunk, queue)

    def _judge(self) -> Iterable[int]:
        """Judge chunks that all ranks have told, and the oldest where too many wait."""
        for number in sorted(self._waiting):
            whole = len(self._waiting[number]) == len(self._nodes)
            if whole or len(self._waiting) > self._most_waiting:
                for older in [each for each in self._waiting if each <= number]:
                    known = self._waiting.pop(older)
                    if older == number:
                        self._ranks.step(known)
                self._judged = number
                yield number

    def _changes(self) -> Iterable[Slow]:
        for rank in sorted(self._ranks.slow - self._named):
            if self._lines < _MOST_SLOW:
                self._lines += 1
                self._named.add(rank)
                yield self._slow(rank)
        for rank in sorted(self._named - self._ranks.slow):
            self._named.discard(rank)
            line = f"rank {rank} (node {self._nodes[rank]}) is as fast as the other ranks again"
            yield Slow(self._round, self._nodes[rank], rank, line, over=True)

    def _slow(self, rank: int) -> Slow:
        slower, lost = self._ranks.of(rank)
        node = self._nodes[rank]
        beside = self._beside(rank)
        line = (
            f"rank {rank} (node {node}) is slow: its own work in a step takes {slower:.0%} longer "
            f"than that of the other ranks, which wait for it: {lost:.0%} of the time is lost"
        )
        line += "".join(f"; {text}" for text in beside.values())
        shares = (round(slower, 3), round(lost, 3))
        return Slow(self._round, node, rank, line, False, *shares, tuple(beside))

    def _beside(self, rank: int) -> dict[str, str]:
        """What this rank spends more time on than others do."""
        found = {}
        for key, field, text in _KINDS:
            shares = {
                each.rank: getattr(each, field) / each.wall_us
                for each in self._last.values()
                if each.wall_us > 0
            }
            mine = shares.pop(rank, 0.0)
            usual = statistics.median(shares.values()) if shares else 0.0
            if shares and mine > usual + _BESIDE:
                found[key] = f"{text} {mine:.0%} of its time, others {usual:.0%}"
        return found


def _queue(told: Iterable[RankTimes]) -> dict[int, float]:
    """By rank, the share of its time for which it waits for a core, where that says nothing."""
    shares = {each.rank: each.queue_us / each.wall_us for each in told if each.wall_us > 0}
    crowded = bool(shares) and statistics.median(shares.values()) > _CROWDED
    return shares if crowded else {}


def _times(chunk: Chunk, queue: float) -> Times:
    own = [max(0.0, us - queue * chunk.step_us) for us in chunk.own_us]
    return Times(own, chunk.step_us, chunk.collectives)
