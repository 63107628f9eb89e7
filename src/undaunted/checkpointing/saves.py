"""The thread of a rank that brings snapshots to storage, one after the other.

A snapshot goes through three steps: the writer process writes this rank's files, all ranks agree
that theirs are written, and rank 0 makes the checkpoint appear. A rank that could not write takes
part in the agreement all the same, so that the others learn it at once and not by waiting.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from undaunted.agreement.failures import Failure
from undaunted.base.shown import Shown
from undaunted.checkpointing import announce
from undaunted.checkpointing.errors import CheckpointError, OccupiedError, SaveError
from undaunted.checkpointing.format.manifest import MAX_ATTEMPTS, File
from undaunted.checkpointing.snapshot import Report, Snapshot

if TYPE_CHECKING:
    from undaunted.checkpointing.pace import Pace
    from undaunted.checkpointing.publishing import Publisher
    from undaunted.checkpointing.writer.process import Writer

# For another rank to tell that it could not write in time. Seconds.
_ANSWER_S = 5.0
# Until ranks that could not agree on the step of the next save try again. Seconds.
_AGAIN_S = 30.0
# A writer that gets on may take the time of this speed, or of half of the bandwidth it is given.
# Bytes per second.
_SLOWEST = 4e6
_FINAL = {"is_final": True}  # see `SaveError`
_DAMAGED = (
    "was damaged in the copy in memory: it is not what training had when it was saved. Check the "
    "memory of this node"
)


class Saves:
    """Saves that are under way, and failures nobody has heard of yet."""

    def __init__(
        self,
        writer: Writer,
        publisher: Publisher,
        attempts: int,
        timeout_s: float,
        bandwidth: float | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Start the thread.

        Args:
            writer: who writes.
            publisher: who agrees with the other ranks and commits.
            attempts: how often a save is tried, at most ``MAX_ATTEMPTS``.
            timeout_s: for agreeing, and for writing besides the time that its bytes take. A writer
                that stands still is noticed before.
            bandwidth: bytes per second that the writer may write; None = no limit.
            pace: what decides on the step of the next save; None = nobody asks.
        """
        self._writer = writer
        self._publisher = publisher
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._pace = pace
        self._waiting: deque[Snapshot] = deque()  # bounded by the number of arenas
        self._busy = False
        self._bytes = 0  # of the snapshot that is being saved
        self._closed = False
        self._failures: dict[int, SaveError] = {}  # by number of the save; bounded by those waiting
        self._slowest = min(_SLOWEST, (bandwidth or math.inf) / 2)
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="undaunted-checkpoint", daemon=True)
        self._thread.start()

    def submit(self, snapshot: Snapshot) -> None:
        """Bring the snapshot to storage after those before it.

        Raises:
            SaveError: the thread has been ended meanwhile, as by `Checkpointer.abort`.
        """
        with self._changed:
            if not self._closed:
                self._waiting.append(snapshot)
                self._changed.notify_all()
                return
        self._forget(snapshot)
        raise _given_up(snapshot)

    @property
    def longest_s(self) -> float:
        """The time that all saves under way may take, in seconds; that of one save at least."""
        with self._changed:
            count = len(self._waiting) + self._busy
            size = sum(one.bytes for one in self._waiting) + self._bytes * self._busy
        one_s = 2 * (self._timeout_s + _ANSWER_S) * self._attempts + _ANSWER_S
        return one_s * max(1, count) + size / self._slowest * self._attempts

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Wait until all is saved, well or not; whether it was. Deletions are not waited for.

        Args:
            timeout_s: how long; never longer than it ever may take.
        """
        with self._changed, Shown("writing checkpoints", self._publisher.rank) as shown:
            deadline = time.monotonic() + min(timeout_s, self.longest_s)
            while not (over := self._idle()) and time.monotonic() < deadline:
                self._changed.wait(shown.period_s or deadline - time.monotonic())
                shown.reach(self._writer.bytes_written(), self._bytes)
            return over

    def _idle(self) -> bool:
        return not (self._waiting or self._busy)

    def take_failure(self, before: float = math.inf) -> SaveError | None:
        """Return the oldest failure that was not returned yet, and forget the others.

        Args:
            before: only of saves with lower numbers. All ranks have to ask for the same.
        """
        with self._changed:
            numbers = sorted(number for number in self._failures if number < before)
            failures = [self._failures.pop(number) for number in numbers]
            return failures[0] if failures else None

    def close(self, timeout_s: float) -> None:
        """End the thread; what waits is dropped, what is being done is waited for."""
        with self._changed:
            self._closed = True
            dropped = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
            self._failures |= {one.number: _given_up(one) for one in dropped}
        for snapshot in dropped:
            self._forget(snapshot)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                snapshot = self._waiting.popleft()
                self._busy = True
                self._bytes = snapshot.bytes
            try:
                failure = self._save(snapshot)
            except Exception as error:  # noqa: BLE001 - later saves need this thread
                failure = SaveError(f"step {snapshot.step}: {type(error).__name__}: {error}")
                announce.failed(snapshot.step, failure)
            if failure is not None:  # before the arena is free: who takes it asks for failures
                with self._changed:
                    self._failures[snapshot.number] = failure
            self._forget(snapshot)
            with self._changed:
                self._busy = False
                self._changed.notify_all()
            if failure is None:  # nobody waits for it but `close`
                self._publisher.delete_old(snapshot.step)
            if self._pace is not None:
                self._decide_next(self._pace, snapshot)

    def _decide_next(self, pace: Pace, snapshot: Snapshot) -> None:
        """After each save, on all ranks. What is to be saved meanwhile ends every pause."""
        pause_s = pace.pause_s(snapshot.began, snapshot.stall_s)
        while True:
            with self._changed:
                over = self._changed.wait_for(lambda: self._waiting or self._closed, pause_s)
            if pace.decide(snapshot.number) or over:
                return
            pause_s = _AGAIN_S

    def _forget(self, snapshot: Snapshot) -> None:
        if snapshot.lease is not None:
            snapshot.lease.release()

    def _save(self, snapshot: Snapshot) -> SaveError | None:
        failure = None
        for attempt in range(self._attempts):
            failure = self._attempt(snapshot, attempt)
            if failure is None:
                return None
            announce.failed(snapshot.step, failure, aloud=self._publisher.speaks_of(failure))
            if failure.is_final or self._closed:
                break
        return failure

    def _attempt(self, snapshot: Snapshot, again: int) -> SaveError | None:
        attempt, name = snapshot.number * MAX_ATTEMPTS + again, snapshot.name(again)
        outcome, write_s = self._write(snapshot, attempt)
        limit_s = self._timeout_s + _ANSWER_S
        try:
            self._publisher.publish(snapshot, attempt, name, outcome, limit_s)
        except CheckpointError as error:
            if isinstance(error, OccupiedError) and snapshot.lease and snapshot.lease.arena:
                snapshot.lease.arena.begin()  # else the next round could put it in their place
            return error if isinstance(error, SaveError) else SaveError(str(error))
        if isinstance(outcome, Report):
            announce.saved(
                snapshot.step,
                sum(file.size for file in outcome.files.values()),
                snapshot.stall_s,
                write_s,
                time.monotonic() - snapshot.began,
            )
        return None

    def _write(self, snapshot: Snapshot, attempt: int) -> tuple[Report | Failure, float]:
        """Have this rank's files written; nothing is raised, as the others wait for an answer."""
        if snapshot.staged is None or snapshot.lease is None:
            return snapshot.problem or Failure("nothing was copied", details=_FINAL), 0.0
        files = snapshot.staged.files
        if not files:
            return Report({}, snapshot.staged.report), 0.0
        try:
            if snapshot.staged.arrive is not None:
                snapshot.staged.arrive()
            target = self._publisher.target(snapshot.step, attempt)
            limit_s = self._timeout_s + snapshot.bytes / self._slowest
            written = self._writer.write(snapshot.lease, target, files, limit_s)
            if snapshot.staged.damage is not None and (name := snapshot.staged.damage()):
                if snapshot.lease.arena is not None:
                    snapshot.lease.arena.begin()  # else the next round could make one of it
                return Failure(f"{name} {_DAMAGED}", details=_FINAL), 0.0
        except Exception as error:  # noqa: BLE001 - whatever it is, the others have to learn of it
            return Failure.of(error), 0.0
        sizes = {file.name: file.size for file in files}
        if self._pace is not None:
            self._pace.cpu_s = written.cpu_s
        report = {name: File(size=sizes[name], crc32=crc) for name, crc in written.crc32.items()}
        return Report(report, snapshot.staged.report), written.seconds


def _given_up(snapshot: Snapshot) -> SaveError:
    return SaveError(f"{snapshot.name(0)} was given up: the Checkpointer was aborted or closed")
