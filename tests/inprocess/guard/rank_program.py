"""A rank for tests of guards: does what it is told on standard input, prints what it hears.

    python rank_program.py OPTIONS_AS_JSON

Lines in: ``enter`` | ``join EPOCH`` | ``running EPOCH`` | ``fault EPOCH TEXT`` |
``complete EPOCH`` | ``close``. Lines out: ``ready`` or ``refused TEXT``, then ``runs``,
``closed``, ``guard gone``, and messages as JSON.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.coordinator.wire import frames
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core import reading
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.guard.start import Options, connect
from undaunted.inprocess.rank.page import Page

if TYPE_CHECKING:
    import datetime as dt

TURN_S = 0.02  # how often it shows that it turns; also how long it waits for something to do


class Task(msgspec.Struct):
    job_rank: int
    world_size: int
    limits: m.Limits
    store_kwargs: dict[str, str | int] = {}
    store_file: str = ""
    logfile: str = ""
    pidfile: str = ""
    heartbeat_interval: float = 0.1


class Rank:
    def __init__(self, task: Task, sock: socket.socket) -> None:
        self.task = task
        self.sock = sock
        self.page = Page()
        self.decoder = frames.FrameDecoder(m.MAX_MESSAGE_BYTES)
        self.lines = b""

    def send(self, message: m.FromRank, *fds: int) -> None:
        socket.send_fds(self.sock, [frames.encode(msgspec.msgpack.encode(message))], fds)

    def do(self, words: list[str]) -> None:
        task = self.task
        match words:
            case ["enter"]:
                enter = m.Enter(0, task.job_rank, task.world_size, os.getpid(), "here", task.limits)
                self.page.enter_call(0)
                self.send(enter, self.page.fd)
            case ["join", epoch]:
                self.send(m.Join(0, task.job_rank, int(epoch), task.job_rank, task.world_size))
            case ["running", epoch]:
                self.page.enter_epoch(int(epoch))
                self.page.set_phase(reading.Phase.RUNNING)
                say("runs")
            case ["fault", epoch, *text]:
                reason = m.Reason("EXCEPTION", task.job_rank, task.job_rank, " ".join(text))
                self.send(m.Fault(0, task.job_rank, int(epoch), reason))
            case ["complete", epoch]:
                self.send(m.Completed(0, task.job_rank, int(epoch)))
            case ["close"]:
                self.sock.close()
                say("closed")

    def run(self) -> None:
        while self.sock.fileno() >= 0:
            self.page.turned()
            ready, _, _ = select.select([self.sock, sys.stdin], [], [], TURN_S)
            if sys.stdin in ready:
                self.read_lines()
            if self.sock in ready and self.sock.fileno() >= 0:
                self.hear()

    def read_lines(self) -> None:
        data = os.read(0, 65536)
        if not data:
            sys.exit()
        *lines, self.lines = (self.lines + data).split(b"\n")
        for line in lines:
            self.do(line.decode().split())

    def hear(self) -> None:
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:  # it had not read all when it was killed
            data = b""
        if not data:
            say("guard gone")
            sys.exit()
        self.decoder.feed(data)
        while (frame := self.decoder.next()) is not None:
            message = msgspec.msgpack.decode(frame, type=m.ToRank)
            say(msgspec.json.encode(message).decode())


def say(text: str) -> None:
    print(text, flush=True)


def base_store(task: Task) -> object:
    return FileStore(task.store_file) if task.store_file else None


class FileStore:
    """As much of torch's store as is needed, in a directory."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def path(self, key: str) -> Path:
        return self.directory / key.replace("/", "_")

    def set(self, key: str, value: str) -> None:
        new = self.directory / "new"
        new.write_text(value)
        new.rename(self.path(key))

    def wait(self, keys: list[str], timeout: dt.timedelta) -> None:
        end = time.monotonic() + timeout.total_seconds()
        while not self.path(keys[0]).exists():
            if time.monotonic() > end:
                raise RuntimeError("timed out")
            select.select([], [], [], 0.01)

    def get(self, key: str) -> bytes:
        return self.path(key).read_bytes()


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    options = Options(
        job_rank=task.job_rank,
        world_size=task.world_size,
        heartbeat_interval_s=task.heartbeat_interval,
        limits=task.limits,
        store_kwargs=task.store_kwargs,
        logfile=task.logfile,
        pidfile=task.pidfile,
    )
    try:
        guard = connect(options, base_store=base_store(task))
    except InternalError as error:
        say(f"refused {error}")
        return
    say("ready")
    Rank(task, guard.sock).run()


if __name__ == "__main__":
    main()
