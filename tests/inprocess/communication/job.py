"""A job of real ranks over gloo, for tests and benchmarks of aborts.

A program: reads one request per line (JSON) from standard input, runs it, and writes one line with
the result. Ranks are forked, so that torch is imported once. See `SCENARIOS`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable  # noqa: TC003
from datetime import timedelta
from multiprocessing.synchronize import Barrier  # noqa: TC003
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from undaunted.inprocess.abort import AbortTorchDistributed
from undaunted.inprocess.communication import creation
from undaunted.inprocess.state import State

TIMEOUT = timedelta(seconds=60)


class Rank:
    """What one rank has, and that no abort may touch: the user's store and connections."""

    def __init__(
        self, rank: int, size: int, listener: socket.socket, host: str, meeting: Barrier
    ) -> None:
        self.rank, self.size, self.host, self.meeting = rank, size, host, meeting
        self.port = listener.getsockname()[1]
        self.absent = rank == size - 1
        self.free_port = 0
        fd = listener.detach()
        if rank != 0:
            os.close(fd)
        self.store = dist.TCPStore(
            host,
            self.port,
            None,
            is_master=rank == 0,
            timeout=TIMEOUT,
            master_listen_fd=fd if rank == 0 else None,
        )
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.near = socket.create_connection(server.getsockname(), timeout=10)
            self.far = server.accept()[0]
            self.far.settimeout(10)
        self.round = 0
        self.groups: list[Any] = []

    def everybody(self) -> None:
        """Wait until all ranks are here, past all that an abort may end."""
        self.meeting.wait(TIMEOUT.total_seconds())

    def init(self, size: int = 0) -> None:
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(f"round/{self.round}", self.store),
            rank=self.rank,
            world_size=size or self.size,
            timeout=TIMEOUT,
        )

    def check_untouched(self) -> None:
        self.near.sendall(b"ping")
        assert self.far.recv(4) == b"ping"
        self.far.sendall(b"pong")
        assert self.near.recv(4) == b"pong"
        self.store.set(f"alive/{self.rank}", "1")


def all_reduce(rank: Rank) -> None:
    dist.all_reduce(torch.ones(1000))


def broadcast(rank: Rank) -> None:
    dist.broadcast(torch.ones(10), src=rank.size - 1)


def barrier(rank: Rank) -> None:
    dist.barrier()


def monitored_barrier(rank: Rank) -> None:
    dist.monitored_barrier(timeout=TIMEOUT)


def send(rank: Rank) -> None:
    dist.send(torch.ones(8 * 1024 * 1024), dst=rank.size - 1)


def recv(rank: Rank) -> None:
    dist.recv(torch.ones(10), src=rank.size - 1)


def irecv(rank: Rank) -> None:
    work = dist.irecv(torch.ones(10), src=rank.size - 1)
    assert work is not None
    work.wait()


def sub_group(rank: Rank) -> None:
    dist.all_reduce(torch.ones(10), group=rank.groups[0])


def all_gather_object(rank: Rank) -> None:
    got: list[Any] = [None] * rank.size
    dist.all_gather_object(got, {"rank": rank.rank})


def ddp_backward(rank: Rank) -> None:
    model = rank.groups[0]
    model(torch.ones(4, 8)).sum().backward()


def new_group(rank: Rank) -> None:
    dist.new_group(timeout=TIMEOUT)


def init(rank: Rank) -> None:
    rank.init()


def init_env(rank: Rank) -> None:
    dist.init_process_group("gloo", timeout=TIMEOUT)


def prepare_sub_group(rank: Rank) -> None:
    rank.groups = [dist.new_group(timeout=TIMEOUT)]


def prepare_ddp(rank: Rank) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(8)])
    rank.groups = [DistributedDataParallel(model, bucket_cap_mb=0.0001)]


def accept(rank: Rank) -> None:
    """Peers have given addresses, so that this rank has to wait for them, and do not come."""
    store = dist.PrefixStore(f"accept/{rank.round}/{rank.rank}", rank.store)

    def publish() -> None:
        own = dist.PrefixStore(f"accept/{rank.round}/{rank.rank}", rank.store.clone())
        other = dist.PrefixStore(f"accept/{rank.round}", own)  # as `watch` has it
        address = other.get(f"0//cpu//0/{rank.rank}")
        host = address.index(b"\x7f\0\0\x01")
        port = int.from_bytes(address[host - 2 : host], "big") + 1
        for peer in {*range(rank.size)} - {rank.rank}:
            said = address[: host - 2] + port.to_bytes(2, "big") + address[host:]
            other.set(f"0//cpu//0/{peer}", said)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        dist.init_process_group(
            "gloo", store=store, rank=rank.rank, world_size=rank.size, timeout=TIMEOUT
        )
    finally:
        thread.join()


def set_environment(rank: Rank) -> None:
    os.environ |= {
        "MASTER_ADDR": rank.host,
        "MASTER_PORT": str(rank.free_port),
        "RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.size),
    }


def nothing(rank: Rank) -> None:
    """Nothing to prepare."""


