"""Programs that are started by us and may hang or crash: one rule for all of them.

`run`, `run_async` and `Programs` wait for a `Program` to end. It leads a session of its own. Its
pipes are read at the same time, however much comes, and a bounded part is kept. It is over when it
has ended and its pipes have: a process that it leaves behind may hold one open, which is waited for
a moment only. At its deadline its process group is killed; what the kernel holds even then is left.

A `Companion` runs beside this process until it is told to end. A `Helper` is one that is asked line
by line.

Programs of ours that have the standard library alone import this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

from undaunted.base import process
from undaunted.base.deadline import readable, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import Self

_KILL_S = 2.0  # for a killed one to end: a process inside of a driver may not even die
_LEFT_OPEN_S = 1.0  # for the end of the pipes, once the program has ended
_TICK_S = 0.05  # between looks where there are no pidfds: before Linux 5.3, in some containers
_CHUNK = 1 << 16
# Limits itself before it becomes the program, which so has its limit from the first instruction on.
_LIMIT = (
    "import os, resource, sys; "
    "resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2); "
    "os.execvp(sys.argv[2], sys.argv[2:])"
)
_LONGEST_LINE = 1 << 20  # of a helper; what is longer is no answer


class Program(NamedTuple):
    """A program to run, and its bounds.

    Attributes:
        argv: program and arguments; there is no shell.
        limit_s: it is killed after so long, seconds.
        silence_s: and when it has printed nothing for so long.
        env: its environment, None = that of this process.
        given: its standard input.
        pass_fds: descriptors that it inherits.
        most: bytes of each stream that are kept, the first ones.
        tail: the last ones instead.
        whole: more output than that is of no use: the program is killed.
        merged: its standard error is part of its output.
        memory: bytes of addresses that it may have, 0 = no limit.
        blocked: signals that are blocked in it.
    """

    argv: Sequence[str]
    limit_s: float
    silence_s: float = float("inf")
    env: Mapping[str, str] | None = None
    given: bytes = b""
    pass_fds: Collection[int] = ()
    most: int = 1 << 20
    tail: bool = False
    whole: bool = False
    merged: bool = False
    memory: int = 0
    blocked: Collection[int] = ()


class ProgramEnd(NamedTuple):
    """The end of a program, and its output.

    Attributes:
        code: its exit code, or minus the number of the signal; None = it was killed by us.
        output: its standard output, as far as it was kept.
        errors: its standard error, likewise.
        cut: there was more output.
    """

    code: int | None
    output: bytes
    errors: bytes
    cut: bool = False


def run(program: Program) -> ProgramEnd:
    """Run a program, and wait for its end.

    Raises:
        OSError: it cannot be started.
    """
    return _end_of(_Running(program))


async def run_async(program: Program) -> ProgramEnd:
    """Run a program, as `run`, without holding up the loop; cancelled, it kills the program."""
    running = _Running(program)
    try:
        await _over(running)
    except BaseException:
        running.give_up()
        await _over(running)
        raise
    finally:
        running.close()
    return running.end()


class Programs:
    """Owner of the programs that several threads run at the same time. A context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[_Running] = set()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, program: Program) -> ProgramEnd:
        """Run a program, and wait for its end.

        Raises:
            InterruptedError: they are closed.
            OSError: it cannot be started.
        """
        with self._lock:
            if self._closed:
                raise InterruptedError(errno.EINTR, "interrupted")
            running = _Running(program)
            self._running.add(running)
        try:
            return _end_of(running)
        finally:
            with self._lock:
                self._running.discard(running)

    def close(self) -> None:
        """Kill what still runs; nothing is started any more."""
        with self._lock:
            self._closed = True
            for running in self._running:
                running.kill()


