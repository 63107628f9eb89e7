"""Logs that were named, those that are analysed, and the result of each. Pure.

Of each path there is one analysis at a time, and one answer: of the file as it is. The whole record
of a log is what the ledger keeps; `Results` is made of records, and gives back those that changed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from undaunted.attribution.explain.case import Evidence, case_of_files, has_failed
from undaunted.attribution.explain.weigh import Case, Explained, explain
from undaunted.attribution.findings import CAUSES, Finding
from undaunted.attribution.logs.landmarks import LastWords  # noqa: TC001 - msgspec needs the name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.attribution.decision import Round

MOST_LOGS = 10_000
KEPT_S = 14 * 86400.0
MOST_FINDINGS = 8
_MOST_ROUNDS = 32  # of a job that are looked back at

COMPLETED = "COMPLETED"
# How a job has ended for Slurm, and why; FAILED says nothing of that.
_CAUSES_OF_STATES = {
    "NODE_FAIL": "node_failed",
    "BOOT_FAIL": "node_failed",
    "PREEMPTED": "preempted",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "CANCELLED": "cancelled",
    "OUT_OF_MEMORY": "host_out_of_memory",
}

Stamp = tuple[int, int, int]
Progress = Literal["completed", "in_flight", "pending"]


class LogResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of an analysis of a log; where it has rounds, of the last of them.

    Attributes:
        stamp: of the file when it was opened, see `undaunted.base.roots.Opened`.
        findings: the root cause first; at most `MOST_FINDINGS`.
        step: the last one that was made, None = not known.
        ended: whether the log says that the program came to its end.
        stop: whether the log alone speaks for not starting the job again.
        problem: why there is no answer, "" = there is.
        late: whether that is because it took too long.
        earlier: the same of earlier rounds in the same log.
        last: the last line of a launcher of undaunted, None = there is none.
        starts, logs_dir: see `undaunted.attribution.logs.landmarks.Landmarks`.
        dumps: folder of the Flight Recorder's dumps that were read as well, "" = none were.
        hanging: ranks that have kept the others waiting, by these.
    """

    stamp: Stamp
    findings: tuple[Finding, ...] = ()
    step: float | None = None
    ended: bool = False
    stop: bool = False
    problem: str = ""
    late: bool = False
    earlier: tuple[LogResult, ...] = ()
    last: LastWords | None = None
    starts: int = 0
    logs_dir: str = ""
    dumps: str = ""
    hanging: tuple[int, ...] = ()

    @property
    def rounds(self) -> tuple[LogResult, ...]:
        """The result of each round in the log."""
        return (*self.earlier, self)


