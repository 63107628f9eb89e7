"""Programs that are run, that run beside this process, and that are asked."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.base import child, process
from undaunted.base.child import Companion, Helper, Program, ProgramEnd, Programs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[[Program], ProgramEnd]

LIMIT_S = 60.0
SLEEPS = "exec sleep 600"


def shell(script: str, limit_s: float = LIMIT_S) -> Program:
    return Program(["/bin/sh", "-c", script], limit_s)


def python(code: str, limit_s: float = LIMIT_S) -> Program:
    return Program([sys.executable, "-I", "-S", "-c", code], limit_s)


def refuse(*_: object) -> int:
    raise PermissionError("not in this container")


@pytest.fixture(params=["run", "run_async", "several", "without pidfds"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """All ways to run a program: one rule."""
    if request.param == "without pidfds":
        monkeypatch.setattr(process, "open_pidfd", refuse)
    if request.param == "run_async":
        return lambda program: asyncio.run(child.run_async(program))
    return Programs().run if request.param == "several" else child.run


def test_what_it_prints_and_how_it_ends(run: Run) -> None:
    assert run(shell("echo yes; echo no >&2; exit 3")) == ProgramEnd(3, b"yes\n", b"no\n")
    assert run(shell("kill -SEGV $$")) == ProgramEnd(-signal.SIGSEGV, b"", b"")
    both = shell("echo yes; echo no >&2")._replace(merged=True)
    assert run(both) == ProgramEnd(0, b"yes\nno\n", b"")


def test_it_gets_what_it_is_given_and_nothing_else(run: Run) -> None:
    given = os.urandom(1 << 22)  # more than pipes hold: it is read while it is written
    asked = Program(["cat"], LIMIT_S, given=given, most=1 << 23)
    assert run(asked) == ProgramEnd(0, given, b"")
    assert run(asked._replace(given=b"")) == ProgramEnd(0, b"", b"")
    assert run(shell("exit 4")._replace(given=given)).code == 4


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_what_is_beyond_the_bound_is_read_and_dropped(run: Run, stream: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = f"import sys\nfor _ in range(100): sys.{stream}.write('x' * 1_000_000)"
    end = run(python(code + f"\nsys.{stream}.write('end')"))
    assert (end.code, end.cut) == (0, stream == "stdout")
    assert sorted([len(end.output), len(end.errors)]) == [0, 1 << 20]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_the_last_part_can_be_kept(run: Run) -> None:
    code = "print('x' * 1_000_000 + 'the end', end='')"
    assert run(python(code)._replace(most=7, tail=True)) == ProgramEnd(0, b"the end", b"", cut=True)


def test_more_than_is_of_use_ends_it(run: Run) -> None:
    end = run(shell("yes")._replace(most=1 << 16, whole=True))
    assert (end.code, end.cut, len(end.output)) == (None, True, 1 << 16)


def test_at_its_deadline_its_whole_group_is_killed(run: Run) -> None:
    end = run(shell(f"sleep 600 & echo $!; {SLEEPS}", 1.0))
    assert end.code is None
    assert process.is_exiting(int(end.output))


def test_silence_ends_it(run: Run) -> None:
    end = run(shell(f"echo yes; {SLEEPS}")._replace(silence_s=1.0))
    assert end == ProgramEnd(None, b"yes\n", b"")


def test_one_that_it_leaves_behind_is_not_waited_for(run: Run) -> None:
    end = run(shell("sleep 600 & echo $!"))
    assert end.code == 0
    os.kill(int(end.output), signal.SIGKILL)


def test_bounds_of_the_process(run: Run) -> None:
    large = python("import sys; sys.stdin.read(); bytearray(1 << 31)")
    assert run(large._replace(memory=1 << 30, given=b"begin")).code == 1
    limit = python("import resource; print(*resource.getrlimit(resource.RLIMIT_AS))")
    assert run(limit._replace(memory=1 << 30)).output.split() == [b"1073741824"] * 2
    stopped = shell("kill -TERM $$; echo on")
    assert run(stopped).code == -signal.SIGTERM
    assert run(stopped._replace(blocked=(signal.SIGTERM,))).output == b"on\n"
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_no_such_program(run: Run) -> None:
    with pytest.raises(FileNotFoundError):
        run(Program(["/no/such/program"], LIMIT_S))


def test_close_ends_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    asked = shell(f"echo yes > {begun}; {SLEEPS}")
    ends = []
    with Programs() as programs:
        thread = threading.Thread(target=lambda: ends.append(programs.run(asked)))
        thread.start()
        assert begun.read_text() == "yes\n"
    thread.join(LIMIT_S)
    assert ends == [ProgramEnd(-signal.SIGKILL, b"", b"")]
    with pytest.raises(InterruptedError):
        programs.run(asked)


@on_loop
async def test_who_gives_up_leaves_no_program(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    task = asyncio.create_task(child.run_async(shell(f"echo $$ > {begun}; {SLEEPS}")))
    pid = int(await asyncio.to_thread(begun.read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# --- beside this process --------------------------------------------------------------------------


@on_loop
async def test_a_companion_that_ends() -> None:
    over = asyncio.Event()
    companion = Companion(["/bin/sh", "-c", "exit 3"], os.environ, over=over.set)
    await asyncio.wait_for(over.wait(), LIMIT_S)
    assert companion.code == 3
    assert companion.processes() == set()
    assert not companion.is_alive()
    assert companion.reap()
    companion.kill()  # nothing is left to be ended
    companion.release()


@on_loop
async def test_a_companion_that_is_ended() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as said:
        words = ["/bin/sh", "-c", f"sleep 600 & echo $! > /proc/self/fd/{writer}; {SLEEPS}"]
        companion = Companion(words, os.environ, [writer])
        os.close(writer)
        other = int(await asyncio.to_thread(said.readline))
        assert companion.processes() == {(companion.pid, process.start_time(companion.pid))}
        assert not await companion.ended(0.0)
        assert not companion.reap()
        companion.kill()
        assert await companion.ended(LIMIT_S)
        assert companion.code == -signal.SIGKILL
        await asyncio.to_thread(said.read)  # to its end: the other one has ended
        assert process.is_exiting(other)


@on_loop
async def test_another_may_wait_for_it() -> None:
    companion = Companion(["/bin/true"], os.environ)
    os.waitpid(companion.pid, 0)
    assert await companion.ended(LIMIT_S)
    assert companion.code is None


ASKED = """
import os, socket, sys
with socket.socket(fileno=int(sys.argv[1])) as sock, sock.makefile("rwb", 0) as stream:
    for line in stream:
        if line == b"long\\n":
            stream.write(b"x" * (2 << 20))
        elif line == b"end\\n":
            break
        else:
            stream.write(os.environ["GREETING"].encode() + line)
