"""The files about the rounds of a job: written where the job is led, by a separate thread.

The fields are those of NVRx, where a round is a cycle; see docs/logs.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.directories import make_private
from undaunted.base.text import format_ranks
from undaunted.coordinator.policy import messages as job
from undaunted.coordinator.protocol import Ledger, Seat
from undaunted.fault_tolerance.output.destinations import round_log_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from undaunted.coordinator.lead.leader import Leader
    from undaunted.fault_tolerance.run_config import CycleInfoPlace

_LAST_WRITE_S = 2.0
_WAITING = 64  # rounds that a disk which hangs may make wait; the oldest ones are given up
_MOST_BYTES = 4 * 1024 * 1024
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)


class CycleInfoFiles:
    """Keeps the files up to date while a leader runs here.

    Args:
        place: where they go.
        say: shows a line; called by the thread, once.
    """

    def __init__(self, place: CycleInfoPlace, say: Callable[[str], None]) -> None:
        self._place = place
        self._say = say
        self._tracker: CycleTracker | None = None
        self._changed = threading.Condition()
        self._waiting: dict[int, Cycle] = {}
        self._closing = False
        self._told = False
        self._thread: threading.Thread | None = None

    def lead(self, ledger: Ledger) -> None:
        """A leader begins here with this ledger."""
        self._tracker = CycleTracker(ledger)
        if (running := self._tracker.running) is not None:
            self._keep(running)

    def take(self, ledger: Ledger, spares: Callable[[], Iterable[str]]) -> None:
        """The leader's ledger has changed. Never waits.

        Args:
            ledger: as it is now.
            spares: names of nodes that are there and take no part; called when a round begins.
        """
        if self._tracker is None:
            return
        for cycle in self._tracker.take(ledger, spares, time.time()):
            self._keep(cycle)

    def follow(self, leader: Leader) -> Callable[[Leader], None]:
        """A leader of several nodes begins here; return what to call when its ledger changes."""
        self.lead(leader.ledger)

        def changed(leader: Leader) -> None:
            self.take(leader.ledger, partial(_spares, leader))

        return changed

    def close(self) -> None:
        """Write what is left, for two seconds at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_LAST_WRITE_S)

    def _keep(self, cycle: Cycle) -> None:
        with self._changed:
            self._waiting.pop(cycle.number, None)
            self._waiting[cycle.number] = cycle
            while len(self._waiting) > _WAITING:
                del self._waiting[next(iter(self._waiting))]
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="undaunted-cycle-info", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                cycle = self._waiting.pop(next(iter(self._waiting)))
            try:
                _write(self._place, cycle)
            except OSError as error:
                self._tell(error.strerror or str(error))

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._say(
                f"files about the rounds cannot be written to {self._place.directory}: {why}; "
                "the job goes on without"
            )


class OwnRounds:
    """Keeps the files up to date for a job of one node, which has no leader.

    Args:
        place: where they go.
        say: shows a line.
    """

    def __init__(self, place: CycleInfoPlace, say: Callable[[str], None]) -> None:
        self._ledger = Ledger(run_id="")
        self._files = CycleInfoFiles(place, say)
        self._files.lead(self._ledger)

    def obey(self, order: job.Command) -> None:
        """The job policy has given an order."""
        match order:
            case job.Start():
                seat = Seat(
                    node=order.node,
                    incarnation="",
                    address="",
                    group_rank=order.group_rank,
                    first_rank=order.first_rank,
                    slots=order.slots,
                )
                changes = {"round": order.round, "running": True, "table": (seat,)}
            case job.Stop() | job.End():
                changes = {"running": False}
            case _:
                return
        self._ledger = msgspec.structs.replace(self._ledger, **changes)
        self._files.take(self._ledger, tuple)

    def close(self) -> None:
        """Write what is left, for two seconds at most."""
        self._files.close()


