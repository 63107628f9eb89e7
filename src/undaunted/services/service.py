"""The attribution service without its protocol: what is asked, and what is answered."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from undaunted.attribution.explain import Page, lines_of, no_failure
from undaunted.base.deadline import off_loop, wait_for
from undaunted.base.roots import RefusedError
from undaunted.services.ledger import LedgerError
from undaunted.services.results import FullError, Results, Told

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.base.roots import Roots
    from undaunted.services.analysts import Analyst
    from undaunted.services.ledger import Ledger
    from undaunted.services.results import Log, Progress, Stamp

T = TypeVar("T")

HEAD = 4096  # bytes of a log that are shown
_MOST_LOOKS = 32
_LOOK_S = 10.0
_KEEP_S = 10.0
_SLOW_S = 60.0  # so long it is said that a disk did not answer
_LONGEST_NAME = 200  # characters of a user or a job
_SOURCE = "rules"
_MODULE = "log_analyzer"
_ACTIONS = {"restart": "RESTART", "exclude": "RESTART", "stop": "STOP"}


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
    """

    log_path: str
    user: str = ""
    job_id: str | int | None = None
    cycle_id: str | int | None = None
    analysis_intent: str = ""


class Seen(NamedTuple):
    """A log as it was looked at: real path, and stamp of the file."""

    path: str
    stamp: Stamp


