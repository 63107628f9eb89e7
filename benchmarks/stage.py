"""One run of one launcher: started, directed and measured through a socket its ranks connect to.

Nothing here polls. The ranks take their own times (CLOCK_MONOTONIC is one clock for all processes);
ends of processes are seen through pidfds.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from benchmarks.launchers import Job, Launcher

DEADLINE_S = 120.0  # for each wait; eight ranks that import all of torch take 15 s on two cores
STOP_S = 10.0  # for a launcher that is told to stop
TAIL = 3000  # characters of the launcher's output in an error


class StageError(Exception):
    """A run did not go as the benchmark needs it."""


@dataclass
class Player:
    """One process of one rank."""

    connection: socket.socket
    rank: int = -1
    round: int = -1
    pid: int = 0
    line_ns: int = 0
    died_ns: int = 0
    said: dict[str, int] = field(default_factory=dict)
    received: bytes = b""


class Stage:
    """Runs ``job`` under ``launcher`` in a directory of its own; use it as a context manager.

    Attributes:
        started_ns: just before the launcher was started.
        exited_ns: when the launcher was seen to have ended, 0 before.
    """

    def __init__(self, launcher: Launcher, job: Job) -> None:
        self._launcher = launcher
        self._job = job
        self._players: list[Player] = []
        self._owned = contextlib.ExitStack()
        self._selector = selectors.DefaultSelector()
        self.started_ns = 0
        self.exited_ns = 0

    def __enter__(self) -> Stage:  # noqa: PYI034 - Self needs Python 3.11
        try:
            self._open()
        except BaseException:
            self._owned.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._owned.close()

    @property
    def launcher_pid(self) -> int:
        return self._process.pid

    def pids(self, round_: int) -> list[int]:
        return [player.pid for player in self._of_round(round_)]

    # What a case waits for

    def all_lines(self, round_: int) -> int:
        """Wait for the first lines of all ranks of ``round_``; return the time of the last."""
        self._until(
            lambda: len(self._of_round(round_)) == self._job.ranks,
            f"the first lines of round {round_}",
        )
        return max(player.line_ns for player in self._of_round(round_))

    def said(self, rank: int, round_: int, word: str) -> int:
        """Wait until ``rank`` has said ``word``; return the time it gave."""
        player = self._player(rank, round_)
        self._until(lambda: word in player.said, f"{word!r} from rank {rank}")
        return player.said[word]

    def died(self, rank: int, round_: int) -> int:
        """Wait until the process of ``rank`` has ended; return when that was seen."""
        player = self._player(rank, round_)
        self._until(lambda: player.died_ns > 0, f"the end of rank {rank}")
        return player.died_ns

    def finish(self, round_: int) -> tuple[int, int]:
        """Tell all ranks to exit; return when the last rank and when the launcher had ended."""
        for player in self._of_round(round_):
            self.tell(player.rank, round_, "exit")
        last = max(self.died(player.rank, round_) for player in self._of_round(round_))
        self._until(lambda: self.exited_ns > 0, "the end of the launcher")
        if (code := self._process.wait()) != 0:
            raise self._error(f"it ended with exit code {code}")
        return last, self.exited_ns

    def tell(self, rank: int, round_: int, order: str) -> None:
        self._player(rank, round_).connection.sendall(f"{order}\n".encode())

    def watch_for(self, seconds: float) -> None:
        """Let ``seconds`` pass; the launcher must not end meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._handle(left)
            if self.exited_ns:
                raise self._error("it ended early")

    # How it is seen

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._error(f"waited {DEADLINE_S:g} s for {what}")
            self._handle(0 if self.exited_ns else left)
            if self.exited_ns and not done():
                raise self._error(f"it ended with {self._process.wait()} before {what}")

    def _handle(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def _watch(self, fd: int, call: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, call)

    def _watch_end(self, pid: int, call: Callable[[int], None]) -> None:
        """Call ``call`` once, with the time, when process ``pid`` has ended."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            call(time.monotonic_ns())
            return

        def ended() -> None:
            now = time.monotonic_ns()
            self._selector.unregister(pidfd)
            call(now)

        self._owned.callback(os.close, pidfd)
        self._watch(pidfd, ended)

    def _launcher_ended(self, now: int) -> None:
        self.exited_ns = now

    def _accept(self) -> None:
        connection, _ = self._server.accept()
        self._owned.enter_context(connection)
        player = Player(connection)
        self._players.append(player)
        self._watch(connection.fileno(), lambda: self._read(player))

    def _read(self, player: Player) -> None:
        try:
            data = player.connection.recv(4096)
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(player.connection)
            return
        *lines, player.received = (player.received + data).split(b"\n")
        for line in lines:
            self._note(player, line.decode().split())

    def _note(self, player: Player, words: list[str]) -> None:
        if words[0] != "line":
            player.said[words[0]] = int(words[1])
            return
        player.rank, player.round, player.pid, player.line_ns = map(int, words[1:])

        def died(now: int) -> None:
            player.died_ns = now

        self._watch_end(player.pid, died)

    def _of_round(self, round_: int) -> list[Player]:
        return [player for player in self._players if player.round == round_]

    def _player(self, rank: int, round_: int) -> Player:
        return next(player for player in self._of_round(round_) if player.rank == rank)

    # How it begins and ends

    def _open(self) -> None:
        own = self._owned
        own.callback(self._selector.close)
        self._directory = Path(own.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        address = str(self._directory / "socket")
        self._server = own.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self._server.bind(address)
        self._server.listen()
        self._watch(self._server.fileno(), self._accept)
        log = own.enter_context((self._directory / "output").open("wb"))
        own_env = {"BENCHMARK_SOCKET": address, "BENCHMARK_LAUNCHER": self._launcher.name}
        self.started_ns = time.monotonic_ns()
        self._process = subprocess.Popen(
            self._launcher.command(self._job),
            cwd=self._directory,
            env={**os.environ, **self._launcher.env, **own_env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        own.callback(self._stop)
        self._watch_end(self._process.pid, self._launcher_ended)

    def _stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                return
            self._process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)

    def _error(self, what: str) -> StageError:
        output = (self._directory / "output").read_text(errors="replace")
        command = " ".join(self._launcher.command(self._job))
        return StageError(f"{command}: {what}. The end of its output:\n{output[-TAIL:]}")
