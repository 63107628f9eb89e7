"""Guards as processes of their own: real ranks, real guards, and what happens to either."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.inprocess.guard.rank_program import Task
from tests.inprocess.guard.talk import enter
from tests.ports import address_of_this_machine, free_ports
from undaunted.base.process import open_pidfd, read_stat, wait_pidfd
from undaunted.inprocess.core.messages import Limits
from undaunted.inprocess.guard import program, startup

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).parent / "rank_program.py"
DEADLINE_S = 60.0
LIMITS = Limits(
    soft_timeout=20.0,
    hard_timeout=25.0,
    heartbeat_timeout=20.0,
    barrier_timeout=30.0,
    completion_timeout=30.0,
    termination_grace_time=0.2,
)


class Rank:
    """A rank of `rank_program`."""

    def __init__(self, process: subprocess.Popen[bytes], pidfile: Path) -> None:
        self.process = process
        self.pidfile = pidfile
        self._lines = b""

    def line(self) -> str:
        """The next line it prints, "" = it has ended."""
        assert self.process.stdout is not None
        end = time.monotonic() + DEADLINE_S
        while b"\n" not in self._lines:
            poll = select.poll()  # select() takes no descriptor beyond 1023
            poll.register(self.process.stdout, select.POLLIN)
            ready = poll.poll(max(0.0, end - time.monotonic()) * 1000)
            assert ready, "the rank says nothing"
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return ""
            self._lines += data
        line, _, self._lines = self._lines.partition(b"\n")
        return line.decode()

    def hear(self, kind: str) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.line())
        assert message["type"] == kind, message
        return message

    def do(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()

    @property
    def guard(self) -> int:
        return int(self.pidfile.read_text())

    @property
    def program(self) -> int:
        """The process that has forked the guard."""
        stat = read_stat(self.guard)
        assert stat is not None
        return stat.ppid

    def guard_ends(self, timeout_s: float = DEADLINE_S) -> bool:
        with contextlib.suppress(FileNotFoundError):
            pidfd = open_pidfd(self.guard)
            if pidfd is not None:
                try:
                    return wait_pidfd(pidfd, timeout_s)
                finally:
                    os.close(pidfd)
        return True


class Job:
    """Some ranks on this machine."""

    def __init__(self, directory: Path, ranks: int, **task: Any) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.size = ranks
        self.task = {"limits": LIMITS, "store_file": str(directory), **task}
        self.ranks: list[Rank] = []
        self.port = free_ports(1)

    def start(self, **environ: str) -> list[Rank]:
        for job_rank in range(self.size):
            self.ranks.append(self._start(job_rank, environ))
        return self.ranks

    def begin(self) -> list[Rank]:
        """All are in epoch 0."""
        self.start()
        for rank in self.ranks:
            assert rank.line() == "ready"
            rank.do("enter", "join 0")
        for rank in self.ranks:
            rank.hear("Record")
            rank.do("running 0")
            assert rank.line() == "runs"
        return self.ranks

    def _start(self, job_rank: int, environ: dict[str, str]) -> Rank:
        pidfile = self.directory / f"{job_rank}.pid"
        task = Task(
            job_rank=job_rank,
            world_size=self.size,
            pidfile=str(self.directory / "{rank}.pid"),
            logfile=str(self.directory / "{rank}.log"),
            **self.task,
        )
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), msgspec.json.encode(task).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                "PATH": os.environ["PATH"],
                "LOCAL_WORLD_SIZE": str(self.size),
                "MASTER_PORT": str(self.port),
                "PYTHONPATH": os.pathsep.join(sys.path),
                **environ,
            },
            start_new_session=True,
        )
        return Rank(process, pidfile)

    def end(self) -> None:
        for rank in self.ranks:
            rank.process.kill()
            rank.process.wait()
            for stream in (rank.process.stdin, rank.process.stdout):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                os.kill(rank.guard, signal.SIGCONT)
            assert rank.guard_ends(), f"a guard stays: {self.logs()}"

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("*.log")))


@contextlib.contextmanager
def job(directory: Path, ranks: int, **task: Any) -> Iterator[Job]:
    made = Job(directory, ranks, **task)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def port() -> Iterator[int]:
    """A port that the kernel gives to nobody else meanwhile."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def test_the_log_begins_with_who_watches_whom(tmp_path: Path) -> None:
    with job(tmp_path, 2) as made:
        for rank in made.begin():
            log = (tmp_path / rank.pidfile.name).with_suffix(".log")
            first, *_ = log.read_text().splitlines()
            assert f"monitor_process={rank.guard}" in first
            assert f"target_pid={rank.process.pid}" in first


