"""The program that follows Slurm's jobs: carries out what `core.Monitor` wants done."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from undaunted.base.deadline import in_time, off_loop, wait_for
from undaunted.base.directories import make_private
from undaunted.base.http_client import NoAnswerError, exchange
from undaunted.base.http_server import Page, PageServer
from undaunted.base.text import count, format_duration
from undaunted.fault_tolerance.agent.attribution import error_text
from undaunted.services.slurm import commands, core

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Mapping
    from pathlib import Path

_LOGS = "/logs"
_DISK_S = 10.0
_START_S = 60.0  # for all files to be read
_SPARE_S = 10.0  # for names to be looked up, and for what sends byte by byte
_MOST_ON_PAGE = 1000
_UNAUTHORIZED = 401
_JSON = "application/json"


class Config(msgspec.Struct, kw_only=True):
    """The settings of the monitor.

    Attributes:
        service: URL of the attribution service.
        service_token: that it wants to see, b"" = none.
        timeout_s: longest wait for an answer of the service.
        directory: for its files, absolute.
        period_s: between two listings.
        give_up_s: how long a result is waited for.
        users, partitions: of the jobs, separated by commas; "" = all.
        names: what names of jobs begin with, a regular expression.
        listener: of the status pages, None = there are none.
        token: that a client must show, b"" = none.
        tls: of the status pages.
    """

    service: str
    directory: Path
    service_token: bytes = b""
    timeout_s: float = 60.0
    period_s: float = 180.0
    give_up_s: float = 3600.0
    users: str = ""
    partitions: str = ""
    names: re.Pattern[str] = re.compile("")
    listener: socket.socket | None = None
    token: bytes = b""
    tls: ssl.SSLContext | None = None


class Files:
    """A file for each job: ``DIRECTORY/jobs/17.json``, mode 0600, replaced in one piece.

    Closed by `close`; until then no other monitor can use the directory.
    """

    def __init__(self, directory: Path) -> None:
        """Make the directory, or take it over.

        Raises:
            OSError: it cannot be used, or another monitor uses it.
        """
        self._jobs = directory / "jobs"
        make_private(self._jobs)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock = os.open(directory / "lock", flags, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise BlockingIOError(0, "another monitor uses it") from None

    def close(self) -> None:
        """Let others use the directory."""
        os.close(self._lock)

    def read(self) -> tuple[list[core.Job], list[str]]:
        """Return all jobs, and the names of files that hold none."""
        jobs, others = [], []
        for path in self._jobs.iterdir():
            job = None
            if path.is_file():  # a pipe would keep us waiting
                if path.suffix == ".new":
                    path.unlink()  # half written
                    continue
                with contextlib.suppress(msgspec.MsgspecError):
                    job = msgspec.json.decode(path.read_bytes(), type=core.Job)
            if job is not None and path == self._path(job.id):
                jobs.append(job)
            else:
                others.append(str(path))
        return jobs, others

    def write(self, job: core.Job, answer: Mapping[str, Any]) -> None:
        """Write a job's file.

        Raises:
            OSError: that is not possible.
        """
        content = {**msgspec.to_builtins(job), "answer": dict(answer)}
        path = self._path(job.id)
        temporary = path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(temporary, flags, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(msgspec.json.format(msgspec.json.encode(content), indent=2))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def remove(self, id_: str) -> None:
        """Remove a job's file."""
        self._path(id_).unlink(missing_ok=True)

    def _path(self, id_: str) -> Path:
        return self._jobs / f"{id_}.json"


def run(config: Config) -> int:
    """Follow jobs until SIGTERM or SIGINT; SIGUSR1 or SIGHUP ends the period early. Return 0.

    Raises:
        OSError: the directory cannot be used.
    """
    files = in_time(_START_S, lambda: Files(config.directory))
    try:
        asyncio.run(_run(config, files))
    finally:
        files.close()
    return 0


