"""The attribution service without its protocol: what is asked, and what is answered."""

from __future__ import annotations

import asyncio
import math
import posixpath
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from undaunted.base.deadline import off_loop, wait_for
from undaunted.base.roots import RefusedError
from undaunted.services import answers, looks
from undaunted.services.ledger import LedgerError
from undaunted.services.results import FullError, LogResult, Results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.base.roots import Roots
    from undaunted.services.analysts import Analyst
    from undaunted.services.export import Export
    from undaunted.services.ledger import Ledger
    from undaunted.services.looks import Seen
    from undaunted.services.results import Log, Progress

T = TypeVar("T")

_MOST_LOOKS = 32
_LOOK_S = 10.0
_KEEP_S = 10.0
_SLOW_S = 60.0  # so long the service reports a disk that did not answer
_LONGEST_NAME = 200  # characters of a user or a job
_MOST_OTHERS = 32  # logs that one names, the newest


class ServiceError(Exception):
    """A request that is refused.

    Attributes:
        code: why, in a word for programs.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class Submission(msgspec.Struct, kw_only=True):
    """Body of ``POST /logs``.

    Attributes:
        log_path: absolute path of the log.
        user: whose job it is.
        job_id, cycle_id: which job, and which round of it.
        analysis_intent: ``terminal`` = it is complete, and analysed at once.
        fr_path: absolute path of the folder with the Flight Recorder's dumps that belong to it.
        job_state: of the job for its scheduler, in Slurm's words: ``COMPLETED``, ``NODE_FAIL``, ...
        error_path: absolute path of the file with its standard error, if that is another one.
    """

    log_path: str
    user: str | None = ""
    job_id: str | int | None = None
    cycle_id: str | int | None = None
    analysis_intent: Literal["", "track_only", "progressive", "terminal"] | None = ""
    fr_path: str | None = ""
    job_state: str | None = ""
    error_path: str | None = ""


class AttributionService:
    """Reads logs when it is asked to. Used on one loop.

    Args:
        roots: below which logs may be read.
        ledger: keeps what is known.
        analysts: read logs, one at a time each.
        limit_s: how long that takes at most.
        export: gets what logs tell of, None = nobody does.

    Raises:
        LedgerError: the ledger cannot be read or written.
    """

    def __init__(
        self,
        roots: Roots,
        ledger: Ledger,
        analysts: Sequence[Analyst],
        limit_s: float,
        export: Export | None = None,
    ) -> None:
        self.results = Results(ledger.read(), time.time())
        ledger.write_anew(self.results.logs)
        self._roots = roots
        self._ledger = ledger
        self._limit_s = limit_s
        self._export = export
        self._analysts = analysts
        self._tasks: list[asyncio.Task[None]] = []
        self._work = asyncio.Event()
        self._flights: dict[str, asyncio.Future[None]] = {}
        self._is_ending = False
        self._slots = asyncio.Semaphore(_MOST_LOOKS)
        self._counts: Counter[str] = Counter()
        self._began = time.monotonic()
        self._slow = -math.inf  # when a disk did not answer

    def begin(self) -> None:
        """Read what is wanted from now on; on the loop."""
        self._tasks = [asyncio.create_task(self._read_on(one)) for one in self._analysts]
        self._work.set()
        if self._export is not None:
            self._export.begin()

    def let_go(self) -> None:
        """Answer all who wait for an analysis, as if their time was over: the service is to end."""
        self._is_ending = True
        for flight in self._flights.values():
            flight.set_result(None)
        self._flights.clear()

    async def close(self) -> None:
        """Stop reading; what is wanted stays so in the ledger."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._export is not None:
            await self._export.close()
        with suppress(LedgerError, TimeoutError):  # nothing that was submitted is in it alone
            await off_loop(self._slots, _KEEP_S, lambda: self._ledger.write_anew(self.results.logs))
        self._ledger.close()

    # --- requests -------------------------------------------------------------------------------

    async def submit(self, said: Submission) -> dict[str, Any]:
        """Take notice of a log.

        Raises:
            ServiceError: the log cannot be read, or there are too many, or it is no sensible round.
        """
        cycle = _round(said.cycle_id)
        seen = await self.look(said.log_path)
        dumps = await self._dumps(said.fr_path) if said.fr_path else ""
        job = "" if said.job_id is None else str(said.job_id)[:_LONGEST_NAME]
        user = (said.user or "")[:_LONGEST_NAME]
        state = (said.job_state or "")[:_LONGEST_NAME]
        about = {"dumps": dumps, "state": state, "errors": said.error_path}
        self._name(seen.path, user=user, job=job, cycle=cycle, **about)
        if said.analysis_intent == "terminal":
            self._want(seen, again=bool(said.error_path))
        log = self._known(seen.path)
        self._counts["submitted"] += 1
        try:
            await self._keep(seen.path)
        except OSError as error:
            why = getattr(error, "strerror", None) or "the disk does not answer"
            raise ServiceError("internal", f"the ledger cannot be written: {why}") from None
        read = int(log.told is not None)
        if answers.mode(log) == "SPLITLOG":
            read = self.results.read_beside(log.path, _job_of(log))
        return answers.submission(log, read)

    async def ask(self, seen: Seen, *, wait: bool, restart: int | None = None) -> dict[str, Any]:
        """Return what a log tells of, or the newest of those it names; they are read if needed.

        Args:
            seen: the log as `look` has found it.
            wait: for the analysis; else the answer may be that there is none yet.
            restart: which round in it; None = the last one.

        Raises:
            ServiceError: there are too many logs, or no such round, or others cannot be read.
        """
        if self.results.get(seen.path) is None:
            self._name(seen.path)
        progress = await self._read_now(seen, wait=wait)
        log = self.results.get(seen.path)
        if progress != "completed" or log is None or log.told is None:
            return answers.no_result(seen.path, progress)
        if log.told.logs_dir and (others := await self._want_others(log)):
            progress = await self._read_now(others[-1], wait=wait)
            other = self.results.get(others[-1].path)
            if progress != "completed" or other is None or other.told is None:
                return answers.no_result(others[-1].path, progress)
            if not other.state:
                other = msgspec.structs.replace(other, state=log.state)
            about = {"mode": answers.mode(log), "sched_restarts": answers.sched_restarts(log)}
            return self._result(other, restart) | about
        return self._result(log, restart)

    async def find(self, path: str, file: str) -> Seen:
        """Look at the file of this name beside a log, or where the ranks of that log write.

        Raises:
            ServiceError: as `look`.
        """
        log = self.results.get(posixpath.normpath(path))
        elsewhere = log.told.logs_dir if log is not None and log.told is not None else ""
        return await self.look(posixpath.join(elsewhere or posixpath.dirname(path), file))

    def would_read(self, seen: Seen) -> bool:
        """Return whether a question about a log makes it be read, and nobody has asked before."""
        log = self.results.get(seen.path)
        if log is None:
            return True
        is_known = log.told is not None and log.told.stamp == seen.stamp
        return not (is_known or log.wanted)

    async def look(self, path: str) -> Seen:
        """Look at a log.

        Raises:
            ServiceError: it is not to be read, or is empty, or the disk does not answer.
        """
        return await self._off_loop(lambda: looks.look(self._roots, path))

    async def head(self, path: str) -> bytes:
        """Return the beginning of a log.

        Raises:
            ServiceError: as `look`.
        """
        return await self._off_loop(lambda: looks.head(self._roots, path))

    def health(self) -> dict[str, Any]:
        """Say whether all is well."""
        issues = []
        if self._ledger.problem:
            issues.append(f"the ledger cannot be written: {self._ledger.problem}")
        if time.monotonic() - self._slow < _SLOW_S:
            issues.append("a file system below the roots did not answer")
        if self._export is not None and self._export.problem:
            issues.append(f"a result could not be sent to --export-url: {self._export.problem}")
        if any(task.done() for task in self._tasks):
            return {
                "status": "fail",
                "issues": [*issues, "logs are not read any more; start again"],
            }
        return {"status": "degraded" if issues else "ok", "issues": issues}

    def stats(self) -> dict[str, Any]:
        """Count what was done since the start."""
        return {
            "uptime_s": round(time.monotonic() - self._began, 3),
            "logs": len(self.results.logs),
            "queued": self.results.queued,
            "in_flight": len(self.results.in_flight),
            **{name: self._counts[name] for name in _COUNTS},
            "exported": self._export.sent if self._export is not None else 0,
            "export_lost": self._export.lost if self._export is not None else 0,
        }

    def refused(self, code: str) -> None:
        """Count a request that was refused."""
        self._counts["refused"] += 1
        self._counts[f"refused_{code}"] += 1

    def jobs(self, mode: str, limit: int, offset: int) -> dict[str, Any]:
        """List logs, those that were named last first; of one mode, or "" = of all.

        Raises:
            ServiceError: there is no such mode.
        """
        if mode and mode not in answers.MODES:
            modes = ", ".join(answers.MODES)
            raise ServiceError("invalid_request", f"mode: {mode[:80]!r} is none of {modes}")
        logs = [log for log in reversed(self.results.logs) if mode in {"", answers.mode(log)}]
        shown = logs[offset : offset + limit]
        return {"jobs": [answers.row(log) for log in shown], "total": len(logs)}

    def in_flight(self) -> dict[str, Any]:
        """List the logs that are being read."""
        now = time.monotonic()
        flights = self.results.in_flight.items()
        return {"inflight": [{"log_path": path, "for_s": now - since} for path, since in flights]}

    # --- inside ---------------------------------------------------------------------------------

    def _name(self, path: str, **said: Any) -> Log:
        try:
            return self.results.name(path, time.time(), **said)
        except FullError as error:
            raise ServiceError("job_limit_reached", str(error)) from None

    def _known(self, path: str) -> Log:
        log = self.results.get(path)
        assert log is not None, "what is wanted or just named is never dropped"
        return log

    def _want(self, seen: Seen, *, again: bool = False) -> Progress:
        progress = self.results.want(seen.path, seen.stamp, again=again)
        if progress == "pending":
            self._work.set()
        return progress

    async def _read_now(self, seen: Seen, *, wait: bool) -> Progress:
        """Have a log that is known read unless it was, and perhaps wait for that."""
        progress = self._want(seen)
        self._counts["joined" if progress == "in_flight" else progress] += 1
        if wait and progress != "completed":
            return await self._until_read(seen, progress)
        return progress

    async def _want_others(self, log: Log) -> list[Seen]:
        """Have the logs read that a log names; the oldest first.

        Each is a round of the job, unless a start writes several: these would be taken for many.
        """
        assert log.told is not None
        folder = log.told.logs_dir
        try:
            others = await self._off_loop(lambda: looks.others(self._roots, folder, log))
        except ServiceError as error:
            if error.code == "busy":
                raise
            text = f"LOGS_DIR={folder}, of {log.path}: {error}"
            raise ServiceError("logs_dir_not_readable", text) from None
        is_one_each = len(others) <= log.told.starts
        for number, one in list(enumerate(others))[-_MOST_OTHERS:]:
            known = self.results.get(one.path)
            if known is None or not known.job:  # nobody has submitted it himself
                cycle = number if is_one_each else None
                self._name(one.path, user=log.user, job=_job_of(log), cycle=cycle)
            self._want(one)
        return others

    async def _dumps(self, path: str) -> str:
        """Return the real path of a folder of dumps."""
        try:
            return await self._off_loop(lambda: looks.dumps(self._roots, path))
        except ServiceError as error:
            code = "fr_dump_not_found" if error.code == "not_found" else error.code
            raise ServiceError(code, f"fr_path: {error}") from None

    def _result(self, log: Log, restart: int | None) -> dict[str, Any]:
        try:
            return answers.result(self.results, log, restart)
        except IndexError as error:
            raise ServiceError("not_found", str(error)) from None

    async def _until_read(self, seen: Seen, progress: Progress) -> Progress:
        """Wait for an analysis of the log as it was seen, or newer."""
        deadline = time.monotonic() + 2 * self._limit_s
        joined = progress == "in_flight"  # it may have begun before that
        while not self._is_ending:
            new = asyncio.get_running_loop().create_future
            flight = self._flights.get(seen.path) or self._flights.setdefault(seen.path, new())
            await asyncio.wait([flight], timeout=deadline - time.monotonic())
            if self._is_ending or not flight.done():
                break
            if not joined or self._want(seen) == "completed":
                return "completed"
            joined = False
        return progress

    async def _read_on(self, analyst: Analyst) -> None:
        try:
            while True:
                path = self.results.begin(time.monotonic())
                if path is None:
                    self._work.clear()
                    await self._work.wait()
                    continue
                await self._read(analyst, path)
        finally:
            await analyst.close()

    async def _read(self, analyst: Analyst, path: str) -> None:
        try:
            stamp, named = (await self.look(path)).stamp, self._known(path).beside
            told = await analyst.read(path, stamp, *named)
            if named != self._known(path).beside:  # others were named meanwhile
                told = msgspec.structs.replace(told, stamp=_GONE)
        except ServiceError as error:  # it is gone, or empty by now
            told = LogResult(_GONE, problem=f"{error.code}: {error}")
        self._counts["analysed"] += 1
        self._counts["late"] += told.late
        self._counts["failed"] += bool(told.problem) and not told.late
        before = self._known(path).told
        log = self.results.end(path, told)
        if self._export is not None and _is_news(told, before):
            about = {"user": log.user, "job_id": log.job, "cycle_id": log.cycle}
            self._export.give({"log_path": path, **about, **answers.result(self.results, log)})
        if flight := self._flights.pop(path, None):
            flight.set_result(None)
        # `health` says so, and the next record that is kept brings this one along.
        with suppress(OSError):
            await self._keep(path)
        if told.logs_dir:
            with suppress(ServiceError):  # the client gets it
                await self._want_others(log)

    async def _keep(self, path: str) -> None:
        log = self._known(path)
        kept = asyncio.ensure_future(self._ledger.keep(log, lambda: self.results.logs))
        await wait_for(asyncio.shield(kept), _KEEP_S)

    async def _off_loop(self, call: Callable[[], T]) -> T:
        try:
            return await off_loop(self._slots, _LOOK_S, call)
        except RefusedError as error:
            raise ServiceError(error.code, str(error)) from None
        except TimeoutError:
            self._slow = time.monotonic()
            raise ServiceError("busy", "the file system does not answer; ask again later") from None


_GONE = (0, 0, 0)  # stamp of no file
_COUNTS = ("submitted", "analysed", "completed", "joined", "pending", "late", "failed", "refused")


def _is_news(told: LogResult, before: LogResult | None) -> bool:
    """Return whether others hear of an answer: not of a job that is well, or a failure again."""
    tells = bool(told.findings or told.ended or told.problem)
    return tells and (before is None or _gist(told) != _gist(before))


def _gist(told: LogResult) -> tuple[object, ...]:
    return told.findings, len(told.earlier), told.ended, told.problem


def _round(cycle: str | int | None) -> int | None:
    """Read the number of a round.

    Raises:
        ServiceError: it is none.
    """
    if cycle is None or cycle == "":
        return None
    text = str(cycle)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ServiceError("invalid_request", f"cycle_id: {text[:80]!r} is no round: 0, 1, ...")
    return int(text)


def _job_of(log: Log) -> str:
    """Return the job of logs that a log names."""
    return log.job or log.path