class _Running:
    """A program that runs, and the rule. Who waits for `selector` calls `take`, as often as said.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, program: Program) -> None:
        self.selector = selectors.EpollSelector()
        with _blocking(program.blocked):
            self._child = subprocess.Popen(
                _limited(program) if program.memory else program.argv,
                env=program.env,
                stdin=subprocess.PIPE if program.given else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if program.merged else subprocess.PIPE,
                pass_fds=tuple(program.pass_fds),
                start_new_session=True,
                bufsize=0,
            )
        self._program = program
        self._lock = threading.Lock()  # its number is its own until it has been waited for
        self._heard = time.monotonic()
        self._deadline = self._heard + program.limit_s
        self._given = memoryview(program.given)
        self._output, self._errors = bytearray(), bytearray()
        self._cut = self._killed = self._ended = False
        self._pidfd: int | None = None
        with contextlib.suppress(OSError):
            self._pidfd = process.open_pidfd(self._child.pid)
        if self._pidfd is not None:
            self.selector.register(self._pidfd, selectors.EVENT_READ, self._look)
        take_output, take_errors = (
            partial(self._read, kept) for kept in (self._output, self._errors)
        )
        self._follow(self._child.stdin, selectors.EVENT_WRITE, self._write)
        self._follow(self._child.stdout, selectors.EVENT_READ, take_output)
        self._follow(self._child.stderr, selectors.EVENT_READ, take_errors)

    def waits(self) -> Iterator[float]:
        """Yield for how many seconds to wait, until it is over; see `selector`."""
        while (wait_s := self._wait_s()) is not None:
            yield wait_s

    def take(self, seconds: float = 0.0) -> None:
        """Take what has come, or comes within so long."""
        for key, _ in self.selector.select(seconds):
            key.data()

    def kill(self) -> None:
        """End it, and its process group. Any thread may do that."""
        with self._lock:
            if self._child.returncode is None:
                _kill_group(self._child.pid)

    def give_up(self) -> None:
        """Its deadline is now."""
        self._deadline = time.monotonic()

    def end(self) -> ProgramEnd:
        """Return how it has ended, when it is over."""
        code = None if self._killed else self._child.returncode
        return ProgramEnd(code, bytes(self._output), bytes(self._errors), self._cut)

    def close(self) -> None:
        """Hold nothing any more."""
        self.selector.close()
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()
        if self._pidfd is not None:
            os.close(self._pidfd)

    def _wait_s(self) -> float | None:
        if self._pidfd is None:
            self._look()
        if self._ended and not self.selector.get_map():
            return None
        now = time.monotonic()
        silent = self._heard + (float("inf") if self._killed else self._program.silence_s)
        wait_s = min(self._deadline, silent) - now
        of_no_use = self._program.whole and self._cut and not self._killed
        if wait_s > 0 and not of_no_use:
            return wait_s if self._pidfd is not None else min(wait_s, _TICK_S)
        if self._ended or self._killed:
            return None
        self.kill()
        self._killed = True
        self._deadline = now + _KILL_S
        return 0.0

    def _look(self) -> None:
        """See whether it has ended."""
        if self._ended:
            return
        with self._lock:
            self._ended = self._child.poll() is not None
        if self._ended:
            self._deadline = min(self._deadline, time.monotonic() + _LEFT_OPEN_S)
            if self._pidfd is not None:
                self.selector.unregister(self._pidfd)

    def _follow(
        self, stream: IO[bytes] | None, event: int, call: Callable[[IO[bytes]], None]
    ) -> None:
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
            self.selector.register(stream, event, partial(call, stream))

    def _read(self, kept: bytearray, stream: IO[bytes]) -> None:
        data = os.read(stream.fileno(), _CHUNK)
        self._heard = time.monotonic()
        if not data:
            self.selector.unregister(stream)
        kept += data
        if (beyond := len(kept) - self._program.most) > 0:
            self._cut |= kept is self._output
            at = 0 if self._program.tail else self._program.most
            del kept[at : at + beyond]

    def _write(self, stream: IO[bytes]) -> None:
        try:
            self._given = self._given[os.write(stream.fileno(), self._given[:_CHUNK]) :]
        except OSError:  # it reads no more
            self._given = self._given[:0]
        if not self._given:
            self.selector.unregister(stream)
            stream.close()


def _limited(program: Program) -> list[str]:
    return process.code_command(_LIMIT, str(program.memory), *program.argv)


def _end_of(running: _Running) -> ProgramEnd:
    try:
        for wait_s in running.waits():
            running.take(wait_s)
    except BaseException:
        running.give_up()
        for wait_s in running.waits():
            running.take(wait_s)
        raise
    finally:
        running.close()
    return running.end()


async def _over(running: _Running) -> None:
    for wait_s in running.waits():
        await readable(running.selector.fileno(), wait_s)
        running.take()


@contextlib.contextmanager
def _blocking(signals: Collection[int]) -> Iterator[None]:
    """Block signals in this thread, and in what it starts meanwhile for as long as that lives."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_group(pid: int) -> None:
    """Kill a program that leads a group, and has not been waited for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class Companion:
    """A program of ours that runs beside this process. Used on a loop.

    It is waited for when it ends, by this or by another that waits for all children.

    Args:
        argv: program and arguments.
        environ: its environment.
        fds: descriptors that it inherits.
        over: called once it has ended, unless `release` comes before.

    Attributes:
        pid: its process.
        code: its exit code, or minus the number of the signal; None = not known here.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        fds: Sequence[int] = (),
        over: Callable[[], None] = lambda: None,
    ) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._on_end = over
        self.code: int | None = None
        self.pid = process.spawn(argv, environ, fds)
        try:
            self._pidfd = process.open_pidfd(self.pid)
        except OSError:
            _kill_group(self.pid)
            raise
        assert self._pidfd is not None, "an own child exists until it has been waited for"
        self._loop.add_reader(self._pidfd, self._over)

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self._pidfd is not None and not process.wait_pidfd(self._pidfd, 0)

    def processes(self) -> set[tuple[int, int]]:
        """Pid and start time, if it runs."""
        start = process.start_time(self.pid) if self.is_alive() else None
        return set() if start is None else {(self.pid, start)}

    async def ended(self, seconds: float) -> bool:
        """Wait until it has ended; return False after so long."""
        with contextlib.suppress(TimeoutError):
            await wait_for(self._ended.wait(), seconds)
        return self._ended.is_set()

    def kill(self) -> None:
        """End it, and its process group."""
        if self.is_alive():
            _kill_group(self.pid)

    def reap(self) -> bool:
        """Return whether it has ended; then nothing is held any more."""
        if not self.is_alive():
            self.release()
        return self._pidfd is None

    def release(self) -> None:
        """Hold nothing any more, whether it has ended or not."""
        self._forget()

    def _over(self) -> None:
        self._forget()
        self._on_end()

    def _forget(self) -> None:
        if self._pidfd is None:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._pidfd)
        with contextlib.suppress(ChildProcessError):  # somebody else has waited for all children
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        os.close(self._pidfd)
        self._pidfd = None
        self._ended.set()