async def _run(config: Config, files: Files) -> None:
    loop = asyncio.get_running_loop()
    shell = Shell(config, files, say)
    following = asyncio.ensure_future(shell.follow())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, following.cancel)
    for number in (signal.SIGUSR1, signal.SIGHUP):
        loop.add_signal_handler(number, shell.list_soon)
    say(
        f"asks {config.service} about jobs, every {format_duration(config.period_s)}; "
        f"{count(len(shell.monitor.jobs), 'job')} known from before; results are in "
        f"{config.directory / 'jobs'}{_pages(config)}"
    )
    with contextlib.suppress(asyncio.CancelledError):
        await following
    say("ended; jobs are followed further when it is started again")


def _pages(config: Config) -> str:
    if config.listener is None:
        return ""
    host, port = config.listener.getsockname()[:2]
    scheme = "http" if config.tls is None else "https"
    return f"; status at {scheme}://{f'[{host}]' if ':' in host else host}:{port}/stats"


class Shell:
    """Carries out one command after the other."""

    def __init__(self, config: Config, files: Files, say: Callable[[str], None]) -> None:
        """Read the files.

        Args:
            config: what to do.
            files: of the jobs.
            say: shows a line.
        """
        self._config = config
        self._files = files
        self._say = say
        self._began = time.time() - time.monotonic()
        kept, others = in_time(_START_S, files.read)
        for path in others:
            say(f"{path} is no file of a job, and is not looked at: remove it")
        self.monitor = core.Monitor(
            kept, self._now(), period_s=config.period_s, give_up_s=config.give_up_s
        )
        self._wake = asyncio.Event()
        self._is_wanted = False  # another look, since the last one began
        # One at a time: what hangs is not overtaken by what comes later.
        self._disk, self._line = asyncio.Semaphore(1), asyncio.Semaphore(1)

    def list_soon(self) -> None:
        """Look at the queue now."""
        self._is_wanted = True
        self.monitor.list_soon(self._now())
        self._wake.set()

    async def follow(self) -> None:
        """Follow jobs until cancelled."""
        config, pages = self._config, None
        if config.listener is not None:
            pages = PageServer(config.listener, self.page, token=config.token, tls=config.tls)
        try:
            while True:
                await self.do(self.monitor.next(self._now()))
        finally:
            if pages is not None:
                await pages.close()

    async def do(self, command: core.Command) -> None:
        """Carry out a command and tell the monitor what came of it."""
        monitor = self.monitor
        match command:
            case core.Say(text):
                self._say(text)
                monitor.said()
            case core.Keep(job, answer):
                problem = await self._on_disk(lambda: self._files.write(job, answer))
                monitor.kept(job.id, self._now(), problem)
            case core.Forget(id_):
                await self._on_disk(lambda: self._files.remove(id_))
                monitor.forgotten()
            case core.ListJobs():
                await self._list()
            case core.Account(ids):
                states = None
                with contextlib.suppress(commands.SlurmError):
                    states = await commands.look_up(ids)
                monitor.accounted(ids, states, self._now())
            case core.Submit(job, intent):
                about = {"log_path": job.log_path, "user": job.user, "job_id": job.id}
                more = {"cycle_id": job.restarts, "analysis_intent": intent}
                more |= {"job_state": job.state}
                more |= {"error_path": job.error_path} if job.error_path else {}
                monitor.replied(job, await self._request("POST", _LOGS, about | more), self._now())
            case core.Ask(job):
                query = urlencode({"log_path": job.log_path, "wait": "false"})
                reply = await self._request("GET", f"{_LOGS}?{query}", None)
                monitor.replied(job, reply, self._now())
            case core.Wait(until):
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    await wait_for(self._wake.wait(), max(0.0, until - self._now()))

    def _now(self) -> float:
        """Seconds since 1970, of a clock that never goes back."""
        return self._began + time.monotonic()

    async def _list(self) -> None:
        config = self._config
        self._is_wanted = False
        try:
            jobs = await commands.list_jobs(config.users, config.partitions)
        except commands.SlurmError as error:
            self.monitor.not_listed(str(error), self._now())
        else:
            jobs = [one for one in jobs if config.names.match(one.name)]
            self.monitor.listed(jobs, self._now())
        if self._is_wanted:
            self.list_soon()

    async def _on_disk(self, call: Callable[[], None]) -> str:
        """Return why it did not work, "" = it did."""
        try:
            await off_loop(self._disk, _DISK_S, call)
        except OSError as error:
            return f"{self._config.directory}: {error.strerror or error}"
        return ""

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> core.Reply:
        limit_s = self._config.timeout_s + _SPARE_S
        try:
            return await off_loop(
                self._line, limit_s, lambda: request(self._config, method, path, body)
            )
        except TimeoutError as error:
            return core.Reply(core.NO_ANSWER, problem=f"{self._config.service}: {error}")

    # --- status -----------------------------------------------------------------------------------

    def page(self, path: str, _accept: str = "") -> Page:
        """Return a page about the monitor."""
        jobs, problems = self.monitor.jobs, self.monitor.problems
        if path == "/healthz":
            status = "degraded" if problems else "ok"
            return _page({"status": status, "issues": list(problems.values())})
        if path in {"/", "/stats"}:
            counts = {
                "jobs": len(jobs),
                "stages": Counter(job.stage.value for job in jobs.values()),
                "states": Counter(job.state for job in jobs.values()),
                "outcomes": Counter(job.outcome for job in jobs.values() if job.outcome),
                "since_start": self.monitor.counts,
            }
            return _page(counts)
        if path == "/jobs":
            newest = [_about(job) for job in list(jobs.values())[-_MOST_ON_PAGE:]]
            return _page({"jobs": newest, "count": len(jobs)})
        return _page({"error": "there are /healthz, /stats and /jobs"}, "404 Not Found")