"""


def helper() -> Helper:
    return Helper([sys.executable, "-I", "-S", "-c", ASKED], {"GREETING": "hello "}, "it")


@on_loop
async def test_a_helper_is_asked() -> None:
    asked = helper()
    asked.send(b"you\nall\n")
    assert [await asked.line(), await asked.line()] == [b"hello you", b"hello all"]
    assert asked.lines() == []
    asked.send(b"once\nmore\n")
    lines: list[bytes] = []
    while len(lines) < 2:
        await asked.news(LIMIT_S)
        lines += asked.lines()
    assert lines == [b"hello once", b"hello more"]
    asked.kill()
    assert await asked.ended(LIMIT_S)
    assert asked.reap()


@pytest.mark.parametrize(("word", "error"), [("end", ConnectionError), ("long", OSError)])
@on_loop
async def test_a_helper_that_is_of_no_use(word: str, error: type[OSError]) -> None:
    asked = helper()
    asked.send(f"{word}\n".encode())
    with pytest.raises(error, match="it "):
        await asyncio.wait_for(asked.line(), LIMIT_S)
    with pytest.raises(error):
        asked.lines()
    asked.kill()
    asked.release()


@on_loop
async def test_a_helper_that_does_not_read() -> None:
    asked = Helper(["/bin/sh", "-c", SLEEPS], os.environ, "it")
    with pytest.raises(OSError, match="it does not read"):
        asked.send(b"x" * (1 << 24))
    waiting = asyncio.create_task(asked.line())
    await asyncio.sleep(0)
    asked.kill()
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(waiting, LIMIT_S)
    assert await asked.ended(LIMIT_S)
    asked.release()


@on_loop
async def test_one_that_cannot_be_started_leaves_nothing() -> None:
    with pytest.raises(FileNotFoundError):
        Helper(["/no/such/program"], {}, "it")
