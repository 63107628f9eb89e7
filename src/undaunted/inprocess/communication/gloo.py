"""Aborting collectives of gloo, which has no call for it: its connections are shut down.

Every group of gloo has one event loop, a thread that watches the group's listening
socket, its connections to peers, and nothing else. The loops lead to the connections, whenever and
however these were made, and to no other connection of the process. For a thread that waits in
``epoll_wait``, ``/proc/self/task/TID/syscall`` has the epoll descriptor, and
``/proc/self/fdinfo/FD`` the descriptors that it watches. No thread is stopped or traced.

Connections are shut down for reading only. A loop may be about to send data that a peer has asked
for: if writing failed, the data would be lost, and a thread that waits for it would wait for ever.
For the same reason no peer may see the end of a connection before it has aborted, too. gloo closes
its connections when they fail; duplicates keep them open until `release`.

A listening socket must never be shut down: gloo's loop would end the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import socket
import struct
import time
from typing import TYPE_CHECKING

from undaunted.base import open_sockets
from undaunted.base.open_sockets import Descriptor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_log = logging.getLogger("undaunted")

_LOOP_NAME = "gloo_tcp_loop"
_PATIENCE_S = 0.02
_MAX_SWEEPS = 10
_MAX_VISITS = 4096
_VISIT_TIMEOUT_S = 1.0


# Ended connections that stay open. Used by one abort after the other.
_kept: list[socket.socket] = []


def abort() -> None:
    """End all connections of all groups: waiting for a peer raises an error, now and later.

    Peers notice nothing until `release`; each of them has to abort by itself.
    """
    ended: set[open_sockets.Descriptor] = set()
    for _ in range(_MAX_SWEEPS):  # a connection may have been made meanwhile
        fresh = {one for loop in find_loops() for one in loop if one not in ended}
        shut = {one for one in fresh if _end(one)}
        if not shut:
            break
        ended |= shut


def release() -> None:
    """Close the connections that were ended: all peers have aborted, or are gone."""
    while _kept:
        _kept.pop().close()


def _end(descriptor: open_sockets.Descriptor) -> bool:
    """Shut down a connection and keep a duplicate; False = it is no connection."""
    while True:
        try:
            kept = open_sockets.end_reading(descriptor)
        except OSError:  # too many descriptors
            if not _kept:
                raise
            _kept.pop(0).close()
            continue
        if kept is not None:
            _kept.append(kept)
        return kept is not None


def connects_late() -> bool:
    """Return whether groups connect when they are first used, and not when they are made."""
    return os.environ.get("TORCH_GLOO_LAZY_INIT", "") not in ("", "0")


def visit(group_size: int, timeout_s: float = _VISIT_TIMEOUT_S) -> None:
    """Make groups fail that wait for peers to connect, by connecting in the peers' place.

    A group that is being made waits without limit for peers to connect to it; there is no
    connection yet that could be shut down. A peer sends one number, its rank. This function
    connects as every peer and closes at once, and the group fails.

    Args:
        group_size: of the largest group that is being made; bounded to 4096.
        timeout_s: when to stop.
    """
    deadline = time.monotonic() + timeout_s
    for loop in find_loops():
        for descriptor in loop:
            address = open_sockets.listening_address(descriptor)
            if address is not None:
                _visit(address, min(group_size, _MAX_VISITS), deadline)


def find_loops() -> list[list[open_sockets.Descriptor]]:
    """Return the descriptors that each event loop of gloo watches.

    A loop's wait in the kernel has its epoll descriptor. A loop that does not wait at the moment,
    or whose thread has no name, is recognised by the kind of descriptors that it watches.
    """
    names = thread_names()
    named = [tid for tid, name in names.items() if name == _LOOP_NAME]
    seen = waits(named, _PATIENCE_S)
    loops = [watched(epoll_fd) for epoll_fd in seen.values()]
    if named and len(seen) == len(named):
        return loops
    others = waits(names.keys() - named) if named else {}
    loops += _find_by_looks({*seen.values(), *others.values()})
    missed = len(thread_names().keys() & named) - len(loops)
    if missed > 0:
        _log.warning(
            "%d of %d event loops of gloo cannot be looked at: collectives of their groups are "
            "not aborted",
            missed,
            len(named),
        )
    return loops


def _find_by_looks(known: Collection[int]) -> list[list[open_sockets.Descriptor]]:
    """Return the loops of epoll descriptors that are not known yet and look like those of gloo."""
    loops = (watched(fd) for fd in epoll_descriptors() if fd not in known)
    return [loop for loop in loops if _is_of_gloo(loop)]


def _is_of_gloo(loop: list[open_sockets.Descriptor]) -> bool:
    """Return whether a loop watches the same as gloo's: one listening socket, TCP, a pipe."""
    listening = [one for one in loop if open_sockets.listening_address(one) is not None]
    return len(listening) == 1 and all(open_sockets.is_tcp_or_pipe(one) for one in loop)


