"""Ranks of the infrastructure, processes, and messages on sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import time
import traceback
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvidia_resiliency_ext._ending import end
from nvidia_resiliency_ext.fault_tolerance import _ipc_messages as ipc_messages
from undaunted.base.ids import node_name
from undaunted.base.process import ENDED, open_pidfd, read_stat, state, wait_pidfd
from undaunted.base.text import format_ranks
from undaunted.fault_tolerance.data import knows_rank, who_am_i
from undaunted.fault_tolerance.topology import infrastructure_rank

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Generator, Iterable
    from types import TracebackType

_FROM_NODENAME = "NVRX_INFRA_RANK_FROM_NODENAME"
_STATUS = {"R": "running", "S": "sleeping", "D": "disk-sleep", "T": "stopped", "t": "tracing-stop"}
_STOP_S = 1.0  # for helpers of multiprocessing, some of which ignore SIGTERM


def get_infrastructure_rank(skip_nodename_logic: bool = False) -> int:
    """Return this node's place in the order that the scheduler gives its nodes, -1 = not known.

    See `undaunted.fault_tolerance.topology.infrastructure_rank` for what says it.

    Args:
        skip_nodename_logic: leave out what reads names of nodes.

    Raises:
        ValueError: a variable that applies makes no sense, or names of nodes were asked for
            and there is none.
        RuntimeError: in a job of Slurm, a variable is missing that it sets for each task.
    """
    asked = not skip_nodename_logic and os.environ.get(_FROM_NODENAME)
    if asked and not os.environ.get("SLURMD_NODENAME"):
        raise ValueError(f"{_FROM_NODENAME} is set, but SLURMD_NODENAME is not")
    found = infrastructure_rank(os.environ, skip_nodename_logic=skip_nodename_logic)
    return -1 if found is None else found


def get_log_aggregator_shard_index(num_shards: int) -> int:
    """Return which of so many servers of logs this node belongs to; undaunted itself has one.

    Args:
        num_shards: how many there are.

    Raises:
        ValueError: there is none.
    """
    if num_shards < 1:
        raise ValueError(f"num_shards is {num_shards}: there has to be one at least")
    return zlib.crc32(node_name(os.environ).encode()) % num_shards


def is_slurm_job_array() -> bool:
    """Return whether this is a task of a job array of Slurm."""
    return os.environ.get("SLURM_ARRAY_TASK_ID") is not None


def get_rank() -> int | None:
    """Return the global rank of this process; None = nothing says it."""
    return who_am_i().global_rank if knows_rank() else None


# --- processes ------------------------------------------------------------------------------------


def is_process_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    return state(pid) not in ENDED


def wait_until_process_terminated(pid: int, timeout: float = 0) -> None:
    """Wait until a process has ended.

    Args:
        pid: of the process.
        timeout: for how long, seconds; 0 = it has to have ended already.

    Raises:
        TimeoutError: it runs on.
    """
    pidfd = open_pidfd(pid)
    if pidfd is None:
        return
    try:
        if not wait_pidfd(pidfd, timeout):
            raise TimeoutError(f"process {pid} still runs after {timeout:g} s")
    finally:
        os.close(pidfd)


def wait_for_mp_events(events: Iterable[Any], timeout: float = 60) -> None:
    """Wait until all events of `multiprocessing` are set.

    Raises:
        RuntimeError: one is not within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    for event in events:
        if not event.wait(max(0.0, deadline - time.monotonic())):
            raise RuntimeError(f"not all events were set within {timeout:g} s")


def get_processes_by_pgids(
    pgids: Collection[int], exclude_launcher: bool = True
) -> list[dict[str, Any]]:
    """Return the processes that run in some process groups.

    Args:
        pgids: of the groups.
        exclude_launcher: leave out this process.

    Returns:
        Of each: ``pid``, ``ppid``, ``pgid``, ``name``, ``status`` in psutil's words, ``cmdline`` as
        text.
    """
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):  # it has ended
            pgid = os.getpgid(pid)
            stat = read_stat(pid)
            if pgid not in pgids or stat is None or stat.state in ENDED:
                continue
            if exclude_launcher and pid == os.getpid():
                continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            found.append(
                {
                    "pid": pid,
                    "ppid": stat.ppid,
                    "pgid": pgid,
                    "name": stat.comm,
                    "status": _STATUS.get(stat.state, "idle"),
                    "cmdline": os.fsdecode(b" ".join(words)),
                }
            )
    return found


