"""One rank of benchmarks/inprocess_soak: does as it is told, and says where it is.

`inprocess_soak_rank.py SETTINGS`. Orders are datagrams of JSON, one per iteration; what it says are
lines of JSON, into a named pipe.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from undaunted import inprocess
from undaunted.inprocess.rank.loop import REJOIN

if TYPE_CHECKING:
    from collections.abc import Callable

LONG_S = 100.0
STEPS = 3  # of collectives, before a rank is ready
NAP_S = 0.005
SETTLE_S = 10.0
CODES = {
    "kill": [-signal.SIGKILL],
    "leave": [3],
    "lock the GIL": [-signal.SIGTERM, -signal.SIGKILL],
}


class Rank:
    """This process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.number = int(os.environ["RANK"])
        self.settings = settings
        self._replaces = REJOIN in os.environ  # a process that was lost, and left its socket
        self._orders = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = Path(settings["directory"]) / str(self.number)
        if self._replaces:
            path.unlink(missing_ok=True)
        self._orders.bind(str(path))
        self._out = os.open(Path(settings["directory"]) / "said", os.O_WRONLY)
        self._armed: dict[str, str] = {}
        self._abort = inprocess.abort.AbortTorchDistributed()

    def run(self) -> None:
        """Call a function that nothing happens to, and then the one with faults."""
        # Who serves a store for the first time keeps a pipe of libuv for ever.
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        if not self._replaces:  # else the others are in their second call
            self._wrapper()(self.warm_up)(None)
        before = usage()
        result = self._wrapper(
            initialize=self.initialize, abort=self.abort, finalize=self.finalize
        )(self.train)(None)
        # What a process has without the first call says nothing of what restarts leave.
        before = usage() if self._replaces else before
        after = settled(before)
        pairs = {name: [before[name], after[name]] for name in before}
        self.say("done", self._iteration, result=result, open=targets(), **pairs)

    def _wrapper(self, **plugins: Any) -> Callable[..., Any]:
        limits = self.settings["limits"].items()
        plugins |= {name: timedelta(seconds=seconds) for name, seconds in limits}
        most = self.settings["most_active"]
        if most is not None:
            assignment = inprocess.rank_assignment
            plugins["rank_assignment"] = inprocess.Compose(
                assignment.MaxActiveWorldSize(most), assignment.ShiftRanks()
            )
        pidfile = str(Path(self.settings["directory"]) / "guard{rank}.pid")
        return inprocess.Wrapper(
            max_identical_faults=None, monitor_process_pidfile=pidfile, **plugins
        )

    # --- plug-ins ---------------------------------------------------------------------------------

    def initialize(self, state: inprocess.FrozenState) -> inprocess.FrozenState:
        self._drain()
        self._perform("initialize")
        self._iteration = state.iteration
        self.say(
            "entered",
            state.iteration,
            pid=os.getpid(),
            rank=state.rank,
            world=state.world_size,
            active=state.active_rank,
            actives=state.active_world_size,
        )
        return state

    def abort(self, state: inprocess.FrozenState) -> inprocess.FrozenState:
        self._perform("abort")
        return self._abort(state)

    def finalize(self, state: inprocess.FrozenState) -> inprocess.FrozenState:
        self.say("left", state.iteration)
        self._drain()
        self._perform("finalize")
        return state

    def _perform(self, point: str) -> None:
        how = self._armed.pop(point, None)
        if how == "kill":
            self.fail("kill")
        if how == "raise":
            fatal = [1] if point == "finalize" else []
            self.say("fault", -1, codes=fatal)
            raise RuntimeError(f"in {point}")

    # --- the functions ----------------------------------------------------------------------------

    def warm_up(self, call: inprocess.CallWrapper) -> None:
        if self.settings["gloo"]:
            join_group(call)
            dist.all_reduce(torch.ones(1))
            dist.destroy_process_group()
        else:
            call.store.set("warm", "")

    def train(self, call: inprocess.CallWrapper) -> int:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.say("running", call.iteration, rank=rank, world=world)
        self._perform("group")
        if self.settings["gloo"]:
            join_group(call)
            for _ in range(STEPS):
                self._step(call, rank, world)
        self.say("ready", call.iteration)
        order = self._order(call.iteration)
        if order in FAILURES:
            self.fail(order)
        while order == "steps":
            self._step(call, rank, world)
            time.sleep(NAP_S)
        if order not in ("return", "returned"):
            PLACES[order](call)
            raise AssertionError(f"nobody has interrupted this rank: {order}")
        if order == "return" and self.settings["gloo"]:
            dist.destroy_process_group()
        return call.iteration

    def _step(self, call: inprocess.CallWrapper, rank: int, world: int) -> None:
        value = torch.tensor([(rank + 1) * (call.iteration + 1)])
        dist.all_reduce(value)
        wanted = world * (world + 1) // 2 * (call.iteration + 1)
        if value.item() != wanted:
            self.say("wrong", call.iteration, sum=value.item(), wanted=wanted)

    def fail(self, how: str) -> None:
        self.say("fault", -1, codes=CODES.get(how, []))
        FAILURES[how]()

    # --- talking ----------------------------------------------------------------------------------

    def say(self, what: str, iteration: int, **more: Any) -> None:
        """In one write: what is interrupted in between would be half a line."""
        at = time.monotonic_ns()
        line = {"what": what, "number": self.number, "iteration": iteration, "at": at, **more}
        os.write(self._out, (json.dumps(line) + "\n").encode())

    def _order(self, iteration: int) -> str:
        while True:
            order = self._take(self._orders.recv(1000))
            if order["iteration"] == iteration:
                return str(order["do"])

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._take(self._orders.recv(1000, socket.MSG_DONTWAIT))

    def _take(self, data: bytes) -> dict[str, Any]:
        order: dict[str, Any] = json.loads(data)
        self._armed = order["armed"]
        return order


