"""The jobs that are followed, and the next acts: pure, docs/design/slurm-monitor.md.

Whoever drives it asks `Monitor.next` for one command, carries it out, and tells what came of it.
Nothing else changes in between, so that a monitor which is killed at any moment goes on from the
files of the last `Keep`.
"""

from __future__ import annotations

import enum
import heapq
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from undaunted.base.text import one_line
from undaunted.fault_tolerance.agent.attribution import read_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LIVE = ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED")
ENDED = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"),
    *("BOOT_FAIL", "DEADLINE", "REVOKED"),
)
FINISHED = "FINISHED"  # it has left the queue, and nobody knows how
UNKNOWN = "UNKNOWN"  # a word of Slurm that is none of these; such a job has not ended

MISSES = 2  # listings in a row without a job, before it is taken to be gone
LOOK_UPS = 3  # tries to find out how it ended
ACCOUNTED_AT_ONCE = 100  # jobs in one call of sacct
MOST_CLOSED = 10_000  # of these the oldest are forgotten first
KEPT_S = 14 * 86400.0
FIRST_WAIT_S = 10.0
LONGEST_WAIT_S = 180.0
PATIENCE = 3  # answers in a row without any use, before "slower" or an error of the service is one
SAVE_AGAIN_S = 30.0
_LINES = 1000
_QUOTED = re.compile("['\"]")
UNREACHABLE, NO_ANSWER, SLOWER, BUSY = 0, -1, 429, 503
_AWAY = frozenset({UNREACHABLE, SLOWER, BUSY, 502, 504})  # the last two by who stands before it
# The log is not there yet, or nothing is in it.
_TOO_EARLY = frozenset({"not_found", "empty_file"})
# A service that says these has looked at the log, and will say it again.
_OF_A_LOG = _TOO_EARLY | {
    *("invalid_path", "not_regular", "outside_root", "not_readable"),
    *("logs_dir_not_readable", "fr_dump_not_found"),
}


class Stage(enum.Enum):
    """The progress of a job."""

    RUNNING = "running"  # the service is yet to be told that it runs
    TRACKED = "tracked"  # the service knows
    ENDED = "ended"  # the service is yet to be told that the log is complete
    ASKED = "asked"  # a result is waited for
    CLOSED = "closed"  # nothing is left to be done


class Listed(NamedTuple):
    """A job as squeue shows it; ``log_path`` is "" where it has not begun to run.

    ``error_path`` is that of its standard error, "" = the log has that too.
    """

    id: str
    restarts: int
    submitted: str
    state: str
    user: str
    partition: str
    log_path: str
    name: str
    error_path: str = ""


class Job(msgspec.Struct, kw_only=True):
    """A job that is followed, as it is kept on disk.

    Attributes:
        id: ``17``, or ``17_3`` for a task of an array.
        restarts: how often Slurm has started it again.
        submitted: when it was queued, as Slurm writes it; a job that goes back gets a new time.
        name, user, partition: as Slurm has them.
        state: a word of Slurm's, or ``FINISHED`` or ``UNKNOWN``.
        log_path: where its batch script writes.
        error_path: where its errors are, "" = there as well.
        stage: how far it has come.
        since: when it came there, seconds since 1970.
        outcome: of a closed one: ``result``, ``refused`` or ``no answer``.
        action: what the service recommends, "" = nothing.
        text: the result in a line, or what the service has refused.
    """

    id: str
    restarts: int
    submitted: str
    name: str
    user: str
    partition: str
    state: str
    log_path: str
    stage: Stage
    since: float
    error_path: str = ""
    outcome: str = ""
    action: str = ""
    text: str = ""


class Reply(NamedTuple):
    """The outcome of a request to the service.

    Attributes:
        status: of HTTP; or `UNREACHABLE`; or `NO_ANSWER`, when nothing usable came back.
        body: JSON of the answer; {} = none.
        problem: in words, "" = there is none.
        retry_after_s: how long it wants to be left alone, 0 = it does not say.
    """

    status: int
    body: Mapping[str, Any] = {}
    problem: str = ""
    retry_after_s: float = 0.0


class ListJobs(NamedTuple):
    """Ask squeue for all jobs; then `Monitor.listed` or `not_listed`."""


class Account(NamedTuple):
    """Ask sacct how jobs ended that have left the queue; then `Monitor.accounted`."""

    ids: tuple[str, ...]