def terminate_mp_processes(allowed_ppids: Collection[int], allowed_pgids: Collection[int]) -> None:
    """End what `multiprocessing` has started for workers that are gone: SIGTERM, then SIGKILL.

    `undaunted run` needs no such call: it ends everything that ranks have started.

    Args:
        allowed_ppids: parents of such processes; a process whose parent is gone has 1, or the
            launcher.
        allowed_pgids: process groups of the workers.
    """
    left = get_processes_by_pgids(allowed_pgids)
    end(
        [
            one["pid"]
            for one in left
            if one["ppid"] in allowed_ppids and "multiprocessing" in one["cmdline"]
        ],
        _STOP_S,
    )


def install_exception_handler() -> None:
    """Have an exception that nobody catches end this process at once, with exit code 1.

    Its traceback is written first. KeyboardInterrupt is left to Python.
    """
    sys.excepthook = _leave


def _leave(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, value, trace)
        return
    traceback.print_exception(kind, value, trace)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1)


@contextlib.contextmanager
def patched_method(
    obj: object, method_name: str, new_method: Callable[..., Any]
) -> Generator[None, None, None]:
    """Replace a method of one object within a ``with`` block; ``self`` is not passed to it."""
    own = vars(obj).get(method_name)
    setattr(obj, method_name, new_method)
    try:
        yield
    finally:
        if own is None:
            delattr(obj, method_name)
        else:
            setattr(obj, method_name, own)


# --- messages -------------------------------------------------------------------------------------


def set_ipc_socket_timeouts(fileno: int, timeout: float) -> None:
    """Have each read and write of a socket take ``timeout`` seconds at most."""
    duration = struct.pack("ll", int(timeout), int(timeout % 1 * 1e6))
    with socket.socket(fileno=os.dup(fileno)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, duration)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, duration)


def recv_all(sock: socket.socket, n: int) -> bytes:
    """Return exactly ``n`` bytes; fewer only at the end of the connection."""
    return ipc_messages.receive_all(sock, n)


def read_obj_from_ipc_socket(sock: socket.socket, raise_exc: bool = False) -> Any:
    """Return a message, see `_ipc_messages`; None = there is none.

    Args:
        sock: connected.
        raise_exc: raise what went wrong instead of returning None.
    """
    try:
        return ipc_messages.receive(sock)
    except (OSError, EOFError, ValueError):
        if raise_exc:
            raise
        return None


def write_object_to_ipc_socket(obj: object, sock: socket.socket) -> None:
    """Send a message.

    Raises:
        TypeError: it holds what JSON does not.
    """
    sock.sendall(ipc_messages.encode(obj))


async def read_obj_from_ipc_stream(stream: asyncio.StreamReader) -> Any:
    """Return a message from a stream."""
    size = ipc_messages.length(await stream.readexactly(ipc_messages.HEADER.size))
    return ipc_messages.decode(await stream.readexactly(size))


async def write_obj_to_ipc_stream(obj: object, stream: asyncio.StreamWriter) -> None:
    """Send a message through a stream."""
    stream.write(ipc_messages.encode(obj))
    await stream.drain()


__all__ = [
    "format_ranks",
    "get_processes_by_pgids",
    "get_infrastructure_rank",
    "get_log_aggregator_shard_index",
    "get_rank",
    "install_exception_handler",
    "is_process_alive",
    "is_slurm_job_array",
    "patched_method",
    "read_obj_from_ipc_socket",
    "read_obj_from_ipc_stream",
    "recv_all",
    "set_ipc_socket_timeouts",
    "terminate_mp_processes",
    "wait_for_mp_events",
    "wait_until_process_terminated",
    "write_obj_to_ipc_stream",
    "write_object_to_ipc_socket",
]
