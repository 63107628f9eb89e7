"""The program around the core: with fake commands of Slurm and a real service over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.services.slurm.fakes import Program, Service, Slurm, row
from undaunted.base.http_client import exchange
from undaunted.services.slurm import core, monitor
from undaunted.services.slurm.monitor import Config, Files, Shell, read_reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

DEADLINE_S = 60.0
TOKEN = "0123456789abcdef"


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.close()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", made.path)
    return made


class Running(Shell):
    """A monitor on this loop that can be waited for."""

    def __init__(self, config: Config, files: Files) -> None:
        self.lines: list[str] = []
        super().__init__(config, files, self.lines.append)
        self._done = asyncio.Event()

    async def do(self, command: core.Command) -> None:
        await super().do(command)
        self._done.set()

    async def list(self) -> None:
        """Have the queue looked at; come back when there is nothing more to do."""
        calls = self._calls()
        self.list_soon()
        await self.until(lambda: self._calls() > calls)
        await self.until(lambda: isinstance(self.monitor.next(self._now()), core.Wait))

    def _calls(self) -> int:
        counts = self.monitor.counts
        return counts["squeue_calls"] + counts["squeue_failures"]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something was done that makes the condition true."""
        while not condition():
            self._done.clear()
            await asyncio.wait_for(self._done.wait(), DEADLINE_S)


@contextlib.asynccontextmanager
async def following(config: Config) -> AsyncIterator[Running]:
    files = Files(config.directory)
    running = Running(config, files)
    task = asyncio.create_task(running.follow())
    try:
        yield running
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        files.close()


def kept(directory: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_bytes()) for path in (directory / "jobs").iterdir()}


def test_a_job_is_followed_to_its_result(
    slurm: Slurm, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "FIRST_WAIT_S", 0.01)
    config = Config(service=service.url, directory=tmp_path / "state", names=re.compile("tr"))

    async def follow() -> None:
        async with following(config) as running:
            name, errors = "/logs/%j-%x.out", "/logs/%j.err"
            slurm.show(
                row("17", "RUNNING", name, StdErr=errors), row("18", "RUNNING", "/x", Name="other")
            )
            await running.list()
            slurm.show(row("17", "FAILED", name, StdErr=errors))
            await running.list()
            await running.until(lambda: running.lines)
            [line] = running.lines
            assert line.startswith("job 17 (train) FAILED, advice RESTART: ")
            assert line.endswith("/logs/17-train.out: rank 3 ran out of memory")

    asyncio.run(follow())
    assert [post.pop("analysis_intent") for post in service.posts] == ["track_only", "terminal"]
    about = {"log_path": "/logs/17-train.out", "user": "alice", "job_id": "17", "cycle_id": 0}
    about |= {"error_path": "/logs/17.err"}
    states = [post.pop("job_state") for post in service.posts]
    assert (service.posts, states) == ([about, about], ["RUNNING", "FAILED"])
    [job] = kept(config.directory).values()
    assert (job["id"], job["state"], job["stage"]) == ("17", "FAILED", "closed")
    assert job["answer"]["result"]["module"] == "log_analyzer"
    assert (config.directory / "jobs").stat().st_mode & 0o777 == 0o700
    assert (config.directory / "jobs" / "17.json").stat().st_mode & 0o777 == 0o600


def test_a_look_that_is_wanted_while_one_is_going_on_comes_after_it(
    slurm: Slurm, tmp_path: Path
) -> None:
    config, files = Config(service="http://127.0.0.1:1", directory=tmp_path), Files(tmp_path)

    async def look() -> None:
        shell = Shell(config, files, print)
        await shell.do(core.ListJobs())
        assert isinstance(shell.monitor.next(shell._now()), core.Wait)
        looking = asyncio.create_task(shell.do(core.ListJobs()))
        await asyncio.sleep(0)  # it has begun
        shell.list_soon()
        await looking
        assert isinstance(shell.monitor.next(shell._now()), core.ListJobs)

    asyncio.run(look())
    files.close()


def test_jobs_that_have_left_the_queue_are_looked_up(
    slurm: Slurm, service: Service, tmp_path: Path
) -> None:
    config = Config(service=service.url, directory=tmp_path / "state")

    async def follow() -> None:
        async with following(config) as running:
            slurm.show(*(row(str(number), "RUNNING", f"/logs/{number}.out") for number in (1, 2)))
            await running.list()
            slurm.show()
            slurm.account("1|OUT_OF_MEMORY\n")
            await running.list()
            await running.list()
            states = {id_: job.state for id_, job in running.monitor.jobs.items()}
            assert states == {"1": "OUT_OF_MEMORY", "2": "FINISHED"}
            slurm.fault("fail")
            await running.list()
            assert "Unable to contact slurm controller" in running.lines[-1]

    asyncio.run(follow())
    assert service.closings() == {"1": 1, "2": 1}