class AttributionService:
    """Reads logs when it is asked to. Used on one loop.

    Args:
        roots: below which logs may be read.
        ledger: keeps what is known.
        analysts: read logs, one at a time each.
        limit_s: how long that takes at most.

    Raises:
        LedgerError: the ledger cannot be read or written.
    """

    def __init__(
        self, roots: Roots, ledger: Ledger, analysts: Sequence[Analyst], limit_s: float
    ) -> None:
        self.results = Results(ledger.read(), time.time())
        ledger.write_anew(self.results.logs)
        self._roots = roots
        self._ledger = ledger
        self._limit_s = limit_s
        self._analysts = analysts
        self._tasks: list[asyncio.Task[None]] = []
        self._work = asyncio.Event()
        self._flights: dict[str, asyncio.Future[None]] = {}
        self._slots = asyncio.Semaphore(_MOST_LOOKS)
        self._counts: Counter[str] = Counter()
        self._began = time.monotonic()
        self._slow = -math.inf  # when a disk did not answer

    def begin(self) -> None:
        """Read what is wanted from now on; on the loop."""
        self._tasks = [asyncio.create_task(self._read_on(one)) for one in self._analysts]
        self._work.set()

    async def close(self) -> None:
        """Stop reading; what is wanted stays so in the ledger."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(LedgerError, TimeoutError):  # nothing that was submitted is in it alone
            await off_loop(self._slots, _KEEP_S, lambda: self._ledger.write_anew(self.results.logs))
        self._ledger.close()

    # --- requests -------------------------------------------------------------------------------

    async def submit(self, said: Submission) -> dict[str, Any]:
        """Take notice of a log.

        Raises:
            ServiceError: the log cannot be read, or there are too many.
        """
        seen = await self.look(said.log_path)
        job = "" if said.job_id is None else str(said.job_id)[:_LONGEST_NAME]
        user, cycle = said.user[:_LONGEST_NAME], _whole(said.cycle_id)
        self._name(seen.path, user=user, job=job, cycle=cycle)
        if said.analysis_intent == "terminal":
            self._want(seen)
        log = self._known(seen.path)
        self._counts["submitted"] += 1
        try:
            await self._keep(seen.path)
        except (OSError, asyncio.TimeoutError) as error:
            why = getattr(error, "strerror", None) or "the disk does not answer"
            raise ServiceError("internal", f"the ledger cannot be written: {why}") from None
        return {
            "submitted": True,
            "normalized_path": seen.path,
            "mode": _mode(log),
            "logs_dir": "",
            "sched_restarts": 0,
            "files_analyzed": int(log.told is not None),
        }

    async def ask(self, seen: Seen, *, wait: bool) -> dict[str, Any]:
        """Return what a log tells of; it is read if that is not known.

        Args:
            seen: the log as `look` has found it.
            wait: for the analysis; else the answer may be that there is none yet.

        Raises:
            ServiceError: there are too many logs.
        """
        if self.results.get(seen.path) is None:
            self._name(seen.path)
        progress = self._want(seen)
        self._counts["joined" if progress == "in_flight" else progress] += 1
        if wait and progress != "completed":
            progress = await self._until_read(seen, progress)
        return self._answer(seen.path, progress)

    def would_read(self, seen: Seen) -> bool:
        """Whether a question about a log makes it be read, and nobody has asked before."""
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
        return await self._off_loop(lambda: _look(self._roots, path))

    async def head(self, path: str) -> bytes:
        """Return the beginning of a log, at most `HEAD` bytes.

        Raises:
            ServiceError: as `look`.
        """
        return await self._off_loop(lambda: _head(self._roots, path))

    def health(self) -> dict[str, Any]:
        """Say whether all is well."""
        issues = []
        if self._ledger.problem:
            issues.append(f"the ledger cannot be written: {self._ledger.problem}")
        if time.monotonic() - self._slow < _SLOW_S:
            issues.append("a file system below the roots did not answer")
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
        }

    def refused(self, code: str) -> None:
        """Count a request that was refused."""
        self._counts["refused"] += 1
        self._counts[f"refused_{code}"] += 1

    def jobs(self, mode: str, limit: int, offset: int) -> dict[str, Any]:
        """List logs, those that were named last first; of one mode, or "" = of all."""
        logs = [log for log in reversed(self.results.logs) if mode in {"", _mode(log)}]
        shown = logs[offset : offset + limit]
        return {"jobs": [_row(log) for log in shown], "total": len(logs)}

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

    def _want(self, seen: Seen) -> Progress:
        progress = self.results.want(seen.path, seen.stamp)
        if progress == "pending":
            self._work.set()
        return progress

    async def _until_read(self, seen: Seen, progress: Progress) -> Progress:
        """Wait for an analysis of the log as it was seen, or newer."""
        deadline = time.monotonic() + 2 * self._limit_s
        joined = progress == "in_flight"  # it may have begun before that
        while True:
            new = asyncio.get_running_loop().create_future
            flight = self._flights.get(seen.path) or self._flights.setdefault(seen.path, new())
            await asyncio.wait([flight], timeout=deadline - time.monotonic())
            if not flight.done():
                return progress
            if not joined or self._want(seen) == "completed":
                return "completed"
            joined = False

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
            told = await analyst.read(path, (await self.look(path)).stamp)
        except ServiceError as error:  # it is gone, or empty by now
            told = Told(_GONE, problem=f"{error.code}: {error}")
        self._counts["analysed"] += 1
        self._counts["late"] += told.late
        self._counts["failed"] += bool(told.problem) and not told.late
        self.results.end(path, told)
        if flight := self._flights.pop(path, None):
            flight.set_result(None)
        # `health` says so, and the next record that is kept brings this one along.
        with suppress(OSError, asyncio.TimeoutError):
            await self._keep(path)

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

    def _answer(self, path: str, progress: Progress) -> dict[str, Any]:
        log = self.results.get(path)
        answer: dict[str, Any] = {"status": progress, "mode": "PENDING", "log_file": path}
        answer |= {"wl_restart": 0, "wl_restart_count": 1, "sched_restarts": 0}
        if log is None or log.told is None or progress != "completed":
            return answer | {"recommendation": {"action": "UNKNOWN", "source": _SOURCE}}
        action, text = self._verdict(log)
        advice = {"action": action, "source": _SOURCE}
        result: dict[str, Any] = {"module": _MODULE, "result": text, "recommendation": advice}
        if log.told.problem:
            result["state"] = "timeout" if log.told.late else "error"
            result["error"] = log.told.problem
        result["findings"] = msgspec.to_builtins(log.told.findings)
        return answer | {"mode": _mode(log), "result": result, "recommendation": advice}

    def _verdict(self, log: Log) -> tuple[str, str]:
        """Return what is recommended, and what was found, in a few lines."""
        told = log.told
        assert told is not None
        if told.problem:
            return ("TIMEOUT" if told.late else "UNKNOWN"), told.problem
        found = self.results.explained(log)
        if found is None:
            return "CONTINUE", no_failure("the log", told.step, ended=told.ended)
        page = Page(path=Path(log.path), rounds=[found])
        text = "\n".join(takewhile(bool, lines_of(page)))
        if told.stop and found.advice.action != "stop":
            return "STOP", f"{text}\nevery start would end so: all ranks say so before a step"
        return _ACTIONS[found.advice.action], text


_GONE = (0, 0, 0)  # stamp of no file
_COUNTS = ("submitted", "analysed", "completed", "joined", "pending", "late", "failed", "refused")


def _mode(log: Log) -> str:
    return "SINGLE" if log.wanted or log.told is not None else "PENDING"


def _row(log: Log) -> dict[str, Any]:
    return {
        "log_path": log.path,
        "user": log.user,
        "job_id": log.job or None,
        "cycle_id": log.cycle,
        "mode": _mode(log),
        "submitted_t": log.t,
        "wanted": log.wanted,
    }


def _whole(cycle: str | int | None) -> int | None:
    text = str(cycle)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _look(roots: Roots, path: str) -> Seen:
    opened = roots.open(path)
    os.close(opened.fd)
    if not opened.stamp[1]:
        raise RefusedError("empty_file", f"{path} is empty")
    return Seen(opened.path, opened.stamp)


def _head(roots: Roots, path: str) -> bytes:
    opened = roots.open(path)
    try:
        return os.read(opened.fd, HEAD)
    finally:
        os.close(opened.fd)
