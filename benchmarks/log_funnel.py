"""What the log server takes: senders in one process flood it over loopback.

    python -m benchmarks.log_funnel [--senders 1 4] [--megabytes 400]
    python -m benchmarks.log_funnel --connections 2000 [--seconds 60] [--every 0.1]

Shown are MB/s from the first line to the last one that is written, and of the server that writes
its CPU time per 100 MB and its peak memory. Lines have 100 bytes.

With --connections, so many launchers, in 4 processes, each send 100 lines a second, as a message
--every so many seconds. Shown are lines that are missing or out of order, how long a message waits
until it is written, and how long a round of 64 nodes takes meanwhile, with a leader on this host.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import rendezvous
from undaunted.coordinator.wire import client
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.handshake import Terms
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.fault_tolerance.output.server import messages as w
from undaunted.fault_tolerance.output.server.config import LogServerConfig
from undaunted.fault_tolerance.output.server.program import Task
from undaunted.fault_tolerance.output.server.sender import Sender, SentFile

PIECE = (b"x" * 99 + b"\n") * 2500
GRACE_S = 60.0
PROCESSES = 4
LINES_PER_S = 100
LINE_BYTES = 100
ROUNDS, ROUND_NODES = 20, 64


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--senders", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--connections", type=int)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=0.1)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        asyncio.run(Launchers(**json.loads(options.part)).run())
        return
    os.environ["UNDAUNTED_TOKEN"] = "a token of a benchmark"
    if options.connections:
        print(f"load before: {os.getloadavg()[0]:.1f}; a round: {rounds()}", flush=True)
        print(steady(options), flush=True)
        return
    for senders in options.senders:
        print(measure(senders, options.megabytes), flush=True)


def measure(senders: int, megabytes: int) -> str:
    """Return a line about one run."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:  # no disk
        config = LogServerConfig(root=directory, port=free_port(), grace_s=GRACE_S)
        nodes = Nodes(
            min_nodes=senders,
            max_nodes=senders,
            endpoints=["127.0.0.1:1"],
            is_host=True,
            address="127.0.0.1",
        )
        server = start(config, nodes)
        ready = [sender(config, nodes, number) for number in range(senders)]
        for each in ready:
            each.put("warm", b"\n", 1.0)
            while each.stalled_s():  # until the server is there
                time.sleep(0.01)
        began = time.monotonic()
        pieces = megabytes * 1_000_000 // len(PIECE) // senders
        threads = [threading.Thread(target=flood, args=(each, pieces)) for each in ready]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
        cpu_s, peak_mib = used(server.pid)
        server.terminate()
        server.wait()
        size = Path(directory, "log").stat().st_size
        assert size == pieces * senders * len(PIECE), "lines are missing"
        rate, cost = size / 1e6 / seconds, cpu_s / (size / 1e8)
        return (
            f"{senders} senders: {rate:.0f} MB/s, "
            f"{cost:.2f} s CPU per 100 MB, peak {peak_mib:.0f} MiB"
        )


def start(config: LogServerConfig, nodes: Nodes) -> subprocess.Popen[bytes]:
    """Start the server."""
    task = msgspec.json.encode(Task(run_id="job", nodes=nodes, config=config))
    program = [sys.executable, "-m", "undaunted.fault_tolerance.output.server.program"]
    return subprocess.Popen([*program, task.decode()])


def sender(config: LogServerConfig, nodes: Nodes, number: int) -> Sender:
    """Start a launcher's side."""
    name = f"n{number}"
    terms = Terms("job", "1", node=name)
    one = Sender(nodes, terms, f"127.0.0.1:{config.port}", lambda _: None)
    one.begin()
    return one


def flood(one: Sender, pieces: int) -> None:
    """Send as fast as it goes, until all is written."""
    file = SentFile(one, "log", lambda: 0)
    for _ in range(pieces):
        file.write([PIECE])
        while file.blocked:
            file.flush()
    one.close(GRACE_S)


# --- many launchers, a moderate rate --------------------------------------------------------------


def steady(options: argparse.Namespace) -> str:
    """Return what became of the lines of many launchers, and how long rounds took meanwhile."""
    count = options.connections
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        config = LogServerConfig(root=directory, port=free_port(), grace_s=GRACE_S)
        nodes = Nodes(
            min_nodes=count,
            max_nodes=count,
            endpoints=["127.0.0.1:1"],
            is_host=True,
            address="127.0.0.1",
        )
        server = start(config, nodes)
        share = count // PROCESSES
        parts = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.log_funnel", "--part", json.dumps(part)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for part in (
                {
                    "port": config.port,
                    "first": number * share,
                    "count": share,
                    "seconds": options.seconds,
                    "every": options.every,
                }
                for number in range(PROCESSES)
            )
        ]
        for part in parts:
            assert part.stdout is not None
            assert part.stdout.readline() == "connected\n"
        load = os.getloadavg()[0]
        for part in parts:
            assert part.stdin is not None
            part.stdin.write("go\n")
            part.stdin.flush()
        round_ms = rounds()
        said = [json.loads(part.communicate()[0]) for part in parts]
        cpu_s, peak_mib = used(server.pid)
        server.terminate()
        server.wait()
        lines, missing, disordered = counted(Path(directory, "log"), said)
    waits = [wait for each in said for wait in each["waits"]]
    took = max(each["took"] for each in said)
    lost = sum(len(each["lost"]) for each in said)
    return (
        f"{count} connections, load {load:.1f}: {lines} lines in {took:.1f} s, "
        f"{missing} missing, {disordered} out of order, {lost} connections made again; written "
        f"after {statistics.median(waits):.3f} s (median), {max(waits):.2f} s (longest); "
        f"{cpu_s:.1f} s CPU, peak {peak_mib:.0f} MiB; a round meanwhile: {round_ms}, "
        f"afterwards: {rounds()}"
    )


