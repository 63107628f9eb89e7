"""Real ranks over gloo, one of them at fault, and the recordings they leave.

``python -m tests.attribution.flight.injector KIND RANKS CULPRIT DIRECTORY`` makes one set of dumps,
`rank_N.json` as our writer makes them and `torch_N` as torch does. Without arguments it makes each
kind with 4 and 8 ranks and each culprit, analyses all, and prints how many are right.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

# What the analysis is to say, and whether the culprit can leave a dump.
KINDS = {
    "kill": ("no_dump", False),
    "stop": ("no_dump", False),
    "gil": ("no_dump", False),
    "raise": ("host_lag", True),
    "sleep": ("host_lag", True),
    "shape": ("mismatch", True),
    "skip": ("mismatch", True),
    "order": ("mismatch", True),
    "other": ("mismatch", True),
    "pipeline": ("host_lag", True),
    "batched": ("host_lag", True),
    # Dumps of ranks that have left what they waited in, as the timeout of the group has passed.
    "late": ("host_lag", True),
    "late other": ("mismatch", True),
    "late skip": ("mismatch", True),
}
_TIMEOUT_S = 0.5  # for the late ones
_LATE_S = 2.0
STEPS = 6
FAULT_AT = 4
SETTLED_S = 1.0
DEADLINE_S = 60.0


def make(kind: str, size: int, culprit: int, directory: Path) -> None:
    """Run one job until it has stopped moving, and leave the dumps of its ranks."""
    import torch.distributed  # noqa: F401 - once, before ranks are forked

    ranks = [_start(kind, rank, size, culprit, directory) for rank in range(size)]
    deadline = time.monotonic() + DEADLINE_S
    silent = set() if KINDS[kind][1] else {culprit}
    try:
        ready = [ranks[culprit][1]]
        assert select.select(ready, [], [], DEADLINE_S)[0], "the fault did not come"
        ready[0].recv(1)
        seen, since = None, time.monotonic()
        while time.monotonic() - since < SETTLED_S and time.monotonic() < deadline:
            now = _ask(ranks, silent, directory)
            if now != seen:
                seen, since = now, time.monotonic()
    finally:
        for pid, link in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            link.close()


def _ask(ranks, silent: set[int], directory: Path) -> list[object]:
    asked = []
    for rank, (_, link) in enumerate(ranks):
        if rank not in silent:
            try:
                link.send(b"?")
                asked.append((rank, link))
            except OSError:
                silent.add(rank)
    said: list[object] = []
    for rank, link in asked:
        answer = b""
        with contextlib.suppress(OSError):
            answer = link.recv(1) if select.select([link], [], [], 10.0)[0] else b""
        if not answer:  # it ended
            silent.add(rank)
            continue
        found = json.loads((directory / f"rank_{rank}.json").read_bytes())
        last = [(one["collective_seq_id"], one["retired"]) for one in found["entries"]]
        said.append((rank, last, found["waits"]))
    return said


def _start(kind: str, rank: int, size: int, culprit: int, directory: Path):
    mine, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, mine
    mine.close()
    try:
        with (directory / f"log_{rank}").open("w") as log:
            os.dup2(log.fileno(), 2)
            os.dup2(log.fileno(), 1)
        _rank(kind, rank, size, culprit, directory, theirs)
    finally:
        os._exit(1)


def _rank(kind: str, rank: int, size: int, culprit: int, directory: Path, link) -> None:
    import torch
    import torch.distributed as dist

    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    store = dist.FileStore(str(directory / "store"), size)
    late = kind.startswith("late")
    timeout = timedelta(seconds=_TIMEOUT_S) if late else None
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    pairs = [dist.new_group([one, one + 1], timeout) for one in range(0, size, 2)]
    columns = [
        dist.new_group(list(range(one, size, 2)), timeout, group_desc="DATA") for one in (0, 1)
    ]
    pair, column = pairs[rank // 2], columns[rank % 2]
    dist.barrier()
    threading.Thread(target=_serve, args=(rank, directory, link), daemon=True).start()
    try:
        for step in range(STEPS):
            fault = kind if rank == culprit and step == FAULT_AT else ""
            if late and fault:
                fault = kind.partition(" ")[2]
                threading.Event().wait(0.0 if fault else _LATE_S)
            if kind in {"pipeline", "batched"}:
                _pipeline(dist, torch, rank, size, fault, link)
            else:
                _step(dist, torch, pair, column, fault, None if late else link)
        dist.barrier()
    except (RuntimeError, ValueError) as error:
        print(repr(error), flush=True)
    if late and rank == culprit:
        link.send(b"!")
    _forever()


def _step(dist, torch, pair, column, fault: str, link) -> None:
    if link is not None:
        _fault(fault, link)
    groups = [(pair, 8), (column, 16), (None, 64 if fault == "shape" else 4)]
    if fault == "order":
        groups.reverse()
    if fault == "skip":
        groups.pop()
    for group, elements in groups:
        if fault == "other" and group is None:
            dist.broadcast(torch.ones(elements), src=0)
        else:
            dist.all_reduce(torch.ones(elements), group=group)


def _pipeline(dist, torch, rank: int, size: int, fault: str, link) -> None:
    """Activations go up, gradients come back, then all meet."""
    data = torch.ones(4)
    if rank > 0:
        _move(dist, dist.irecv if fault == "batched" else None, data, rank - 1, receive=True)
    _fault(fault and "sleep", link)
    if rank < size - 1:
        _move(dist, None, data, rank + 1, receive=False)
        work = dist.irecv(data, rank + 1)
        work.wait()
    if rank > 0:
        _move(dist, None, data, rank - 1, receive=False)
    dist.all_reduce(data)


def _move(dist, way, data, peer: int, *, receive: bool) -> None:
    if way is not None:
        work = way(data, peer)
        work.wait()
    elif receive:
        dist.recv(data, peer)
    else:
        dist.send(data, peer)


def _fault(fault: str, link) -> None:
    if not fault:
        return
    link.send(b"!")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "gil":
        ctypes.PyDLL(None).pause()
    elif fault == "raise":
        raise ValueError("injected")
    elif fault == "sleep":
        _forever()


def _forever() -> None:
    threading.Event().wait()


def _serve(rank: int, directory: Path, link) -> None:
    import torch

    from undaunted.attribution.flight import recorder

    while link.recv(1):
        raw = torch._C._distributed_c10d._dump_fr_trace(True, False, False)
        _write(directory / f"torch_{rank}", raw)
        found = recorder.dump()
        _write(directory / f"rank_{rank}.json", json.dumps(found).encode())
        link.send(b".")
    os._exit(0)


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}")
    new.write_bytes(data)
    new.rename(path)


def matrix() -> int:
    """Run everything; return the number of wrong answers."""
    wrong = total = 0
    for kind in KINDS:
        for size in (4, 8):
            right = 0
            for culprit in range(size):
                with tempfile.TemporaryDirectory() as name:
                    pid = os.fork()  # a job after another in one process would share gloo's state
                    if not pid:
                        make(kind, size, culprit, Path(name))
                        os._exit(0)
                    os.waitpid(pid, 0)
                    said = judge(Path(name), size)
                right += said == [(culprit, KINDS[kind][0])]
                if said != [(culprit, KINDS[kind][0])]:
                    print(f"  {kind}, {size} ranks, culprit {culprit}: {said}", flush=True)
            print(f"{kind:10} {size} ranks: {right} of {size} right", flush=True)
            wrong, total = wrong + size - right, total + size
    print(f"{total - wrong} of {total} right")
    return wrong


def judge(directory: Path, size: int) -> list[tuple[int, str]]:
    from undaunted.attribution.flight.culprits import analyse
    from undaunted.attribution.flight.files import read_files

    dumps = read_files(sorted(directory.glob("rank_*.json")))
    return [(one.rank, one.cause) for one in analyse(dumps.recordings, size).culprits]


if __name__ == "__main__":
    if sys.argv[1:]:
        make(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        sys.exit(min(1, matrix()))
