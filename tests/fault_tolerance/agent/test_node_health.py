"""The checks run in a program, which is waited for only so long."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import to_builtins

from undaunted.base import process
from undaunted.fault_tolerance.agent import node_health
from undaunted.fault_tolerance.agent.node_health import NodeHealth
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.run_config import RunConfig
from undaunted.health import answers
from undaunted.health.check import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from undaunted.journal.events import NodeChecked
    from undaunted.journal.writer import JournalWriter

DEADLINE_S = 60
SPEAK = """
import json, signal, socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
said = sock.makefile("rw")
said.readline()
def tell(request, **answer):
    said.write(json.dumps({"request": request, **answer}) + chr(10))
    said.flush()
CHECK = {"check": 0, "name": "storage", "subject": "/data", "deadline_s": 0.05, "periodic": True}
for line in said:
    number = json.loads(line)["request"]
"""


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    process.end_descendants(10)


class Told:
    """Stands in for the journal, and for what shows lines."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []

    def record(self, event: NodeChecked) -> None:
        self.events.append(to_builtins(event))

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def told() -> Told:
    return Told()


def health(
    root: Path, told: Told, strike_file: str = "", socket: str = "", **settings: Any
) -> NodeHealth:
    config = RunConfig(
        run_id="x", node="here", nproc_per_node=1, max_restarts=1, kind="program", target="sleep",
        args=[], cwd="/", run_dir="/", log_dir="/", stdout=[0], stderr=[0],
        health_checks=Settings(root=str(root), **settings),
        node_health_socket=socket, strike_file=strike_file, strike_limit=(2, 3600.0),
        ft=FaultToleranceConfig(node_health_check_interval=0.01),
    )  # fmt: skip
    return NodeHealth(config, os.environ, cast("JournalWriter", told), told.say)


def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """Replaces the program; ``body`` says what it does about request ``number``."""
    path = tmp_path / "program.py"
    path.write_text(SPEAK + "".join(f"    {line}\n" for line in body.splitlines()))
    monkeypatch.setattr(node_health, "PROGRAM", str(path))


def examine(one: NodeHealth) -> str:
    async def main() -> str:
        try:
            return await asyncio.wait_for(one.examine(), DEADLINE_S)
        finally:
            one.close()

    return asyncio.run(main())


def test_nothing_to_check_no_program(tmp_path: Path, told: Told) -> None:
    before = process.children()
    one = health(tmp_path, told)
    assert not one.wanted
    assert one.longest_s == 0
    assert examine(one) == ""
    assert told.events == []
    assert process.children() <= before


@pytest.mark.parametrize("entry", ["", ".", "lib", "{here}", "{link}"])
def test_nothing_is_imported_from_the_directory_of_the_job(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    here, link, ran = tmp_path / "here", tmp_path / "link", tmp_path / "ran"
    for folder in (here, here / "lib"):
        folder.mkdir()
        (folder / "grpc.py").write_text(f"open({str(ran)!r}, 'w')\nraise ImportError('not this')")
    link.symlink_to(here)
    (tmp_path / "socket").touch()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [entry.format(here=here, link=link), *sys.path])
    assert examine(health(tmp_path, told, socket=str(tmp_path / "socket"))) == ""
    (event,) = told.events
    assert "health service" in str(event)
    assert not ran.exists()


def test_what_is_found_is_told(tmp_path: Path, told: Told) -> None:
    paths = (str(tmp_path), str(tmp_path / "none"))
    one = health(tmp_path, told, storage_paths=paths)
    assert one.longest_s == 80
    assert examine(one) == f"the storage check of {paths[1]} failed: No such file or directory"
    (event,) = told.events
    assert event["duration_ns"] > 0
    assert [check.get("failed", False) for check in event["checks"]] == [False, True]
    assert event["checks"][1]["duration_ns"] > 0
    assert event["problem"]