def _write(place: CycleInfoPlace, cycle: Cycle) -> None:
    path = Path(place.path(cycle.number))
    make_private(path.parent)
    info = content(
        cycle,
        job_id=place.job_id,
        attempt=place.attempt,
        log_file=round_log_path(place.log_prefix, cycle.number) if place.log_prefix else "",
        before=read(path) if cycle.started_s is None else None,
    )
    temporary = path.with_name(f".{path.name}-{os.urandom(4).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(temporary, flags, 0o600)
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n")
        temporary.replace(path)
        if cycle.ended_s is None:
            temporary.symlink_to(path.name)
            temporary.replace(place.current)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def of(place: CycleInfoPlace | None, say: Callable[[str], None]) -> CycleInfoFiles | None:
    """Return the files at a place, None = there is none."""
    return None if place is None else CycleInfoFiles(place, say)


def _spares(leader: Leader) -> list[str]:
    table = {seat.node for seat in leader.ledger.table}
    here = [info.name for info in leader.policy.roster.candidates()]
    return [name for name in here if name not in table]


def read(path: Path) -> CycleInfo | None:
    """Return what a file says, None = there is none that can be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
            return msgspec.json.decode(file.read(_MOST_BYTES), type=CycleInfo)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


class CycleInfo(msgspec.Struct, kw_only=True):
    """The content of the file; see docs/logs.md."""

    job_id: str
    attempt_index: int
    cycle_number: int
    cycle_start_time: str | None = None
    cycle_end_time: str | None = None
    cycle_log_file: str = ""
    active_nodes: str = ""
    standby_nodes: str = ""
    generation: int = 0
    active_ranks: str = ""


@dataclass(frozen=True, slots=True)
class Cycle:
    """A round as its leader sees it.

    Attributes:
        number: of the round.
        epoch: of the leader.
        table: who takes part.
        spares: nodes that were there and did not, when it began.
        started_s, ended_s: seconds since 1970; None = before this leader, and not yet.
    """

    number: int
    epoch: int
    table: tuple[Seat, ...]
    spares: tuple[str, ...] = ()
    started_s: float | None = None
    ended_s: float | None = None


class CycleTracker:
    """Tells from the ledgers of one leader when a round begins and ends.

    Args:
        ledger: the leader's first; a round that runs in it has begun at a time nobody here knows.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._cycle = _cycle(ledger) if ledger.running else None

    @property
    def running(self) -> Cycle | None:
        """The round that runs, or has ended last; None = there has been none."""
        return self._cycle

    def take(
        self, ledger: Ledger, spares: Callable[[], Iterable[str]], wall_s: float
    ) -> list[Cycle]:
        """Return what has changed, the older round first.

        Args:
            ledger: as it is now.
            spares: names of nodes that are there and take no part; called when a round begins.
            wall_s: seconds since 1970.
        """
        changed: list[Cycle] = []
        last = self._cycle
        if (
            last is not None
            and last.ended_s is None
            and not (ledger.running and ledger.round == last.number)
        ):
            last = replace(last, ended_s=wall_s)
            changed.append(last)
        if ledger.running and (last is None or last.ended_s is not None):
            last = replace(_cycle(ledger), spares=tuple(spares()), started_s=wall_s)
            changed.append(last)
        self._cycle = last
        return changed


def content(
    cycle: Cycle, *, job_id: str, attempt: int, log_file: str, before: CycleInfo | None = None
) -> CycleInfo:
    """Return what the file says about ``cycle``.

    Args:
        cycle: the round.
        job_id: of the job.
        attempt: how often the scheduler has started the job again.
        log_file: path of the log of the round, "" = there is none.
        before: what an earlier leader has written about it; it knows how the round began.
    """
    seats = cycle.table
    ranks = (rank for s in seats for rank in range(s.first_rank, s.first_rank + s.slots))
    info = CycleInfo(
        job_id=job_id,
        attempt_index=attempt,
        cycle_number=cycle.number,
        cycle_start_time=None if cycle.started_s is None else iso_time(cycle.started_s),
        cycle_end_time=None if cycle.ended_s is None else iso_time(cycle.ended_s),
        cycle_log_file=log_file,
        active_nodes=node_ranges(seat.node for seat in seats),
        standby_nodes=node_ranges(cycle.spares),
        generation=cycle.epoch,
        active_ranks=format_ranks(ranks),
    )
    if before is not None and cycle.started_s is None and before.cycle_number == cycle.number:
        info.cycle_start_time = before.cycle_start_time
        info.standby_nodes = before.standby_nodes
    return info


def iso_time(wall_s: float) -> str:
    """Return seconds since 1970 as ``2026-11-21T07:02:09.166Z``."""
    when = datetime.fromtimestamp(wall_s, UTC)
    return when.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def node_ranges(names: Iterable[str]) -> str:
    """Return node names as Slurm writes them: ``login,node[1-3,07]``; "" for none."""
    numbers: dict[str, list[str]] = {}
    single: list[str] = []
    for name in sorted(set(names)):
        if found := _NUMBERED.fullmatch(name):
            numbers.setdefault(found[1], []).append(found[2])
        else:
            single.append(name)
    texts = [(name, name) for name in single]
    texts += [(prefix, _bracketed(prefix, digits)) for prefix, digits in numbers.items()]
    return ",".join(text for _, text in sorted(texts))


def _bracketed(prefix: str, numbers: list[str]) -> str:
    if len(numbers) == 1:
        return prefix + numbers[0]
    ranges: list[tuple[str, str]] = []
    for digits in sorted(numbers, key=lambda each: (int(each), len(each))):
        if ranges and _follows(ranges[-1][1], digits):
            ranges[-1] = (ranges[-1][0], digits)
        else:
            ranges.append((digits, digits))
    return f"{prefix}[{','.join(low if low == high else f'{low}-{high}' for low, high in ranges)}]"


def _follows(last: str, digits: str) -> bool:
    """Whether counting on from ``last``, with its zeros in front, gives ``digits``."""
    return digits == str(int(last) + 1).zfill(len(last))


def _cycle(ledger: Ledger) -> Cycle:
    return Cycle(ledger.round, ledger.epoch, ledger.table)
