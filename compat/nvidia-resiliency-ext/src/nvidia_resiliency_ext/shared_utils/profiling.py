"""Profiling events: the steps of each restart under NVRx's names.

`undaunted run` writes more than these into its journal; `profiling_events` shows the journal as
such events. Programs that record their own use `record_profiling_event`.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from undaunted.journal.events import Event

# A rank's events of this name are profiling events, their text says which.
RANK_EVENT = "profiling"

_log = logging.getLogger(__name__)


class ProfilingEvent(enum.Enum):
    """A step of a restart."""

    FAILURE_DETECTED = "failure_detected"
    WORKER_TERMINATED = "worker_terminated"
    RENDEZVOUS_STARTED = "rendezvous_started"
    RENDEZVOUS_COMPLETED = "rendezvous_completed"
    WORKER_START_STARTED = "worker_start_started"
    WORKER_START_COMPLETED = "worker_start_completed"
    ATTRIBUTION_GET_STARTED = "attribution_get_started"
    ATTRIBUTION_GET_COMPLETED = "attribution_get_completed"


class ProfilingRecord(NamedTuple):
    """One event.

    Attributes:
        event: what happened.
        cycle: number of the round that begins; a failure begins the next one.
        wall_s: Unix time, seconds.
        node: name of the node, "" = not known.
        rank: global rank, None = the event is of the whole node.
    """

    event: ProfilingEvent
    cycle: int
    wall_s: float
    node: str = ""
    rank: int | None = None

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.wall_s, UTC)
        where = [f"node {self.node}"] if self.node else []
        where += [f"rank {self.rank}"] if self.rank is not None else []
        when = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return f"cycle {self.cycle}: {', '.join([self.event.value, *where])} at {when}"


class FaultToleranceProfiler:
    """Counts cycles and logs events, by the standard `logging`, at level INFO. Thread-safe."""

    def __init__(self, cycle: int = 0, clock: Callable[[], float] = time.time) -> None:
        """Begin with a cycle.

        Args:
            cycle: number of the round that runs.
            clock: Unix time, seconds.
        """
        self._cycle = cycle
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def cycle(self) -> int:
        """Number of the cycle, one higher after each failure."""
        return self._cycle

    def record_event(
        self, event: ProfilingEvent, node_id: object = None, rank: int | None = None
    ) -> ProfilingRecord:
        """Log an event that happens now.

        Args:
            event: which; FAILURE_DETECTED begins a new cycle, and belongs to it.
            node_id: name of the node, None = not known.
            rank: global rank, None = the event is of the whole node.
        """
        with self._lock:
            if event is ProfilingEvent.FAILURE_DETECTED:
                self._cycle += 1
            cycle = self._cycle
        node = "" if node_id is None else str(node_id)
        record = ProfilingRecord(event, cycle, self._clock(), node, rank)
        _log.info("%s", record)
        return record


def record_profiling_event(
    event: ProfilingEvent, node_id: object = None, rank: int | None = None
) -> ProfilingRecord:
    """Log an event that happens now; in a rank of `undaunted run` it is put into the journal too.

    See `FaultToleranceProfiler.record_event`; there is one profiler for the process.
    """
    record = _profiler().record_event(event, node_id, rank)
    if "UNDAUNTED_PAGE" in os.environ:
        from undaunted.progress import api

        api.event(RANK_EVENT, event.value)
    return record


_lock = threading.Lock()
_of_process: list[FaultToleranceProfiler] = []


def _profiler() -> FaultToleranceProfiler:
    with _lock:
        if not _of_process:
            round_ = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
            cycle = int(round_) if round_.isascii() and round_.isdigit() else 0
            _of_process.append(FaultToleranceProfiler(cycle))
        return _of_process[0]


def profiling_events(events: Iterable[Event]) -> list[ProfilingRecord]:
    """Show a journal as profiling events, in its order.

    A rendezvous begins when there is nothing left to wait for (the launcher has started, the round
    before has stopped) and is complete when the coordinator has started the round. The first
    failure of a round is the one that counts. What an attribution service says belongs to the round
    whose log it has read.

    Args:
        events: of one launch on one node (`Journal.launches`).
    """
    from undaunted.journal import events as journal

    found: list[ProfilingRecord] = []
    failed: set[int] = set()
    ready: Event | None = None  # since then the next round could begin
    for event in events:
        if isinstance(event, journal.JobStarted):
            ready = event
        elif isinstance(event, journal.FailureDetected) and event.round not in failed:
            failed.add(event.round)
            found.append(
                _record(ProfilingEvent.FAILURE_DETECTED, event, event.round + 1, event.rank)
            )
        elif isinstance(event, journal.RoundStopped):
            ready = event
            cycle = event.round + (event.round in failed)
            found.append(_record(ProfilingEvent.WORKER_TERMINATED, event, cycle))
        elif isinstance(event, journal.RoundStarted):
            began = ready or event
            found += [
                _record(ProfilingEvent.RENDEZVOUS_STARTED, began, event.round),
                _record(ProfilingEvent.RENDEZVOUS_COMPLETED, event, event.round),
                _record(ProfilingEvent.WORKER_START_STARTED, event, event.round),
            ]
        elif isinstance(event, journal.WorkersSpawned):
            found.append(_record(ProfilingEvent.WORKER_START_COMPLETED, event, event.round))
        elif isinstance(event, journal.AttributionResult):
            began_s = event.wall - event.duration_ns / 1e9
            started = _record(ProfilingEvent.ATTRIBUTION_GET_STARTED, event, event.round)
            found += [
                started._replace(wall_s=began_s),
                _record(ProfilingEvent.ATTRIBUTION_GET_COMPLETED, event, event.round),
            ]
        elif isinstance(event, journal.RankEvent) and event.name == RANK_EVENT:
            found += [
                _record(kind, event, event.round, event.rank)
                for kind in ProfilingEvent
                if kind.value == event.text
            ]
    return found


def _record(
    kind: ProfilingEvent, event: Event, cycle: int, rank: int | None = None
) -> ProfilingRecord:
    return ProfilingRecord(kind, cycle, event.wall, event.node, rank)


__all__ = [
    "FaultToleranceProfiler",
    "ProfilingEvent",
    "ProfilingRecord",
    "profiling_events",
    "record_profiling_event",
]