def _visit(address: tuple[str, int], peers: int, deadline: float) -> None:
    for number in range(peers):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return
        with (
            contextlib.suppress(OSError),
            socket.create_connection(address, timeout=left_s) as connection,
        ):
            connection.sendall(struct.pack("=q", number))


# Numbers of epoll_wait, epoll_pwait and epoll_pwait2.
_CALLS = {
    "x86_64": frozenset({232, 281, 441}),
    "aarch64": frozenset({22, 441}),
    "riscv64": frozenset({22, 441}),
    "ppc64le": frozenset({238, 303, 441}),
    "s390x": frozenset({251, 312, 441}),
}
_TASKS = "/proc/self/task"


def thread_names() -> dict[int, str]:
    """Return the threads of this process, the youngest first: id and name in the kernel."""
    tids = reversed(os.listdir(_TASKS))
    names = {int(tid): _read(f"{_TASKS}/{tid}/comm").rstrip("\n") for tid in tids}
    return {tid: name for tid, name in names.items() if name}


def waits(tids: Iterable[int], patience_s: float = 0.0) -> dict[int, int]:
    """Return the epoll descriptor on which each thread waits; without threads that do not wait.

    Args:
        tids: ids of the threads.
        patience_s: for how long to look again at threads that do not wait.
    """
    found: dict[int, int] = {}
    todo = list(tids)
    deadline = time.monotonic() + patience_s
    while True:
        calls = {tid: _read(f"{_TASKS}/{tid}/syscall") for tid in todo}
        found |= {tid: fd for tid, call in calls.items() if (fd := parse_wait(call)) is not None}
        todo = [tid for tid, call in calls.items() if call and tid not in found]
        if not todo or time.monotonic() >= deadline:
            return found
        os.sched_yield()


def parse_wait(call: str, machine: str = platform.machine()) -> int | None:
    """Parse a line of ``/proc/self/task/TID/syscall``; None = it is no epoll wait.

    The line holds the number of the call, six arguments in hexadecimal, stack and code pointer; or
    it says ``running``.
    """
    words = call.split()
    if len(words) < 2 or not words[0].isdigit() or int(words[0]) not in _CALLS.get(machine, ()):
        return None
    return int(words[1], 16)


def epoll_descriptors() -> list[int]:
    """Return the epoll descriptors of this process."""
    return [int(fd) for fd in os.listdir("/proc/self/fd") if _is_epoll(fd)]


def _is_epoll(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventpoll]"
    except OSError:  # closed meanwhile
        return False


def watched(epoll_fd: int) -> list[Descriptor]:
    """Return the descriptors that an epoll descriptor watches; none if it is closed."""
    return parse_watched(_read(f"/proc/self/fdinfo/{epoll_fd}"))


def parse_watched(text: str) -> list[Descriptor]:
    """Parse ``/proc/self/fdinfo/FD`` of an epoll descriptor."""
    found = []
    for line in text.splitlines():
        words = line.split()
        inode = next((word[4:] for word in words if word.startswith("ino:") and word[4:]), None)
        if words and words[0] == "tfd:" and inode is not None:
            found.append(Descriptor(int(words[1]), int(inode, 16)))
    return found


def _read(path: str) -> str:
    try:
        # pathlib would intern the name
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:  # the thread has ended, or the kernel does not allow it
        return ""