def test_the_ranks_of_a_node_start_one_program(tmp_path: Path) -> None:
    with job(tmp_path, 4) as made:
        ranks = made.begin()
        assert len({rank.guard for rank in ranks}) == 4
        (program,) = {rank.program for rank in ranks}
        pidfd = open_pidfd(program)
        assert pidfd is not None
        for rank in ranks:
            rank.do("close")
        assert wait_pidfd(pidfd, DEADLINE_S)
        os.close(pidfd)


def test_guards_and_their_program_are_recognised_in_a_list_of_processes(tmp_path: Path) -> None:
    with job(tmp_path, 2) as made:
        ranks = made.begin()
        names = [stat.comm for rank in ranks if (stat := read_stat(rank.guard))]
        assert names == ["guard-rank0", "guard-rank1"]
        program = read_stat(ranks[0].program)
        assert program is not None
        assert program.comm == "guard-template"


def test_each_job_on_a_node_starts_its_own_program(tmp_path: Path) -> None:
    with job(tmp_path / "a", 2) as a, job(tmp_path / "b", 2) as b:
        assert len({rank.program for rank in a.begin() + b.begin()}) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_guards_need_no_program(tmp_path: Path, number: int) -> None:
    with job(tmp_path, 2) as made:
        ranks = made.begin()
        program = ranks[0].program
        os.kill(program, number)
        ranks[1].process.kill()
        assert "has ended" in ranks[0].hear("Stop")["reasons"][0]["text"]
        ranks[0].do("join 1")
        assert ranks[0].hear("Record")["members"] == [0]
        if number == signal.SIGSTOP:
            os.kill(program, signal.SIGCONT)


def test_a_job_of_one_rank(tmp_path: Path) -> None:
    with job(tmp_path, 1) as made:
        (rank,) = made.begin()
        rank.do("fault 0 oops")
        assert rank.hear("Stop")["reasons"][0]["text"] == "oops"
        rank.do("join 1")
        assert rank.hear("Record")["epoch"] == 1
        rank.do("complete 1")
        assert rank.hear("Finished")["epoch"] == 1
        assert rank.pidfile.stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "0.log").stat().st_mode & 0o777 == 0o600
        rank.do("close")
        assert rank.guard_ends()


def test_a_fault_stops_all_and_all_join_again(tmp_path: Path) -> None:
    with job(tmp_path, 3) as made:
        ranks = made.begin()
        ranks[1].do("fault 0 oops")
        for rank in ranks:
            assert rank.hear("Stop")["reasons"][0]["job_rank"] == 1
            rank.do("join 1")
        for rank in ranks:
            assert rank.hear("Record")["members"] == [0, 1, 2]
            rank.do("complete 1")
        for rank in ranks:
            rank.hear("Finished")
            rank.do("close")
        for rank in ranks:
            assert rank.guard_ends()


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_is_killed_is_counted_out(tmp_path: Path, victim: int) -> None:
    with job(tmp_path, 3) as made:
        ranks = made.begin()
        began = time.monotonic()
        ranks[victim].process.kill()
        others = [rank for rank in ranks if rank is not ranks[victim]]
        for rank in others:
            assert "has ended" in rank.hear("Stop")["reasons"][0]["text"]
        assert time.monotonic() - began < LIMITS.soft_timeout  # for that nobody waited
        for rank in others:
            rank.do("join 1")
        members = [r for r in range(3) if r != victim]
        for rank in others:
            assert rank.hear("Record")["members"] == members
            rank.do("complete 1")
        for rank in others:
            rank.hear("Finished")


