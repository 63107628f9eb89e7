"""The files about the rounds of a job: written where the job is led, by a thread of their own."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.directories import make_private
from undaunted.coordinator.core import messages as job
from undaunted.coordinator.cycle_info import Cycle, CycleInfo, CycleTracker, content
from undaunted.coordinator.protocol import Ledger, Seat
from undaunted.fault_tolerance.output.destinations import round_log_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from undaunted.coordinator.core.leader import Leader
    from undaunted.fault_tolerance.cycle_info_place import CycleInfoPlace

_LAST_WRITE_S = 2.0
_WAITING = 64  # rounds that a disk which hangs may make wait; the oldest ones are given up
_MOST_BYTES = 4 * 1024 * 1024


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
    """The same for a job of one node, which has no leader.

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