# Name: what blocks all ranks but the last, what goes before, whether groups are there before.
SCENARIOS: dict[str, tuple[Callable[[Rank], None], Callable[[Rank], None], bool]] = {
    "all_reduce": (all_reduce, nothing, True),
    "broadcast": (broadcast, nothing, True),
    "barrier": (barrier, nothing, True),
    "monitored_barrier": (monitored_barrier, nothing, True),
    "send": (send, nothing, True),
    "recv": (recv, nothing, True),
    "irecv": (irecv, nothing, True),
    "sub_group": (sub_group, prepare_sub_group, True),
    "all_gather_object": (all_gather_object, nothing, True),
    "ddp_backward": (ddp_backward, prepare_ddp, True),
    "new_group": (new_group, nothing, True),
    "init": (init, nothing, False),
    "accept": (accept, nothing, False),
    "init_env": (init_env, set_environment, False),
    "init_env_without_server": (init_env, set_environment, False),
}


def run_round(rank: Rank, scenario: str) -> dict[str, float]:
    """Block, abort, make groups anew, check the first sum; return durations in seconds."""
    block, prepare, with_group = SCENARIOS[scenario]
    times: dict[str, float] = {}
    entered = threading.Event()
    main = threading.get_native_id()

    def abort() -> None:
        entered.wait(60)
        if not rank.absent:
            await_blocked(main)
        rank.everybody()
        times["abort"] = time.monotonic()
        AbortTorchDistributed()(State(rank.rank, rank.size).freeze())
        times["aborted"] = time.monotonic()

    aborter = threading.Thread(target=abort)
    with creation.watch(f"{scenario}/{rank.round}"):
        if with_group:
            rank.init()
        prepare(rank)
        aborter.start()
        entered.set()
        if not rank.absent:
            try:
                block(rank)
            except Exception as error:  # what it is depends on the backend
                times["unblocked"] = time.monotonic()
                if os.environ.get("JOB_VERBOSE"):
                    print(rank.rank, type(error), str(error)[:100], file=sys.stderr)
            else:
                raise AssertionError(f"{scenario} was not aborted")
        aborter.join(60)
        assert not aborter.is_alive(), "the abort hangs"
    times.setdefault("unblocked", times["abort"])
    rank.groups = []
    rank.round += 1
    assert not dist.is_initialized()
    with creation.watch(f"{scenario}/{rank.round}"):
        rank.init()
        tensor = torch.full((4,), float(rank.rank + 1))
        dist.all_reduce(tensor)
        times["again"] = time.monotonic()
        assert tensor.tolist() == [rank.size * (rank.size + 1) / 2] * 4, tensor
        dist.destroy_process_group()
    rank.check_untouched()
    rank.everybody()
    rank.round += 1
    start = times["abort"]
    return {name: times[name] - start for name in ("unblocked", "aborted", "again")}


def await_blocked(tid: int) -> None:
    """Return when a thread of this process waits in the kernel, for the third look in a row."""
    deadline = time.monotonic() + 60
    looks = 0
    pause = threading.Event()
    while looks < 3 and time.monotonic() < deadline:
        call = Path(f"/proc/self/task/{tid}/syscall").read_text()
        looks = 0 if call.startswith("running") else looks + 1
        pause.wait(0.005)


def resources() -> dict[str, int]:
    import gc

    gc.collect()
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "fds": len(os.listdir("/proc/self/fd")),
    }


def run_rank(
    number: int, request: dict[str, Any], listener: socket.socket, meeting: Barrier
) -> dict[str, Any]:
    os.environ.update(request.get("environment", {}))
    rank = Rank(number, request["ranks"], listener, request.get("host", "127.0.0.1"), meeting)
    rank.free_port = request["free_port"]
    if request["scenario"] == "init_env_without_server":
        rank.absent = number == 0
    rounds = []
    before: dict[str, int] = {}
    for _ in range(request.get("rounds", 1)):
        rounds.append(run_round(rank, request["scenario"]))
        before = before or resources()
    after = resources()
    rank.everybody()  # rank 0 serves the store until then
    return {"rounds": rounds, "before": before, "after": after}


def run_job(request: dict[str, Any]) -> dict[str, Any]:
    """Fork the ranks; return what each has said, or how it ended."""
    host = request.get("host", "127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server(
        (host if family == socket.AF_INET6 else "", 0), family=family, backlog=128
    )
    with socket.create_server((host, 0), family=family) as other:
        request["free_port"] = other.getsockname()[1]
    meeting = multiprocessing.get_context("fork").Barrier(request["ranks"])
    pipes = []
    for number in range(request["ranks"]):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            run_child(number, request, listener, writer, meeting)
        os.close(writer)
        pipes.append((pid, reader))
    listener.close()
    results = []
    for pid, reader in pipes:
        with os.fdopen(reader) as stream:
            text = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        results.append(json.loads(text) if text else {"error": f"ended with {status}"})
    return {"ranks": results}


def run_child(
    number: int, request: dict[str, Any], listener: socket.socket, writer: int, meeting: Barrier
) -> None:
    import faulthandler
    import traceback

    faulthandler.dump_traceback_later(request.get("limit", 90), exit=True)
    try:
        said = run_rank(number, request, listener, meeting)
    except BaseException:
        said = {"error": traceback.format_exc()}
    with os.fdopen(writer, "w") as stream:
        json.dump(said, stream)
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(run_job(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