class Log(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that is known of a log; a line of the ledger.

    Attributes:
        path: its real path.
        t: when it was first named, seconds since 1970.
        user: whose job it is.
        job: which job, "" = not known: then it has no earlier rounds.
        cycle: which round of the job, None = not known.
        dumps: folder with dumps of torch's Flight Recorder that belong to it, "" = not known.
        errors: path of the file with the standard error of the job, "" = the log has it.
        state: of the job for its scheduler, in Slurm's words; "" = not known.
        wanted: whether an analysis was asked for and is not there yet.
        told: the last analysis, None = there was none.
    """

    path: str
    t: float = 0.0
    user: str = ""
    job: str = ""
    cycle: int | None = None
    dumps: str = ""
    state: str = ""
    wanted: bool = False
    told: LogResult | None = None
    errors: str = ""

    @property
    def beside(self) -> tuple[str, str]:
        """The logs that are read with it."""
        return self.dumps, self.errors


class FullError(Exception):
    """There are too many logs that wait to be analysed; the message says so."""


class Results:
    """All logs that are known.

    Args:
        logs: of the ledger, in its order; the last one of a path counts.
        now: seconds since 1970; logs older than `KEPT_S` are left out.
        most: logs that are kept.
    """

    def __init__(self, logs: Iterable[Log] = (), now: float = 0.0, most: int = MOST_LOGS) -> None:
        newest = {log.path: log for log in logs}
        young = [log for log in newest.values() if log.wanted or log.t > now - KEPT_S]
        surplus = [log.path for log in young if not log.wanted][: max(0, len(young) - most)]
        self._logs = {log.path: log for log in young}
        for path in surplus:
            del self._logs[path]
        self._most = most
        self._jobs: dict[str, set[str]] = {}
        for log in self._logs.values():
            self._note_job(log)
        self._queue = deque(log.path for log in self._logs.values() if log.wanted)
        self._in_flight: dict[str, float] = {}

    @property
    def logs(self) -> list[Log]:
        """All, those that were named first at the beginning."""
        return list(self._logs.values())

    @property
    def in_flight(self) -> dict[str, float]:
        """Paths that are being analysed, and since when (as `begin` was told)."""
        return dict(self._in_flight)

    @property
    def queued(self) -> int:
        """The number of logs that wait for a program."""
        return len(self._queue)

    def get(self, path: str) -> Log | None:
        """Return what is known of a log, None = nothing."""
        return self._logs.get(path)

    def name(self, path: str, now: float, **said: Any) -> Log:
        """Take notice of a log, and of what the client says of it.

        Args:
            path: its real path.
            now: seconds since 1970.
            said: fields of a `Log`; "" and None say nothing.

        Raises:
            FullError: see there.
        """
        known = self._logs.get(path)
        if known is None:
            self._make_room(now)
            known = Log(path, now)
        named = {name: value for name, value in said.items() if value not in {"", None}}
        log = msgspec.structs.replace(known, **named)
        if log.beside != known.beside:  # what was told is not of these
            log = msgspec.structs.replace(log, told=None)
        return self._put(log)

    def want(self, path: str, stamp: Stamp, *, again: bool = False) -> Progress:
        """Ask for the analysis of a log that is known, unless there is one of the file as it is.

        Args:
            path: its real path.
            stamp: of the file.
            again: whatever there is, as what is read with it may have changed.
        """
        log = self._logs[path]
        if path in self._in_flight:
            return "in_flight"
        if log.told is not None and log.told.stamp == stamp and not again:
            return "completed"
        if not log.wanted:
            self._put(msgspec.structs.replace(log, wanted=True))
            self._queue.append(path)
        return "pending"

    def begin(self, now: float) -> str | None:
        """Return the next path to analyse, None = none is wanted."""
        if not self._queue:
            return None
        path = self._queue.popleft()
        self._in_flight[path] = now
        return path

    def end(self, path: str, told: LogResult) -> Log:
        """Take the outcome of the analysis that `begin` has begun."""
        del self._in_flight[path]
        return self._put(msgspec.structs.replace(self._logs[path], wanted=False, told=told))

    def explained(self, log: Log, number: int = -1) -> Explained | None:
        """Say what a log with an analysis tells of, after earlier rounds of its job.

        Args:
            log: the log.
            number: which round in it.

        Returns:
            None if nothing has failed then.
        """
        rounds = log.told.rounds if log.told is not None else ()
        if not rounds:
            return None
        is_last = number in {-1, len(rounds) - 1}
        case = _case(_by_scheduler(rounds[number], log.state if is_last else ""))
        if not has_failed(case):
            return None
        before = [*self._earlier(log), *rounds[:number]]
        return explain([*map(_round_of, before), case])[-1]

    def read_beside(self, path: str, job: str) -> int:
        """Return how many other logs of a job have been read."""
        others = self._jobs.get(job, set()) - {path}
        return sum(self._logs[other].told is not None for other in others)

    def _earlier(self, log: Log) -> list[LogResult]:
        """Return what the earlier rounds of the job told of, one log for each."""
        if not log.job or log.cycle is None:
            return []
        logs: dict[int, LogResult] = {}
        for path in self._jobs.get(log.job, ()):
            one = self._logs[path]
            is_earlier = one.cycle is not None and one.cycle < log.cycle and one.user == log.user
            if is_earlier and one.cycle is not None and one.told and not one.told.problem:
                logs[one.cycle] = one.told
        rounds = [one for cycle in sorted(logs) for one in logs[cycle].rounds]
        return rounds[-_MOST_ROUNDS:]

    def _put(self, log: Log) -> Log:
        before = self._logs.get(log.path)
        if before is not None and before.job != log.job:
            self._forget_job(before)
        self._logs[log.path] = log
        self._note_job(log)
        return log

    def _note_job(self, log: Log) -> None:
        if log.job:
            self._jobs.setdefault(log.job, set()).add(log.path)

    def _forget_job(self, log: Log) -> None:
        if log.job:
            self._jobs[log.job].discard(log.path)
            if not self._jobs[log.job]:
                del self._jobs[log.job]

    def _make_room(self, now: float) -> None:
        """Forget logs that are old, and where there are too many, the oldest with an answer."""
        first = next(iter(self._logs.values()), None)
        while first is not None and first.t <= now - KEPT_S and self._drop(first):
            first = next(iter(self._logs.values()), None)
        if len(self._logs) < self._most:
            return
        if not any(self._drop(log) for log in self._logs.values() if log.told is not None):
            raise FullError(f"{self._most} logs wait for their analysis; ask again later")

    def _drop(self, log: Log) -> bool:
        if log.wanted or log.path in self._in_flight:
            return False
        self._forget_job(log)
        del self._logs[log.path]
        return True


def _case(told: LogResult) -> Case:
    return case_of_files(Evidence(told.findings), told.step, told.last)


def _round_of(told: LogResult) -> Case | Round:
    case = _case(told)
    return case if has_failed(case) else case.about


def _by_scheduler(told: LogResult, state: str) -> LogResult:
    """Return what a log tells of, as the scheduler has it; the launcher knows better than both."""
    if told.last is not None or told.problem or (told.ended and not told.findings):
        return told
    if state == COMPLETED:
        return msgspec.structs.replace(told, findings=(), ended=True)
    cause = _CAUSES_OF_STATES.get(state)
    root = told.findings[0].cause if told.findings else ""
    if cause is None or root == cause or (root and not CAUSES[root].follows):
        return told
    found = Finding(cause, quote=f"{state}, by its scheduler")
    return msgspec.structs.replace(told, findings=(found, *told.findings))