def join_group(call: inprocess.CallWrapper) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", store=call.store, rank=rank, world_size=world, timeout=timedelta(seconds=LONG_S)
    )


# --- failures -------------------------------------------------------------------------------------


def fail_with_exception() -> None:
    raise RuntimeError("the soak asked for this exception")


def lock_the_gil() -> None:
    re.match(r"(a+)+b", "a" * 60)


FAILURES: dict[str, Callable[[], None]] = {
    "raise": fail_with_exception,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "leave": lambda: sys.exit(3),
    "hang": lambda: time.sleep(LONG_S),
    "lock the GIL": lock_the_gil,
}


# --- where ranks wait -----------------------------------------------------------------------------


def in_atomic(call: inprocess.CallWrapper) -> None:
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        with call.atomic():
            time.sleep(NAP_S)


def in_lock(_: inprocess.CallWrapper) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=LONG_S)


def in_socket(_: inprocess.CallWrapper) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.recv(1)


def in_spin(_: inprocess.CallWrapper) -> None:
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        sum(range(1000))


def in_swallow(_: inprocess.CallWrapper) -> None:
    with contextlib.suppress(BaseException):
        time.sleep(LONG_S)
    time.sleep(LONG_S)


def in_subprocess(_: inprocess.CallWrapper) -> None:
    """It ends with this process, also if that is killed."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        process.wait(LONG_S)


def in_cleaning_up(_: inprocess.CallWrapper) -> None:
    try:
        time.sleep(LONG_S)
    finally:
        time.sleep(NAP_S)
        sum(range(1000))


PLACES: dict[str, Callable[[inprocess.CallWrapper], Any]] = {
    "atomic": in_atomic,
    "cleaning up": in_cleaning_up,
    "lock": in_lock,
    "queue": lambda _: queue.Queue[int]().get(timeout=LONG_S),
    "sleep": lambda _: time.sleep(LONG_S),
    "socket": in_socket,
    "spin": in_spin,
    "store": lambda call: call.store.wait(["never"], timedelta(seconds=LONG_S)),
    "subprocess": in_subprocess,
    "swallow": in_swallow,
}


# --- what the process has -------------------------------------------------------------------------


def usage() -> dict[str, int]:
    gc.collect()
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "rss_kb": int(Path("/proc/self/statm").read_text().split()[1]) * 4,
    }


def targets() -> list[str]:
    """Return what the descriptors are of."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def settled(before: dict[str, int]) -> dict[str, int]:
    """Return what there is when no more than before is left, or after a while."""
    end = time.monotonic() + SETTLE_S
    while True:
        now = usage()
        counts = ("fds", "threads")
        if all(now[name] <= before[name] for name in counts) or time.monotonic() > end:
            return now
        time.sleep(NAP_S)  # nothing says when a thread of torch has ended


if __name__ == "__main__":
    faulthandler.register(signal.SIGTERM, chain=True)  # the soak wants to know where it hangs
    Rank(json.loads(sys.argv[1])).run()