def test_a_node_that_fails_again_and_again_is_refused(tmp_path: Path, told: Told) -> None:
    path = str(tmp_path / "strikes")
    missing = (str(tmp_path / "none"),)
    for _ in range(2):
        assert "No such file" in examine(health(tmp_path, told, path, storage_paths=missing))
    refused = examine(health(tmp_path, told, path))
    assert "2 strikes" in refused
    assert f"remove {path}" in refused
    (tmp_path / "strikes").unlink()
    assert examine(health(tmp_path, told, path)) == ""


def test_strikes_that_cannot_be_read_or_written_are_said(tmp_path: Path, told: Told) -> None:
    missing = (str(tmp_path / "none"),)
    problem = examine(health(tmp_path, told, str(tmp_path), storage_paths=missing))
    assert "No such file" in problem
    for words in ("strikes against this node are not known", "this strike is not remembered"):
        (line,) = [each for each in told.lines if each.startswith(words)]
        assert str(tmp_path) in line


def test_nobody_waits_for_a_strike_file_that_another_launcher_has_locked(
    tmp_path: Path, told: Told
) -> None:
    """The event loop goes on meanwhile: with it signals, ranks and limits."""
    path, missing = tmp_path / "strikes", (str(tmp_path / "none"),)
    path.touch()
    one = health(tmp_path, told, str(path), storage_paths=missing)
    turns: list[int] = []

    async def main() -> str:
        loop = asyncio.get_running_loop()

        def turn() -> None:
            turns.extend([1] if told.events and not told.lines else [])
            loop.call_later(0.01, turn)

        turn()
        try:
            return await asyncio.wait_for(one.examine(), DEADLINE_S)
        finally:
            one.close()

    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        asyncio.run(main())
    assert any("is not remembered" in line for line in told.lines)
    assert turns, "while the strike waited"


def test_a_strike_file_that_holds_something_else_is_said_once(tmp_path: Path, told: Told) -> None:
    (tmp_path / "strikes").write_bytes(b"\x00\xff\nsomething else\n")
    one = health(tmp_path, told, str(tmp_path / "strikes"))
    assert examine(one) == ""
    (line,) = told.lines
    assert "2 lines" in line
    assert "--strike-file" in line


def test_a_strike_file_in_a_missing_directory_is_said(tmp_path: Path, told: Told) -> None:
    assert examine(health(tmp_path, told, str(tmp_path / "none" / "strikes"))) == ""
    (line,) = told.lines
    assert f"no directory {tmp_path / 'none'}" in line


def test_what_a_program_prints_cannot_move_the_cursor(tmp_path: Path, told: Told) -> None:
    command = ("/bin/sh", "-c", r"printf 'bad \000\033[2J fan\n'; exit 3")
    problem = examine(health(tmp_path, told, commands=(command,)))
    assert problem.isprintable()
    assert r"bad \x00\x1b[2J fan" in problem


def test_without_repeated_checks_the_program_ends(tmp_path: Path, told: Told) -> None:
    async def main() -> None:
        one = health(tmp_path, told, storage_paths=(str(tmp_path),))
        assert await asyncio.wait_for(one.examine(), DEADLINE_S) == ""
        await ended(one)
        one.begin_watch(2, lambda _: None)  # nothing to repeat
        one.close()

    asyncio.run(main())


async def ended(one: NodeHealth) -> None:
    """Wait until no program is left."""
    loop = asyncio.get_running_loop()
    while pids := one.pids():
        for pid in pids:
            if (pidfd := process.open_pidfd(pid)) is not None:
                done = asyncio.Event()
                loop.add_reader(pidfd, done.set)
                await asyncio.wait_for(done.wait(), DEADLINE_S)
                loop.remove_reader(pidfd)
                os.close(pidfd)


def test_a_check_that_hangs_is_named_and_the_program_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: Told
) -> None:
    program(monkeypatch, tmp_path, "tell(number, checks=[CHECK])\nsignal.pause()")
    monkeypatch.setattr(node_health, "_LATE_S", 0.01)

    async def main() -> None:
        one = health(tmp_path, told, storage_paths=("/data",))
        problem = await asyncio.wait_for(one.examine(), DEADLINE_S)
        assert problem == "the storage check of /data did not answer within 0.05 s"
        (late,) = told.lines
        assert late.startswith("still waiting for the ")
        assert told.events[-1]["problem"] == problem
        await ended(one)
        one.close()

    asyncio.run(main())