class Helper(Companion):
    """A companion that is asked over a socket, whose number is the last argument of its program.

    Args:
        argv: program and arguments.
        environ: its environment.
        name: for messages, as in "the device provider".

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], name: str) -> None:
        self._name = name
        self._sock, theirs = socket.socketpair()
        self._sock.setblocking(False)
        self._buffer = bytearray()
        self._is_over = False
        with theirs:
            fd = theirs.fileno()
            try:
                super().__init__([*argv, str(fd)], environ, (fd,))
            except BaseException:
                self._sock.close()
                raise

    def send(self, data: bytes) -> None:
        """Send what the socket has room for.

        Raises:
            OSError: it is gone, or has not read for long.
        """
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            raise OSError(f"{self._name} does not read")

    def lines(self) -> list[bytes]:
        """Return the lines that have come, without their ends.

        Raises:
            ConnectionError: it has ended; there are none, and there will be none.
            OSError: it says too much.
        """
        *lines, rest = bytes(self._buffer).split(b"\n")
        if self._is_over and not lines:
            if len(rest) > _LONGEST_LINE:
                raise OSError(f"{self._name} says too much")
            raise ConnectionAbortedError(f"{self._name} ended without an answer")
        self._buffer[:] = rest
        return lines

    async def news(self, seconds: float | None = None) -> None:
        """Wait until something has come, or for so long."""
        if self._is_over or not await readable(self._sock.fileno(), seconds):
            return
        data = b""
        with contextlib.suppress(OSError):
            data = self._sock.recv(_CHUNK)
        self._buffer += data
        self._is_over = not data or len(self._buffer) > _LONGEST_LINE

    async def line(self) -> bytes:
        """Wait for the next line; only where one is expected.

        Raises:
            OSError: as of `lines`.
        """
        while b"\n" not in self._buffer:
            self.lines()  # raises if there will be none
            await self.news()
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line

    def kill(self) -> None:
        """End it, and read nothing more; `reap` or `release` follows."""
        self._is_over = True
        with contextlib.suppress(OSError):  # wakes up who waits
            self._sock.shutdown(socket.SHUT_RDWR)
        super().kill()

    def release(self) -> None:
        """Hold nothing any more, whether it has ended or not."""
        super().release()
        self._sock.close()