def test_token_is_shown_and_its_lack_is_said(
    slurm: Slurm, service: Service, tmp_path: Path
) -> None:
    service.token = TOKEN
    slurm.show(row("17", "RUNNING", "/logs/17.out"))

    async def follow(config: Config) -> list[str]:
        async with following(config) as running:
            await running.list()
            return running.lines

    without = Config(service=service.url, directory=tmp_path / "a")
    (line,) = asyncio.run(follow(without))
    assert line.startswith("the service: 401 no (--attrsvc-token-file")
    shown = Config(service=service.url, directory=tmp_path / "b", service_token=TOKEN.encode())
    assert asyncio.run(follow(shown)) == []
    assert len(service.posts) == 1


def test_status_pages(slurm: Slurm, service: Service, tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = Config(
        service=service.url, directory=tmp_path / "s", listener=listener, token=TOKEN.encode()
    )

    def ask(path: str, token: str = TOKEN) -> tuple[int, Any]:
        answer = exchange(url, "GET", path, limit_s=DEADLINE_S, token=token.encode())
        return answer.status, json.loads(answer.body) if token == TOKEN else answer.body

    async def follow() -> None:
        async with following(config) as running:
            slurm.show(row("17", "RUNNING", "/logs/17.out"))
            await running.list()
            assert await asyncio.to_thread(ask, "/healthz") == (200, {"status": "ok", "issues": []})
            assert (await asyncio.to_thread(ask, "/healthz", "wrong"))[0] == 401
            status, stats = await asyncio.to_thread(ask, "/stats")
            assert (status, stats["jobs"], stats["states"]) == (200, 1, {"RUNNING": 1})
            status, jobs = await asyncio.to_thread(ask, "/jobs?limit=3")
            assert (status, jobs["count"]) == (200, 1)
            [job] = jobs["jobs"]
            assert (job["job_id"], job["stdout_path"]) == ("17", "/logs/17.out")
            assert (await asyncio.to_thread(ask, "/etc/passwd"))[0] == 404
            slurm.fault("garbage")
            await running.list()
            _, health = await asyncio.to_thread(ask, "/healthz")
            assert health["status"] == "degraded"
            assert "this is no list of jobs" in health["issues"][0]

    asyncio.run(follow())


def test_files_that_hold_no_job_are_said_and_left(tmp_path: Path) -> None:
    files = Files(tmp_path)
    job = core.Job(
        **core.Listed("17", 0, "t", "FAILED", "u", "p", "/l", "n")._asdict(),
        stage=core.Stage.ASKED,
        since=1.0,
    )
    files.write(job, {"a": 1})
    folder = tmp_path / "jobs"
    (folder / "18.json").write_bytes((folder / "17.json").read_bytes())
    (folder / "19.json").write_text('{"id": "19"')
    (folder / "20.new").write_text("half")
    (folder / "21.json").mkdir()
    os.mkfifo(folder / "22.json")
    (folder / "23.json").symlink_to("/dev/zero")
    (folder / "notes").write_text("ask alice")
    jobs, others = files.read()
    assert jobs == [job]
    expected = ("18.json", "19.json", "21.json", "22.json", "23.json", "notes")
    assert sorted(others) == [str(folder / name) for name in expected]
    assert not (folder / "20.new").exists()
    assert (folder / "notes").exists()
    files.remove("17")
    files.remove("17")
    assert files.read()[0] == []
    files.close()


def test_one_monitor_for_a_directory(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with pytest.raises(BlockingIOError, match="another monitor uses it"):
        Files(tmp_path)
    files.close()
    Files(tmp_path).close()


def test_a_disk_that_cannot_be_written_keeps_requests_back(
    slurm: Slurm, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Files, "write", full)
    slurm.show(row("17", "RUNNING", "/logs/17.out"))

    async def follow() -> None:
        async with following(Config(service=service.url, directory=tmp_path / "s")) as running:
            await running.list()
            assert running.lines == [f"{tmp_path / 's'}: No space left on device"]

    asyncio.run(follow())
    assert not service.posts


@pytest.mark.parametrize(
    ("status", "content", "retry", "expected"),
    [
        (200, b'{"a": 1}', "", core.Reply(200, {"a": 1})),
        (200, b"[]", "", core.Reply(core.NO_ANSWER, {}, "the answer is no JSON object: b'[]'")),
        (
            200,
            b"\xff",
            "",
            core.Reply(core.NO_ANSWER, {}, "the answer is no JSON object: b'\\xff'"),
        ),
        (429, b"slowly", "17", core.Reply(429, {}, "the service: 429 slowly", 17.0)),
        (429, b"", "Tue, 1 Jan", core.Reply(429, {}, "the service: 429 ", 0.0)),
        (
            403,
            b'{"error_code": "outside_root", "message": "no"}',
            "",
            core.Reply(403, {"error_code": "outside_root", "message": "no"}, "the service: 403 no"),
        ),
    ],
)
def test_answers_are_understood(
    status: int, content: bytes, retry: str, expected: core.Reply
) -> None:
    assert read_reply(status, content, retry) == expected


def test_nobody_there_and_no_answer(service: Service) -> None:
    free = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{free.getsockname()[1]}"
    free.close()
    away = Config(service=url, directory=None)  # type: ignore[arg-type]
    assert monitor.request(away, "GET", "/logs", None).status == core.UNREACHABLE
    service.failures = [-1]
    mute = Config(service=service.url, directory=None)  # type: ignore[arg-type]
    reply = monitor.request(mute, "POST", "/logs", {"log_path": "/x"})
    assert reply.status in {core.NO_ANSWER, core.UNREACHABLE}


# --- the program ----------------------------------------------------------------------------------


JOBS = 1000
HALF = JOBS // 2


def rows(state: str, numbers: range) -> list[tuple[str, ...]]:
    return [row(f"{number}", state, "/logs/%j.out") for number in numbers]


def intents(service: Service, intent: str) -> list[str]:
    with service.lock:
        return [post["job_id"] for post in service.posts if post["analysis_intent"] == intent]


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_a_thousand_jobs_come_and_go_each_is_told_once(
    slurm: Slurm, service: Service, tmp_path: Path
) -> None:
    every = [f"{number}" for number in range(JOBS)]
    slurm.show(*rows("RUNNING", range(JOBS)))
    program = Program(slurm.environment, service, tmp_path / "state")
    try:
        service.wait_for(every, "track_only")
        # Half of them are shown at their end, the others are gone at once.
        slurm.account("".join(f"{number}|TIMEOUT\n" for number in range(HALF, JOBS)))
        slurm.show(*rows("FAILED", range(HALF)))
        program.wait_for("] job ", JOBS)
    finally:
        code = program.end(signal.SIGTERM)
    assert code == 0
    assert sorted(intents(service, "track_only")) == sorted(every)
    assert sorted(intents(service, "terminal")) == sorted(every)
    jobs = kept(tmp_path / "state")
    assert {job["stage"] for job in jobs.values()} == {"closed"}
    assert {job["outcome"] for job in jobs.values()} == {"result"}
    states = {id_: job["state"] for id_, job in jobs.items()}
    assert states == {
        id_: "FAILED" if number < HALF else "TIMEOUT" for number, id_ in enumerate(every)
    }
    assert program.lines[-1].endswith("ended; jobs are followed further when it is started again\n")


@pytest.mark.e2e
def test_a_signal_ends_the_period(slurm: Slurm, service: Service, tmp_path: Path) -> None:
    program = Program(slurm.environment, service, tmp_path / "state", interval="1h")
    try:
        program.wait_for("every 1 h")
        for number, name in ((signal.SIGUSR1, "17"), (signal.SIGHUP, "18")):
            slurm.show(row(name, "RUNNING", "/logs/%j.out"))
            program.process.send_signal(number)
            service.wait_for([name], "track_only")
    finally:
        assert program.end(signal.SIGTERM) == 0


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_a_monitor_that_is_killed_goes_on_where_it_was(
    slurm: Slurm, service: Service, tmp_path: Path
) -> None:
    every = [f"{number}" for number in range(100)]
    slurm.show(*rows("RUNNING", range(100)))
    kills = 0
    for intent, state in (("track_only", "RUNNING"), ("terminal", "FAILED")):
        slurm.show(*rows(state, range(100)))
        for told in (30, 60, 90, 100):
            program = Program(slurm.environment, service, tmp_path / "state")
            try:
                service.wait_for(every[:told], intent)
            finally:
                program.end(signal.SIGKILL)
            kills += 1
    program = Program(slurm.environment, service, tmp_path / "state")
    try:
        with program.said:
            assert program.said.wait_for(
                lambda: all(job["stage"] == "closed" for job in whole(tmp_path / "state")),
                DEADLINE_S,
            )
    finally:
        program.end(signal.SIGINT)
    # Only what was on its way when the monitor was killed is said a second time, in the same words.
    again = len(service.posts) - 2 * len(every)
    assert 0 <= again <= kills
    assert set(service.closings()) == set(every)
    assert len({json.dumps(post) for post in service.posts}) == 2 * len(every)


def whole(directory: Path) -> list[Any]:
    """All files that are whole: a monitor writes them meanwhile."""
    found = []
    for path in (directory / "jobs").glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            found.append(json.loads(path.read_bytes()))
    return found
