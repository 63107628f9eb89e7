"""Ends of sinks that tests look at: pipes with a reader, logs on a disk, logs at a server."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.fault_tolerance.output.server.serving import root_server, sender
from undaunted.fault_tolerance.output.console import Console
from undaunted.fault_tolerance.output.follower import Follower
from undaunted.fault_tolerance.output.log_file import LogFile
from undaunted.fault_tolerance.output.rank_file import RankFile
from undaunted.fault_tolerance.output.server.sender import SentFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from undaunted.fault_tolerance.output.line_copy import LineCopy
    from undaunted.fault_tolerance.output.rank_file import Bound
    from undaunted.fault_tolerance.output.sink import Sink

DEADLINE_S = 60.0
KINDS = ("console", "log", "server")


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for what a thread does that announces nothing."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()


def append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def skip_unless_parts_can_be_freed(directory: Path) -> None:
    file = RankFile(str(directory / "try"))
    file.open()
    can, _ = file.can_free(), file.close()
    (directory / "try").unlink()
    if not can:
        pytest.skip("this file system cannot free parts of files")


class Pipe:
    """A console, and the thread that reads it once it may."""

    def __init__(self, *, reads: bool = True) -> None:
        self._fd, self.write_fd = os.pipe()
        self.data = bytearray()
        self._may_read = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        if reads:
            self.read()

    def read(self) -> None:
        """Begin to read, to the end."""
        self._may_read.set()

    def close(self) -> bytes:
        """Return everything, once nobody can write any more."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1
            self.read()
            self._thread.join(DEADLINE_S)
            os.close(self._fd)
        return bytes(self.data)

    def _read(self) -> None:
        assert self._may_read.wait(DEADLINE_S)
        while chunk := os.read(self._fd, 1 << 20):
            self.data += chunk


class Place:
    """Where the lines of one sink arrive.

    Attributes:
        open_sink: as a follower wants it.
        content: what has arrived until now.
    """

    def __init__(self, open_sink: Callable[[Follower], Sink], content: Callable[[], bytes]) -> None:
        self.open_sink, self.content = open_sink, content

    @contextlib.contextmanager
    def followed(self, *parts: LineCopy | Bound, limit_s: float = DEADLINE_S) -> Iterator[Follower]:
        """Follow files until the end; everything has arrived then."""
        follower = Follower("it", self.open_sink, parts, where="/somewhere", limit_s=limit_s)
        follower.start()
        try:
            yield follower
        finally:
            assert follower.close()


@contextlib.contextmanager
def place(kind: str, directory: Path) -> Iterator[Place]:
    if kind == "console":
        pipe = Pipe()
        try:
            yield Place(
                lambda follower: Console(pipe.write_fd, follower.wait_for_writer),
                lambda: bytes(pipe.data),
            )
        finally:
            pipe.close()
    elif kind == "log":
        log = directory / "logs" / "log"
        yield Place(lambda _: LogFile(str(log)), lambda: content_of(log))
    else:
        server = root_server(directory / "server")
        log = directory / "server" / "log"
        try:
            with sender(server.port, directory / "token") as one:
                yield Place(
                    lambda follower: SentFile(one, "log", follower.unread_bytes),
                    lambda: content_of(log),
                )
        finally:
            server.stop()


def content_of(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
