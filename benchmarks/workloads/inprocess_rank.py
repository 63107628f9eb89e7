"""One rank of benchmarks/inprocess.py: says when its function is entered, and fails when told to.

`inprocess_rank.py CONTESTANT BACKEND`. What it says are datagrams of JSON; what it is told is one
word: "raise", "kill", or "ping", which is answered with the time of a call.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

NAP_S = 0.005  # NVRx cannot interrupt longer ones; the same for everybody
SETTLE_S = 0.05  # until the others are where they wait
SHORT = timedelta(milliseconds=20)  # smaller intervals make NVRx slower on two cores
PINGS = 200_000


class Rank:
    """This process, as the benchmark sees it."""

    def __init__(self, backend: str) -> None:
        self.number = int(os.environ["RANK"])
        self.round = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        directory = Path(os.environ["BENCHMARK_DIRECTORY"])
        self.backend = backend
        self.advance: Callable[[], None] = lambda: None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(directory / f"{self.number}-{self.round}"))
        self._socket.connect(str(directory / "benchmark"))

    def train(self, iteration: int, store: Any, ping: Callable[[], None]) -> None:
        """What is wrapped."""
        entered = ready = time.monotonic_ns()
        if self.backend:
            self._first_collective(store)
            ready = time.monotonic_ns()
        self._say(
            rank=self.number, iteration=iteration, pid=os.getpid(), entered=entered, ready=ready
        )
        if self.number == int(os.environ["BENCHMARK_RANK"]):
            self._obey(ping)
        self._wait()

    def _first_collective(self, store: Any) -> None:
        group = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        # Without a store of ours: a fresh process under a launcher.
        known = {} if store is None else {"store": store, **group}
        dist.init_process_group(self.backend, timeout=timedelta(minutes=5), **known)
        dist.all_reduce(torch.ones(1))

    def _obey(self, ping: Callable[[], None]) -> None:
        while (order := self._socket.recv(100).decode()) == "ping":
            begun = time.perf_counter_ns()
            for _ in range(PINGS):
                ping()
            self._say(ping=(time.perf_counter_ns() - begun) / PINGS)
        self.advance()
        time.sleep(SETTLE_S)
        self._say(failed=time.monotonic_ns())
        if order == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("the benchmark asked for this exception")

    def _wait(self) -> None:
        if self.backend:
            dist.all_reduce(torch.ones(1))
        while not os.environ.get("BENCHMARK_IDLE"):
            time.sleep(NAP_S)
        time.sleep(1e6)

    def _say(self, **what: Any) -> None:
        self._socket.send(json.dumps(what).encode())


def undaunted(rank: Rank) -> None:
    from undaunted import inprocess

    def train(call: inprocess.CallWrapper) -> None:
        rank.train(call.iteration, call.store if rank.backend else None, call.ping)

    inprocess.Wrapper(max_identical_faults=None)(train)(None)


def nvrx(rank: Rank, **intervals: timedelta) -> None:
    from nvidia_resiliency_ext import inprocess

    # Not a string, as it would be with the import above: those are not understood.
    def train(call: Any) -> None:
        rank.train(call.iteration, call.store, call.ping)

    train.__annotations__["call"] = inprocess.CallWrapper
    inprocess.Wrapper(**intervals)(train)(None)


def nvrx_short(rank: Rank) -> None:
    names = ("monitor_thread_interval", "monitor_process_interval", "progress_watchdog_interval")
    intervals = dict.fromkeys((*names, "heartbeat_interval", "last_call_wait"), SHORT)
    nvrx(rank, **intervals)


def restarted(rank: Rank) -> None:
    """A fresh process, under `undaunted run`; it advances, so that no restart is put off."""

    def advance() -> None:
        from undaunted import step

        step(rank.round)

    rank.advance = advance
    rank.train(rank.round, None, lambda: None)


CONTESTANTS = {
    "undaunted": undaunted,
    "nvrx": nvrx,
    "nvrx-short": nvrx_short,
    "in-job": restarted,
}

if __name__ == "__main__":
    CONTESTANTS[sys.argv[1]](Rank(sys.argv[2]))