class Keep(NamedTuple):
    """Write a job's file, with the whole answer of the service; then `Monitor.kept`."""

    job: Job
    answer: Mapping[str, Any]


class Forget(NamedTuple):
    """Remove a job's file."""

    id: str


class Submit(NamedTuple):
    """``POST /logs``; then `Monitor.replied`."""

    job: Job
    intent: str


class Ask(NamedTuple):
    """``GET /logs``, without waiting; then `Monitor.replied`."""

    job: Job


class Say(NamedTuple):
    """Show a line."""

    text: str


class Wait(NamedTuple):
    """Nothing is to be done before this time, unless somebody wants a listing."""

    until: float


Command = ListJobs | Account | Keep | Forget | Submit | Ask | Say | Wait


class Monitor:
    """All jobs that are known, and what is due.

    Times are seconds of one clock that never goes back and counts from 1970.

    Attributes:
        jobs: by id, closed ones as well.
        problems: why something does not work at present, by what it is.
        counts: what was done and what failed, since the start.
    """

    def __init__(
        self, kept: Iterable[Job], now: float, *, period_s: float, give_up_s: float
    ) -> None:
        """Go on from what was kept.

        Args:
            kept: jobs from the files.
            now: the time.
            period_s: between two listings.
            give_up_s: how long a result is waited for.
        """
        self.jobs: dict[str, Job] = {}
        self.problems: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self._kinds: dict[str, str] = {}  # of the problems
        self._period_s = period_s
        self._give_up_s = give_up_s
        self._list_at = now
        self._save_at = now
        self._away_until = now
        self._away_times = 0
        self._open: set[str] = set()  # those that are in Slurm's hands
        self._closed: dict[str, None] = {}  # the oldest first
        self._misses: Counter[str] = Counter()
        self._look_ups: Counter[str] = Counter()
        self._unsaved: dict[str, Mapping[str, Any]] = {}
        self._old: list[str] = []
        self._due: dict[str, float] = {}
        self._queue: list[tuple[float, int, str]] = []  # what is due, and what was once
        self._pushed = 0
        self._tries: Counter[str] = Counter()
        self._lines: list[str] = []
        for job in sorted(kept, key=lambda one: one.since):
            self._take_up(job, now)

    # --- what is next -----------------------------------------------------------------------------

    def next(self, now: float) -> Command:
        """Return the next command. Asked again without having been told anything: the same."""
        if self._unsaved and now >= self._save_at:
            id_, answer = next(iter(self._unsaved.items()))
            return Keep(self.jobs[id_], answer)
        if self._lines:
            return Say(self._lines[0])
        if self._old:
            return Forget(self._old[0])
        if now >= self._list_at:
            return ListJobs()
        if gone := self._gone():
            return Account(gone)
        if self._unsaved:  # the service hears nothing that a restart would not know of
            return Wait(min(self._list_at, self._save_at))
        at, id_ = self._first_due()
        at = max(at, self._away_until)
        if now < at:
            return Wait(min(self._list_at, at))
        job = self.jobs[id_]
        match job.stage:
            case Stage.RUNNING:
                return Submit(job, "track_only")
            case Stage.ENDED:
                return Submit(job, "terminal")
            case _:
                return Ask(job)

    def list_soon(self, now: float) -> None:
        """Have the jobs listed now, and the service tried again if it was away."""
        self._list_at = self._away_until = self._save_at = now

    def _gone(self) -> tuple[str, ...]:
        found = (id_ for id_, misses in self._misses.items() if misses >= MISSES)
        return tuple(id_ for id_, _ in zip(found, range(ACCOUNTED_AT_ONCE), strict=False))

    def _first_due(self) -> tuple[float, str]:
        while self._queue:
            at, _, id_ = self._queue[0]
            if self._due.get(id_) == at:
                return at, id_
            heapq.heappop(self._queue)
        return float("inf"), ""

    # --- what came of it --------------------------------------------------------------------------

    def said(self) -> None:
        """The line was shown."""
        del self._lines[0]

    def kept(self, id_: str, now: float, problem: str = "") -> None:
        """A job's file was written, or could not be."""
        self._problem("disk", problem)
        if problem:
            self._save_at = now + SAVE_AGAIN_S
        else:
            del self._unsaved[id_]

    def forgotten(self) -> None:
        """A job's file was removed, or as good as that."""
        del self._old[0]

    def not_listed(self, problem: str, now: float) -> None:
        """Squeue gave no list: nothing is known to have changed."""
        self.counts["squeue_failures"] += 1
        self._problem("squeue", problem)
        self._list_at = now + self._period_s

    def listed(self, jobs: Iterable[Listed], now: float) -> None:
        """Squeue has shown these jobs, of all that it has."""
        self.counts["squeue_calls"] += 1
        self._problem("squeue", "")
        self._list_at = now + self._period_s
        seen = set()
        for one in jobs:
            seen.add(one.id)
            job = self.jobs.get(one.id)
            if job is None or (job.stage is Stage.CLOSED and _is_another(job, one)):
                if one.log_path:
                    self._begin(one, now)
            elif one.id in self._open:
                self._follow(job, one, now)
        for id_ in self._open - seen:
            self._misses[id_] += 1
        self._forget_old(seen, now)

    def accounted(self, asked: Iterable[str], states: Mapping[str, str] | None, now: float) -> None:
        """Sacct has said how jobs ended; it has no account of those it left out. None = it failed.

        One that has not ended by its account is asked for again: what it knows comes late.
        """
        self.counts["sacct_calls" if states is not None else "sacct_failures"] += 1
        for id_ in asked:
            state = UNKNOWN if states is None else states.get(id_, FINISHED)
            self._look_ups[id_] += 1
            if state in ENDED or state == FINISHED or self._look_ups[id_] >= LOOK_UPS:
                self._ended(self.jobs[id_], state if state in ENDED else FINISHED, now)
            else:
                self._misses[id_] = MISSES - 1  # it is looked up after the next listing

    def replied(self, job: Job, reply: Reply, now: float) -> None:
        """The service has answered what was asked last, or has not."""
        status = reply.status
        is_refused = status >= 400 and reply.body.get("error_code") in _OF_A_LOG
        is_strange = 300 <= status < 500 and not is_refused  # it wants a token, or is no service
        if status in _AWAY or status == NO_ANSWER or is_strange:
            self._leave_alone(reply, now)
        elif status >= 500:  # perhaps of this log alone
            self._no_use(reply)
        else:
            self._away_times = 0
            self._problem("service", "")
        if status in _AWAY:
            return  # nothing is known of this job
        if is_strange:
            self._put(job.id, now + LONGEST_WAIT_S)
        elif status == NO_ANSWER or status >= 500:
            self._again(job, reply.problem, now)
        elif is_refused:
            self._refused(job, reply, now)
        elif job.stage is Stage.RUNNING:
            job.text = ""
            self._move(job, Stage.TRACKED, now)
        elif job.stage is Stage.ENDED:
            self._move(job, Stage.ASKED, now)
            self._put(job.id, now + FIRST_WAIT_S)
        elif reply.body.get("status") == "completed":
            self._close(job, "result", now, reply.body)
        else:
            self._again(job, "there is no result yet", now)

    # --- jobs -------------------------------------------------------------------------------------

    def _take_up(self, job: Job, now: float) -> None:
        self.jobs[job.id] = job
        if job.stage is Stage.CLOSED:
            self._closed[job.id] = None
            return
        if job.stage in {Stage.RUNNING, Stage.TRACKED}:
            self._open.add(job.id)
        if job.stage is not Stage.TRACKED:
            self._put(job.id, now)

    def _begin(self, one: Listed, now: float) -> None:
        self._closed.pop(one.id, None)
        job = Job(**one._asdict(), stage=Stage.RUNNING, since=now)
        self._take_up(job, now)
        self._unsaved[job.id] = {}
        self.counts["jobs"] += 1
        if one.state in ENDED:
            self._ended(job, one.state, now)

    def _follow(self, job: Job, one: Listed, now: float) -> None:
        del self._misses[job.id], self._look_ups[job.id]
        paths = (job.log_path, job.error_path)
        before = (job.state, job.restarts, job.submitted, paths)
        if one.log_path:  # one that went back to the queue has none for a while
            paths = (one.log_path, one.error_path)
        after = (one.state, one.restarts, one.submitted, paths)
        if before != after:
            job.state, job.restarts, job.submitted = after[:3]
            job.log_path, job.error_path = paths
            self._unsaved.setdefault(job.id, {})
        if one.state in ENDED:
            self._ended(job, one.state, now)
        elif job.stage is Stage.RUNNING and job.id not in self._due:
            self._put(job.id, now)

    def _ended(self, job: Job, state: str, now: float) -> None:
        del self._misses[job.id], self._look_ups[job.id]
        self._open.discard(job.id)
        job.state = state
        self._move(job, Stage.ENDED, now)
        self._put(job.id, now)

    def _move(self, job: Job, stage: Stage, now: float) -> None:
        job.stage, job.since = stage, now
        del self._tries[job.id]
        self._due.pop(job.id, None)
        self._unsaved.setdefault(job.id, {})
        self.counts[stage.value] += 1

    def _close(self, job: Job, outcome: str, now: float, answer: Mapping[str, Any]) -> None:
        self._move(job, Stage.CLOSED, now)
        job.outcome = outcome
        if outcome == "result":
            job.action, job.text = read_result(answer)
        self._unsaved[job.id] = answer
        self._closed[job.id] = None
        self.counts[outcome] += 1
        word = f"advice {job.action}" if job.action else job.outcome
        self._say(f"job {job.id} ({job.name}) {job.state}, {word}: {job.text}")

    def _forget_old(self, seen: set[str], now: float) -> None:
        """Forget closed jobs that squeue shows no more and that are old, or too many."""
        too_many = len(self._closed) - MOST_CLOSED
        for id_ in list(self._closed):
            if too_many <= 0 and now - self.jobs[id_].since < KEPT_S:
                break
            if id_ not in seen and id_ not in self._unsaved:
                too_many -= 1
                del self._closed[id_], self.jobs[id_]
                self._old.append(id_)

    # --- the service ------------------------------------------------------------------------------

    def _put(self, id_: str, at: float) -> None:
        self._due[id_] = at
        self._pushed += 1  # in the order in which they came
        heapq.heappush(self._queue, (at, self._pushed, id_))

    def _refused(self, job: Job, reply: Reply, now: float) -> None:
        self.counts[f"refused_{reply.status}"] += 1
        job.text = reply.problem
        if job.stage is not Stage.RUNNING:
            self._close(job, "refused", now, reply.body)
        elif reply.body.get("error_code") in _TOO_EARLY:
            del self._due[job.id]  # until the next listing
        else:
            self._move(job, Stage.TRACKED, now)  # at its end it is submitted all the same

    def _again(self, job: Job, problem: str, now: float) -> None:
        """Come back to a job later, if it is worth it."""
        if job.stage is not Stage.RUNNING and now - job.since >= self._give_up_s:
            job.text = f"given up: {problem}"
            self._close(job, "no answer", now, {})
            return
        self._tries[job.id] += 1
        self._put(job.id, now + _pause(self._tries[job.id]))

    def _leave_alone(self, reply: Reply, now: float) -> None:
        """Come back to the service later."""
        self._no_use(reply)
        self._away_until = now + max(_pause(self._away_times), reply.retry_after_s)

    def _no_use(self, reply: Reply) -> None:
        """Count an answer without any use; it is a problem at once, or if it is not the first."""
        self.counts["service_failures"] += 1
        self._away_times += 1
        status, problem = reply.status, reply.problem
        if status == SLOWER:
            problem = "the service has wanted fewer requests for a while (429); it is still asked"
        is_passing = status == SLOWER or (status >= 500 and status not in _AWAY)
        if not is_passing or self._away_times >= PATIENCE:
            self._problem("service", problem, str(status) if status > 0 else "")

    def _problem(self, what: str, problem: str, kind: str = "") -> None:
        """Note what does not work, "" = it works; say it, unless it is of the kind that was said.

        Without a kind, problems that differ in what they quote are of one.
        """
        self.problems.pop(what, None)
        before = self._kinds.pop(what, "")
        if problem := one_line(problem):
            self.problems[what] = problem
            self._kinds[what] = kind or _QUOTED.split(problem, maxsplit=1)[0]
            if self._kinds[what] != before:
                self._say(problem)
        elif before:
            self._say(f"{what} works again")

    def _say(self, line: str) -> None:
        if len(self._lines) < _LINES:
            self._lines.append(one_line(line))


def _is_another(job: Job, one: Listed) -> bool:
    """Return whether a closed job was started once more, or another one has its number."""
    return (job.restarts, job.submitted) != (one.restarts, one.submitted)


def _pause(times: int) -> float:
    return min(FIRST_WAIT_S * 2.0 ** min(times - 1, 10), LONGEST_WAIT_S)