def rounds() -> str:
    """Return how long rounds of a job take, with a leader and agents on this machine."""
    token = os.environ.pop("UNDAUNTED_TOKEN")
    try:
        times = [each * 1e3 for each in rendezvous.measure(ROUND_NODES, ROUNDS)["rounds"]]
    finally:
        os.environ["UNDAUNTED_TOKEN"] = token
    return f"{statistics.median(times):.1f} ms [{min(times):.1f}..{max(times):.1f}]"


def counted(log: Path, said: list[dict[str, Any]]) -> tuple[int, int, int]:
    """Return how many lines there are, how many are missing, and how many out of order."""
    following: dict[bytes, int] = {}
    lines = disordered = 0
    with log.open("rb") as file:
        for line in file:
            lines += 1
            who, number = line[:6], int(line[6:16])
            disordered += number != following.get(who, 0)
            following[who] = number + 1
    return lines, sum(each["lines"] for each in said) - lines, disordered


class Launchers:
    """One process with many connections, each as a launcher has it."""

    def __init__(self, port: int, first: int, count: int, seconds: float, every: float) -> None:
        self.port, self.numbers = port, range(first, first + count)
        self.messages, self.every = round(seconds / every), every
        self.lines = round(LINES_PER_S * every)
        self.waits: list[float] = []
        self.over = asyncio.Event()
        self.left = count
        self.lost: list[str] = []  # connections: why
        self.tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Connect all, wait for a word, send, and say what happened."""
        each = [Launcher(self, number) for number in self.numbers]
        for start_at in range(0, len(each), 50):
            await asyncio.gather(*(one.connect() for one in each[start_at : start_at + 50]))
        print("connected", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for index, one in enumerate(each):
            loop.call_at(began + self.every * index / len(each), one.tick, began)
        await self.over.wait()
        total = self.messages * self.lines * len(each)
        took = loop.time() - began
        said = {"lines": total, "took": took, "waits": self.waits[::97], "lost": self.lost}
        print(json.dumps(said), flush=True)


class Launcher:
    """Handler of one connection: sends a message at each tick, no more than a window of them."""

    def __init__(self, all_: Launchers, number: int) -> None:
        self.all, self.number, self.name = all_, number, f"s{number:05}"
        self.changed = asyncio.Event()
        self.window, self.in_flight, self.due = 0, 0, 0
        self.sent: dict[int, tuple[float, int]] = {}
        self.next = 0
        self.over = False

    async def connect(self) -> None:
        """Introduce itself, and send again what is not answered."""
        terms = Terms("job", "1", os.environ["UNDAUNTED_TOKEN"].encode(), node=f"n{self.number}")
        where = f"127.0.0.1:{self.all.port}"
        while not self.window:
            self.changed.clear()
            try:
                self.link = await client.connect(
                    where, self, terms, messages=w.ToSender, timeout_s=GRACE_S
                )
            except WireError:
                await asyncio.sleep(0.5)
                continue
            self.link.send(w.Open(sender=self.name))
            await self.changed.wait()

    def tick(self, began: float) -> None:
        """Have one more message to send; come again for the next."""
        loop = asyncio.get_running_loop()
        self.due += 1
        self.pump()
        if self.due < self.all.messages:
            phase = self.all.every * (self.number - self.all.numbers.start) / len(self.all.numbers)
            loop.call_at(began + phase + self.due * self.all.every, self.tick, began)

    def pump(self) -> None:
        """Send what is due, as far as the window allows."""
        while self.next < self.due and self.in_flight < self.window:
            first = self.next * self.all.lines
            data = b"".join(
                f"{self.name}{first + index:010}".encode().ljust(LINE_BYTES - 1, b".") + b"\n"
                for index in range(self.all.lines)
            )
            lines = w.Lines(sender=self.name, number=self.next, path="log", data=data)
            self.sent.setdefault(self.next, (time.monotonic(), w.size(lines)))
            self.in_flight += w.size(lines)
            self.next += 1
            self.link.send(lines)

    def opened(self, _connection: Any) -> None:
        """Nothing to do."""

    def received(self, _connection: Any, message: Any) -> None:
        """May begin, or messages are written."""
        begins = isinstance(message, w.Ready)
        written = message.written if begins else message.number
        now = time.monotonic()
        for number in [each for each in self.sent if each <= written]:
            when, size = self.sent.pop(number)
            self.all.waits.append(now - when)
            self.in_flight -= size
        if begins:
            self.window, self.in_flight, self.next = message.window, 0, written + 1
            self.changed.set()
        self.pump()
        if written == self.all.messages - 1 and not self.over:
            self.over = True
            self.all.left -= 1
            if not self.all.left:
                self.all.over.set()

    def closed(self, _connection: Any, reason: str) -> None:
        """Begin again, as a launcher does."""
        self.changed.set()
        if self.window and self.all.left:
            self.all.lost.append(reason)
            self.window = 0
            self.all.tasks.append(asyncio.create_task(self.connect()))


def used(pid: int) -> tuple[float, float]:
    """Return CPU seconds and peak memory in MiB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = int(fields[11]) + int(fields[12])
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(line for line in status if line.startswith("VmHWM")).split()[1]
    return ticks / os.sysconf("SC_CLK_TCK"), int(peak) / 1024


def free_port() -> int:
    """Return a port after which some are probably free as well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return min(port, 65000)


if __name__ == "__main__":
    main()