def _about(job: core.Job) -> dict[str, Any]:
    """Return a job as the page shows it, with the names that NVRx has for these two."""
    about: dict[str, Any] = msgspec.to_builtins(job)
    return {"job_id": about.pop("id"), "stdout_path": about.pop("log_path"), **about}


def _page(content: object, status: str = "200 OK") -> Page:
    return Page(msgspec.json.encode(content) + b"\n", _JSON, status)


def say(line: str) -> None:
    """Show a line on standard error; where that is closed, nowhere."""
    with contextlib.suppress(OSError, ValueError):
        print(f"[undaunted slurm-monitor] {line}", file=sys.stderr, flush=True)


def request(config: Config, method: str, path: str, body: Mapping[str, Any] | None) -> core.Reply:
    """Send a request to the service; never raises."""
    try:
        answer = exchange(
            config.service,
            method,
            path,
            None if body is None else json.dumps(body),
            limit_s=config.timeout_s,
            token=config.service_token,
        )
    except OSError as error:
        return core.Reply(core.UNREACHABLE, problem=f"{config.service}: {error.strerror or error}")
    except NoAnswerError as error:
        return core.Reply(core.NO_ANSWER, problem=f"{config.service}: {method} {_LOGS}: {error}")
    return read_reply(answer.status, answer.body, answer.retry_after)


def read_reply(status: int, content: bytes, retry_after: str) -> core.Reply:
    """Understand what the service has answered."""
    try:
        body = msgspec.json.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        body = None
    if status < 300 and not isinstance(body, dict):
        return core.Reply(core.NO_ANSWER, problem=f"the answer is no JSON object: {content[:80]!r}")
    body = body if isinstance(body, dict) else {}
    problem = f"the service: {status} {error_text(content)}" if status >= 300 else ""
    if status == _UNAUTHORIZED:
        problem += " (--attrsvc-token-file names the file with it)"
    wait_s = float(retry_after) if re.fullmatch(r"\d{1,4}", retry_after) else 0.0
    return core.Reply(status, body, problem, wait_s)
