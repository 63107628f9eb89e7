"""Says which rank is slow, out of the times that all nodes tell: `core.config.Pace`. Pure.

Only this module and `fault_tolerance.agent.step_times` know the form of these bytes.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.coordinator.policy.messages import MOST_TIMES, Place, Say, Slow
from undaunted.fault_tolerance.slow_ranks.lateness import Lateness
from undaunted.fault_tolerance.slow_ranks.lines import excess
from undaunted.fault_tolerance.slow_ranks.own_times import Chunk, RankTimes, most_chunks, tails_us
from undaunted.fault_tolerance.slow_ranks.slow import SlowRanks, Times, late

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DECODER = msgspec.msgpack.Decoder(tuple[RankTimes, ...])
_MOST_SLOW = 8  # lines of one round
# Where the usual rank of a node waits for a core more than this share of its time, the node has
# too few cores for its ranks, and whose turn it is says nothing about a rank.
_CROWDED = 0.02
# A rank is named again when it costs so many times of what was said, and at least so much.
_WORSE, _LEAST_WORSE = 2.0, 0.05
_BESIDE = 0.02  # share of its time that a rank spends on something more than others do
_KINDS = {
    "gc": "Python's garbage collector takes",
    "queue": "it waits for a CPU core",
    "cpu": "its main thread computes",
}
_SECTION = "section "  # and its name
_LINE = "line "  # and where it is
_PARTS = {
    "before collectives": "it comes late from undaunted.step to the first collective of a step",
    "between collectives": "it comes late from the first collective of a step to the last one",
    "after collectives": "it comes late from the last collective of a step to undaunted.step",
}
_FEW = 8  # of the newest chunks, which say in what part of a step a rank is late


class _Load(NamedTuple):
    """Of a rank on a node with too few cores for its ranks; all 0 on another one.

    Attributes:
        queue: share of its time for which it waits for a core.
        stretch: how long a second of CPU time usually takes on the node.
        waits: share of its time for which a rank of the node usually waits for something else.
    """

    queue: float = 0.0
    stretch: float = 0.0
    waits: float = 0.0


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
        # By number of the chunk, by rank.
        self._waiting: dict[int, dict[int, tuple[Chunk, _Load]]] = {}
        self._judged = -1  # number of the last chunk that was judged
        self._newest: dict[int, int] = {}  # number of the last chunk that a rank has told
        self._own, self._computing = SlowRanks(), SlowRanks()
        self._whole = SlowRanks()  # with what ranks do behind the last collective of a step
        self._crowded = False  # so far, a node has never had too few cores
        self._late, self._late_whole = Lateness(), Lateness()  # since then
        self._newest_times: deque[tuple[dict[int, Times], dict[int, Times]]] = deque(maxlen=_FEW)
        self._last: dict[int, RankTimes] = {}  # without the chunks
        self._named: dict[int, float | None] = {}  # what was said that they cost, None = nothing
        self._lines = 0
        self._failed = False

    def __call__(self, node: str, data: bytes) -> Iterator[Slow | Say]:
        """Take in what a node says of its ranks; yield who is slow now, or is no more."""
        try:
            yield from self._compare(node, data)
        except Exception as error:  # noqa: BLE001 - an error of ours must not end a job
            if not self._failed:
                self._failed = True
                yield Say(f"slow ranks may not be found, since comparing them failed: {error!r}")

    def _compare(self, node: str, data: bytes) -> Iterator[Slow]:
        if len(data) > MOST_TIMES:
            return
        try:
            told = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        told = tuple(each for each in told if self._nodes.get(each.rank) == node)
        loads = _loads(told)
        for each in told:
            self._last[each.rank] = msgspec.structs.replace(each, chunks=())
            for chunk in each.chunks[: self._most_waiting]:
                self._take(each.rank, chunk, loads[each.rank])
        for newest in self._judge():
            yield from self._changes(newest=newest)

    def _take(self, rank: int, chunk: Chunk, load: _Load) -> None:
        if chunk.first <= self._newest.get(rank, -1):  # iterations are counted anew
            self._waiting, self._newest, self._judged = {}, {}, -1
        self._newest[rank] = chunk.first
        if chunk.first > self._judged:
            self._waiting.setdefault(chunk.first, {})[rank] = (chunk, load)

    def _judge(self) -> Iterator[bool]:
        """Judge chunks that all ranks have told, and the oldest where too many wait.

        Yields after each one whether all ranks have told it: it is one of the newest then.
        """
        for number in sorted(self._waiting):
            whole = len(self._waiting[number]) == len(self._nodes)
            if whole or len(self._waiting) > self._most_waiting:
                for older in [each for each in self._waiting if each <= number]:
                    known = self._waiting.pop(older)
                    if older == number:
                        self._step(known)
                self._judged = number
                yield whole

    def _step(self, known: Mapping[int, tuple[Chunk, _Load]]) -> None:
        self._crowded = self._crowded or any(load.stretch for _, load in known.values())
        own = {rank: _measured(chunk) for rank, (chunk, _) in known.items()}
        whole = self._with_tails(known)
        self._newest_times.append((own, whole))
        if self._crowded:
            self._late.step(own)
            self._late_whole.step(whole)
            self._computing.step(_computing(known, self._late))
        loads = {rank: load for rank, (_, load) in known.items()}
        self._own.step(_without_queues(own, loads, self._late))
        self._whole.step(_without_queues(whole, loads, self._late_whole))

    def _with_tails(self, known: Mapping[int, tuple[Chunk, _Load]]) -> dict[int, Times]:
        """How long ranks work from the end of a collective to those of the next step.

        The clocks of nodes may differ: ranks are compared with others of their node.
        """
        roles = defaultdict(list)
        for rank, (chunk, _) in known.items():
            roles[self._nodes[rank], chunk.collectives].append((rank, chunk))
        found = {}
        for role, ranks in roles.items():
            tails = tails_us([chunk for _, chunk in ranks])
            for (rank, chunk), tail_us in zip(ranks, tails, strict=bool(tails)):
                own = [tail_us + us for us in chunk.own_us]
                found[rank] = Times(own, chunk.step_us, role)
        return found

    def _changes(self, *, newest: bool) -> Iterator[Slow]:
        """Say who has become slow, or much slower, or is no more; and what slow ranks cost now."""
        slow = self._own.slow | self._computing.slow | self._whole.slow
        for rank in sorted(slow):
            if self._is_new(rank, newest=newest):
                yield self._slow(rank)
            elif newest and (now := self._by(rank).costs(rank)) is not None:
                yield Slow(self._round, self._nodes[rank], rank, "", lost=round(now, 3))
        for rank in sorted(self._named.keys() - slow):
            if not (self._late.is_late(rank) or self._late_whole.is_late(rank)):
                yield self._over(rank)

    def _is_new(self, rank: int, *, newest: bool) -> bool:
        """Whether a line is due; without one left, the rank is noted all the same."""
        _, lost = self._by(rank).of(rank)
        before = self._named.setdefault(rank, None)
        new = before is None or (newest and lost > max(_WORSE * before, _LEAST_WORSE))
        if not new or self._lines == _MOST_SLOW:
            return False
        self._lines += 1
        self._named[rank] = lost
        return True

    def _by(self, rank: int) -> SlowRanks:
        """None holds more than the time by which the rank is late: the largest part counts."""
        all_finders = (self._own, self._computing, self._whole)
        finders = [each for each in all_finders if rank in each.slow]
        return max(finders, key=lambda each: each.of(rank)[1])

    def _slow(self, rank: int) -> Slow:
        slower, lost = self._by(rank).of(rank)
        node = self._nodes[rank]
        beside = self._beside(rank)
        line = (
            f"rank {rank} (node {node}) is slow: its own work in a step takes {slower:.0%} longer "
            f"than that of the other ranks, which wait for it: {lost:.0%} of the time is lost"
        )
        line += "".join(f"; {text}" for text in beside.values())
        shares = (round(slower, 3), round(lost, 3))
        return Slow(self._round, node, rank, line, False, *shares, tuple(beside))

    def _over(self, rank: int) -> Slow:
        node = self._nodes[rank]
        now = "as fast as the other ranks again"
        if rank not in self._own.compared:
            now = "not compared with the other ranks any more"
        line = f"rank {rank} (node {node}) is {now}"
        named = self._named.pop(rank) is not None
        return Slow(self._round, node, rank, line if named else "", over=True)

    def _beside(self, rank: int) -> dict[str, str]:
        """What this rank spends more time on than others do."""
        spent = {each.rank: _spent(each) for each in self._last.values() if each.wall_us > 0}
        mine = spent.pop(rank, {})
        found = {}
        for key, share in mine.items() if spent else ():
            usual = statistics.median(each.get(key, 0.0) for each in spent.values())
            found_by_it = key == "cpu" and rank in self._computing.slow
            if share > usual + _BESIDE or found_by_it:
                text = _KINDS.get(key) or f"its {_SECTION}{key.removeprefix(_SECTION)!r} takes"
                found[key] = f"{text} {share:.0%} of its time, others {usual:.0%}"
        return found | self._place(rank)

    def _place(self, rank: int) -> dict[str, str]:
        """In which part of a step it is late, and in which line of the program."""
        found = {}
        if part := self._part(rank):
            found[part] = _PARTS[part]
        last = dict(self._last)
        mine = last.pop(rank, None)
        peers = [(each.looks, each.lines) for each in last.values()]
        if mine is not None and (more := excess(mine.looks, mine.lines, peers)):
            text = f"it is in {more.line} {more.share:.0%} of its time, others {more.usual:.0%}"
            found[_LINE + more.line] = text
        return found

    def _part(self, rank: int) -> str:
        """Return the one of `_PARTS` in which it becomes late; "" = not known."""
        later: dict[str, float] = dict.fromkeys(_PARTS, 0.0)
        for own, whole in self._newest_times:
            first, most = _later(rank, own, 1), _later(rank, own)
            tail = _later(rank, whole, 1) - first if rank in whole else 0.0
            for part, by in zip(_PARTS, (first, most - max(0.0, first), tail), strict=True):
                later[part] += by
        part = max(later, key=lambda each: later[each])
        return part if later[part] > 0 else ""


def _later(rank: int, times: Mapping[int, Times], moments: int | None = None) -> float:
    """How much later than its peers it is in the first moments, or in all; 0 = not known."""
    if rank not in times:
        return 0.0
    role = times[rank].role
    alike = {
        each: one._replace(own=one.own[:moments]) for each, one in times.items() if one.role == role
    }
    by, _ = late(alike).get(rank, (0.0, 0.0))
    return by


def _spent(times: RankTimes) -> dict[str, float]:
    """What a rank spends its time on, as shares of it."""
    named = {_SECTION + name: us for name, us in times.sections_us.items()}
    spent = {"gc": times.gc_us, "queue": times.queue_us, "cpu": times.cpu_us, **named}
    return {key: us / times.wall_us for key, us in spent.items()}


def _loads(told: Sequence[RankTimes]) -> dict[int, _Load]:
    """Of the ranks of one node."""
    known = [each for each in told if each.wall_us > 0]
    queues = {each.rank: each.queue_us / each.wall_us for each in known}
    if not known or statistics.median(queues.values()) <= _CROWDED:
        return {each.rank: _Load() for each in told}
    stretch = statistics.median(1 + each.queue_us / max(1, each.cpu_us) for each in known)
    waits = statistics.median(1 - (each.cpu_us + each.queue_us) / each.wall_us for each in known)
    return {each.rank: _Load(queues.get(each.rank, 0.0), stretch, waits) for each in told}


def _measured(chunk: Chunk) -> Times:
    return Times(chunk.own_us, chunk.step_us, chunk.collectives)


def _without_queues(
    times: Mapping[int, Times], loads: Mapping[int, _Load], lateness: Lateness
) -> dict[int, Times]:
    """Take waits for a core off where a node has too few of them."""
    found = dict(times)
    for rank, one in times.items():
        if loads[rank].stretch:
            # Nobody waits for a rank that does not come late, whatever it does.
            own = [max(0.0, us - loads[rank].queue * one.step) for us in one.own]
            found[rank] = one._replace(own=own, most=lateness.mean(rank))
    return found


def _computing(known: Mapping[int, tuple[Chunk, _Load]], late: Lateness) -> dict[int, Times]:
    """How long ranks work if all are usual, but for their CPU time where cores are too few.

    Where a node has enough of them just now, its ranks have the times that they have.
    """
    roles = defaultdict(list)
    for rank, (chunk, load) in known.items():
        if chunk.own_us and chunk.cpu_us > 0:
            roles[chunk.collectives].append((rank, chunk, load))
    found = {}
    for role, ranks in roles.items():
        usual_us = statistics.median(chunk.own_us[-1] for _, chunk, _ in ranks)
        usual_cpu_us = statistics.median(chunk.cpu_us for _, chunk, _ in ranks)
        for rank, chunk, load in ranks:
            if not load.stretch:
                found[rank] = Times(chunk.own_us[-1:], chunk.step_us, role)
                continue
            longer_us = _longer_us(chunk, load, chunk.cpu_us - usual_cpu_us)
            own_us = max(1.0, usual_us + min(longer_us, late.most(rank)))
            found[rank] = Times((own_us,), chunk.step_us, role, late.mean(rank))
    return found


def _longer_us(chunk: Chunk, load: _Load, more_cpu_us: float) -> float:
    """By how much more CPU time makes a step longer.

    No rank waits for a core for longer than it does: where ranks hardly compute, most of their
    waits are those for a core whenever they wake up, and CPU time has no part in them.

    Ranks that wait by computing, as they poll, have no other waits: a rank keeps nobody waiting for
    longer than ranks wait.
    """
    with_its_waits_us = more_cpu_us + load.queue * chunk.step_us
    return min(more_cpu_us * load.stretch, with_its_waits_us, load.waits * chunk.step_us)
