"""What must never happen, checked while it could."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from simulator.run import InvariantError

if TYPE_CHECKING:
    from simulator.inprocess.rank import Rank
    from simulator.inprocess.setup import Setup
    from simulator.virtual.engine import Simulation
    from undaunted.inprocess.core.messages import Record

# How calls end for all; "dismissed", "left" and such are of one rank only.
_COMMON = frozenset({"finished", "abort", "barrier", "mismatch"})
# A rank that is told to stop does so in this time, unless something has happened to it.
_GRACE_NS = 2_000_000_000


class Checker:
    """Told by the ranks what they do; raises `InvariantError`.

    Attributes:
        alive: processes of ranks.
        records: by call and epoch.
        ends: how many calls of ranks have ended how.
        takeovers: how often the controller has moved.
    """

    def __init__(self, setup: Setup, simulation: Simulation) -> None:
        self.alive: set[Rank] = set()
        self.records: dict[tuple[int, int], Record] = {}
        self.ends: Counter[str] = Counter()
        self.takeovers = 0
        self._setup = setup
        self._simulation = simulation
        self._running: dict[Rank, tuple[int, int]] = {}
        self._joined: dict[tuple[int, int], set[int]] = {}
        self._members: dict[tuple[int, int], dict[int, int]] = {}  # pids by job rank
        self._holders: dict[tuple[int, int], list[Rank]] = {}  # who has acted on a record
        self._first: dict[int, tuple[int, int]] = {}  # records, by pid
        self._out: set[int] = set()  # pids of those who have left, or were told to
        self._outcomes: dict[int, dict[tuple[str, int], list[Rank]]] = {}
        self._touched: dict[int, int] = {}  # until when, by job rank

    def touch(self, job_rank: int, until_ns: int) -> None:
        """Something happens to a rank, its guard or the controller: more than an exception."""
        self._touched[job_rank] = max(self._touched.get(job_rank, 0), until_ns)

    def touch_all(self) -> None:
        """There is no controller any more."""
        for job_rank in range(self._setup.ranks):
            self.touch(job_rank, self._simulation.now)

    def started(self, rank: Rank) -> None:
        """A process has started."""
        self.alive.add(rank)

    def gone(self, rank: Rank) -> None:
        """It has ended."""
        self.alive.discard(rank)
        self.rests(rank)

    def joins(self, rank: Rank, call: int, epoch: int) -> None:
        """It says that nothing of the epoch before runs in it any more."""
        self._joined.setdefault((call, epoch), set()).add(rank.pid)

    def told(self, rank: Rank, record: Record) -> None:
        """It acts on a record."""
        key = (record.call, record.epoch)
        known = self.records.setdefault(key, record)
        holders = self._holders.setdefault(key, [])
        if known != record and any(each in self.alive for each in holders):
            self._fail(f"the same record everywhere: {rank.name} has {record}, others {known}")
        self.records[key] = record
        holders.append(rank)
        if rank.job_rank not in record.members:
            self._fail(f"the same record everywhere: {rank.name} is no member of {record}")
        if rank.pid in self._out:
            self._fail(f"terminated ranks never return: {rank.name} is in epoch {key}")
        if record.joined and not self._setup.rejoin:
            self._fail(f"terminated ranks never return: {record} has ranks that join")
        pids = self._members.setdefault(key, {})
        if pids.setdefault(rank.job_rank, rank.pid) != rank.pid:
            self._fail(f"no rank in two epochs: two processes of {rank.job_rank} are in {key}")
        self._earlier_members(rank, record)

    def _earlier_members(self, rank: Rank, record: Record) -> None:
        """Who was left out of a record does not come back."""
        key = (record.call, record.epoch)
        first = self._first.setdefault(rank.pid, key)
        for other, between in self.records.items():
            if first < other < key and rank.job_rank not in between.members:
                self._fail(f"terminated ranks never return: {rank.name} was not in {between}")

    def runs(self, rank: Rank, record: Record) -> None:
        """It enters the function."""
        key = (record.call, record.epoch)
        self._running[rank] = key
        for other, its in self._running.items():
            if its != key and not self._excused(other) and not self._excused(rank):
                self._fail(
                    f"no rank in two epochs: {rank.name} runs {key}, {other.name} still {its}"
                )
        if not record.joined:
            self._all_have_joined(rank, record)

    def _all_have_joined(self, rank: Rank, record: Record) -> None:
        joined = self._joined.get((record.call, record.epoch), set())
        pids = {each.pid: each for each in self.alive if each.job_rank in record.members}
        for pid, other in pids.items():
            replaced = other.job_rank in self._out_of(record)
            if pid not in joined and not replaced and not self._excused(other):
                self._fail(
                    f"nobody runs before all have joined: {rank.name} runs epoch {record.epoch} of "
                    f"call {record.call}, which {other.name} has not joined"
                )

    def _out_of(self, record: Record) -> set[int]:
        """Job ranks that have a process which is not the one that the record means."""
        return {each.job_rank for each in self.alive if each.pid in self._out} | (
            set(range(self._setup.ranks)) if self._setup.rejoin else set()
        ) - set(record.terminated)

    def rests(self, rank: Rank) -> None:
        """The function does not run in it any more."""
        self._running.pop(rank, None)

    def verdict(self, rank: Rank, call: int, epoch: int, how: str) -> None:
        """A call is over for a rank."""
        self.ends[how] += 1
        if how in _COMMON:
            mine = (how, epoch if how == "finished" else -1)
            outcomes = self._outcomes.setdefault(call, {})
            outcomes.setdefault(mine, []).append(rank)
            for other, ranks in outcomes.items():
                living = [each.name for each in ranks if each in self.alive]
                if other != mine and living:
                    self._fail(
                        f"one verdict: call {call} ended as {mine} for {rank.name}, as {other} for "
                        f"{', '.join(living)}"
                    )
        else:
            self._out.add(rank.pid)
        if how in {"dismissed", "controller"} and rank.job_rank not in self._touched:
            self._fail(f"no healthy rank is lost: {rank.name} was {how}, and had no fault")

    def _excused(self, rank: Rank) -> bool:
        """Whether it stands still, or did lately, or nobody could have told it."""
        until = self._touched.get(rank.job_rank, -_GRACE_NS)
        return rank.frozen_ns is not None or until + _GRACE_NS >= self._simulation.now

    def _fail(self, text: str) -> None:
        raise InvariantError(text)