def test_a_program_that_is_stopped_or_does_not_begin_is_no_fault_of_the_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: Told
) -> None:
    monkeypatch.setattr(answers, "START_S", 0.05)
    program(monkeypatch, tmp_path, "import os; os.kill(os.getpid(), signal.SIGSTOP)")
    assert examine(health(tmp_path, told, storage_paths=("/data",))) == ""
    assert told.lines == ["the health checks could not be made: they did not begin within 0.05 s"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sys.exit()", "the program that makes them ended"),
        ("said.write('garbage' + chr(10)); said.flush()", "no answer of the checks"),
        ("said.write('x' * (1 << 21)); said.flush()", "says too much"),
    ],
)
def test_a_program_that_fails_is_no_fault_of_the_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: Told, body: str, why: str
) -> None:
    program(monkeypatch, tmp_path, body)
    assert examine(health(tmp_path, told, storage_paths=("/data",))) == ""
    (line,) = told.lines
    assert why in line


def test_a_program_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: Told
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "none"))
    assert examine(health(tmp_path, told, storage_paths=("/data",))) == ""
    assert "No such file" in told.lines[0]


def counter(root: Path, value: int) -> Path:
    path = root / "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")
    return path


def test_cheap_checks_are_repeated_in_a_round_by_the_same_program(
    tmp_path: Path, told: Told
) -> None:
    path = counter(tmp_path, 0)

    async def main() -> None:
        one = health(tmp_path, told, nic_link=False, nic_monitor=True)
        assert await asyncio.wait_for(one.examine(), DEADLINE_S) == ""
        (pid,) = one.pids()
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        one.begin_watch(2, found.set_result)
        path.write_text("1\n")
        problem = await asyncio.wait_for(found, DEADLINE_S)
        assert "mlx5_0 port 1 has lost its link (link_downed 0 -> 1)" in problem
        assert one.pids() == {pid}
        assert [bool(event.get("problem")) for event in told.events] == [False, True]
        assert await asyncio.wait_for(one.examine(), DEADLINE_S) == problem
        one.close()

    asyncio.run(main())


def test_a_round_that_ends_ends_the_repetition(tmp_path: Path, told: Told) -> None:
    counter(tmp_path, 0)

    async def main() -> None:
        one = health(tmp_path, told, nic_link=False, nic_monitor=True)
        await asyncio.wait_for(one.examine(), DEADLINE_S)
        for _ in range(3):  # at once, wherever it is
            one.begin_watch(2, lambda _: None)
            await asyncio.sleep(0)
            one.end_watch()
            assert await asyncio.wait_for(one.examine(), DEADLINE_S) == ""
        one.close()

    asyncio.run(main())
    assert len(told.events) == 4


def test_what_was_seen_outlives_the_program(tmp_path: Path, told: Told) -> None:
    path = counter(tmp_path, 5)

    async def main() -> str:
        one = health(tmp_path, told, nic_link=False, nic_monitor=True)
        await asyncio.wait_for(one.examine(), DEADLINE_S)
        (pid,) = one.pids()
        os.kill(pid, signal.SIGKILL)
        await ended(one)
        path.write_text("6\n")
        problem = await asyncio.wait_for(one.examine(), DEADLINE_S)
        one.close()
        return problem

    assert "link_downed 5 -> 6" in asyncio.run(main())


def test_what_could_not_be_checked_is_said_once(tmp_path: Path, told: Told) -> None:
    async def main() -> None:
        one = health(tmp_path, told, nic_monitor=True)
        for _ in range(2):
            await asyncio.wait_for(one.examine(), DEADLINE_S)
        one.close()

    asyncio.run(main())
    assert told.lines == ["the NIC monitor check could not tell: no InfiniBand device"]
    assert len(told.events) == 2