def test_a_rank_that_is_stopped_is_killed(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(LIMITS, soft_timeout=2.0, hard_timeout=5.0)
    with job(tmp_path, 2, limits=limits) as made:
        first, second = made.begin()
        second.process.send_signal(signal.SIGSTOP)
        assert first.hear("Stop")["reasons"][0]["kind"] == "SOFT_TIMEOUT"
        first.do("join 1")
        assert first.hear("Record")["members"] == [0]
        assert second.process.wait(DEADLINE_S) == -signal.SIGTERM


def test_a_guard_that_is_killed_takes_its_rank_with_it(tmp_path: Path) -> None:
    with job(tmp_path, 3) as made:
        ranks = made.begin()
        os.kill(ranks[2].guard, signal.SIGKILL)
        assert ranks[2].line() == "guard gone"
        for rank in ranks[:2]:
            assert "broken" in rank.hear("Stop")["reasons"][0]["text"]
            rank.do("join 1")
        for rank in ranks[:2]:
            assert rank.hear("Record")["members"] == [0, 1]


def test_without_the_controller_ranks_are_told_so(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(LIMITS, heartbeat_timeout=2.0)
    with job(tmp_path, 2, limits=limits) as made:
        first, second = made.begin()
        os.kill(first.guard, signal.SIGKILL)
        assert first.line() == "guard gone"
        assert "no controller" in second.hear("Dismissed")["text"]


def test_a_controller_that_stands_still_is_noticed(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(LIMITS, heartbeat_timeout=2.0)
    with job(tmp_path, 2, limits=limits) as made:
        first, second = made.begin()
        os.kill(first.guard, signal.SIGSTOP)
        assert "no controller" in second.hear("Dismissed")["text"]


def test_guards_outlive_signals_that_are_meant_for_ranks(tmp_path: Path) -> None:
    with job(tmp_path, 2) as made:
        ranks = made.begin()
        for rank in ranks:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(rank.guard, number)
        ranks[0].do("fault 0 oops")
        for rank in ranks:
            rank.hear("Stop")


def test_two_jobs_at_once(tmp_path: Path) -> None:
    with job(tmp_path / "a", 2) as a, job(tmp_path / "b", 2) as b:
        of_a, of_b = a.begin(), b.begin()
        of_a[0].do("fault 0 oops")
        for rank in of_a:
            rank.hear("Stop")
        of_b[1].do("fault 0 other")
        for rank in of_b:
            assert rank.hear("Stop")["reasons"][0]["text"] == "other"


def test_a_wrong_token_is_refused(tmp_path: Path, port: int) -> None:
    kwargs = {"host_name": address_of_this_machine(), "port": port}
    # The first guard waits so long for the second one, after its rank has ended.
    limits = msgspec.structs.replace(LIMITS, barrier_timeout=5.0)
    with job(tmp_path, 2, limits=limits, store_file="", store_kwargs=kwargs) as made:
        own = {"LOCAL_WORLD_SIZE": "1"}
        first = made._start(0, {**own, "UNDAUNTED_TOKEN": "the first of two tokens"})
        second = made._start(1, {**own, "UNDAUNTED_TOKEN": "the second of two tokens"})
        made.ranks = [first, second]
        assert first.line() == "ready"
        refused = second.line()
        assert refused.startswith("refused rank 1: its guard cannot serve: the controller of")
        assert "has another token" in refused


def test_a_second_job_at_the_same_port_ends_and_does_not_disturb(tmp_path: Path, port: int) -> None:
    kwargs = {"host_name": "localhost", "port": port}
    local = {"store_file": "", "store_kwargs": kwargs}
    with (
        job(tmp_path / "first", 2, **local) as first,
        job(tmp_path / "second", 3, **local) as other,
    ):
        ranks = first.begin()
        host, *others = other.start()
        line = host.line()
        assert line.startswith("refused ")
        assert "another job or program listens there; give this job another MASTER_PORT" in line
        for rank in others:
            assert rank.line() == "ready"
            rank.do("enter", "join 0")
            assert "give each job another MASTER_PORT" in rank.hear("End")["text"]
        ranks[0].do("complete 0")
        ranks[1].do("complete 0")
        for rank in ranks:
            assert rank.hear("Finished")["epoch"] == 0


def test_silent_connections_keep_nobody_out(tmp_path: Path, port: int) -> None:
    address = address_of_this_machine()
    kwargs = {"host_name": address, "port": port}
    environ = {"LOCAL_WORLD_SIZE": "1", "UNDAUNTED_TOKEN": "a token of twenty characters"}
    with job(tmp_path, 2, store_file="", store_kwargs=kwargs) as made:
        first = made._start(0, environ)
        made.ranks = [first]
        assert first.line() == "ready"
        with contextlib.ExitStack() as silent:
            for _ in range(1000):
                silent.enter_context(socket.create_connection((address, port)))
            made.ranks.append(made._start(1, environ))
            assert made.ranks[1].line() == "ready"
            for rank in made.ranks:
                rank.do("enter", "join 0")
            for rank in made.ranks:
                rank.hear("Record")


def test_an_error_of_the_guard_itself_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undaunted.inprocess.guard.service.ServedRank.received", lambda *_: 1 / 0)
    ours, theirs = socket.socketpair()
    begin = startup.Begin(job_rank=0, world_size=1, hosts=True)
    startup.send(theirs, enter())
    with theirs, pytest.raises(asyncio.CancelledError):
        asyncio.run(program._Guard(begin, ours).run())


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with job(tmp_path, 1) as made:
        made.directory = tmp_path / "missing"
        (rank,) = made.start()
        line = rank.line()
        path = str(tmp_path / "missing" / "0.log")
        assert f"monitor_process_logfile={path!r} cannot be written: No such file" in line
        assert "give a file in a directory that exists" in line
