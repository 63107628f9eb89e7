"""Aborting collectives of gloo, which has no call for it: its connections are shut down.

Every group of gloo has one event loop, a thread of its own that watches the group's listening
socket, its connections to peers, and nothing else. So the connections are found when they are to
be ended, by the loops that watch them, however and whenever groups and connections were made. No
other connection of the process is in such a loop.

Only for reading: a send that the loop begins for a peer which has asked for it, and that fails
because the connection cannot be written to, is lost; who waits for it is never told. For the same
reason no peer may see the end of a connection before it has aborted, too. gloo closes its
connections when they fail; duplicates keep them open until `release`.

A listening socket must never be shut down: gloo's loop would end the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import time
from typing import TYPE_CHECKING

from undaunted.inprocess.communication import event_loops, sockets

if TYPE_CHECKING:
    from collections.abc import Collection

_log = logging.getLogger("nvrx")

_LOOP_NAME = "gloo_tcp_loop"
_PATIENCE_S = 0.02
_MAX_SWEEPS = 10
_MAX_VISITS = 4096
_VISIT_TIMEOUT_S = 1.0


# Ended connections that stay open. Used by one abort after the other.
_kept: list[socket.socket] = []


def abort() -> None:
    """End all connections of all groups: who waits for a peer gets an error, now and later.

    Peers are told nothing until `release`; each of them has to abort by itself.
    """
    ended: set[sockets.Descriptor] = set()
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


def _end(descriptor: sockets.Descriptor) -> bool:
    """End a connection and keep it open; return whether it was one."""
    while True:
        try:
            kept = sockets.end_reading(descriptor)
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
    """Put an end to groups that wait for peers to connect, by connecting in their place.

    A group that is being made waits for those peers that connect to it, without a limit, and has
    no connection for this that could be shut down. A peer says by one number which one it is. Who
    comes here goes at once, and the group fails.

    Args:
        group_size: of the largest group that is being made; bounded to 4096.
        timeout_s: when to stop.
    """
    deadline = time.monotonic() + timeout_s
    for loop in find_loops():
        for descriptor in loop:
            address = sockets.listening_address(descriptor)
            if address is not None:
                _visit(address, min(group_size, _MAX_VISITS), deadline)


def find_loops() -> list[list[sockets.Descriptor]]:
    """Return what each event loop of gloo watches.

    A loop says by its wait in the kernel where it watches. One that does something else, or has to
    wait for a processor, and one whose thread has no name, is known by what it watches.
    """
    names = event_loops.thread_names()
    named = [tid for tid, name in names.items() if name == _LOOP_NAME]
    seen = event_loops.waits(named, _PATIENCE_S)
    loops = [event_loops.watched(epoll_fd) for epoll_fd in seen.values()]
    if named and len(seen) == len(named):
        return loops
    others = event_loops.waits(names.keys() - named) if named else {}
    loops += _find_by_looks({*seen.values(), *others.values()})
    missed = len(event_loops.thread_names().keys() & named) - len(loops)
    if missed > 0:
        _log.warning(
            "%d of %d event loops of gloo cannot be looked at: collectives of their groups are "
            "not aborted",
            missed,
            len(named),
        )
    return loops


def _find_by_looks(known: Collection[int]) -> list[list[sockets.Descriptor]]:
    """Return what epoll descriptors watch that may be gloo's; those that are known are left out."""
    loops = (event_loops.watched(fd) for fd in event_loops.epoll_descriptors() if fd not in known)
    return [loop for loop in loops if _is_of_gloo(loop)]


def _is_of_gloo(loop: list[sockets.Descriptor]) -> bool:
    """Return whether a loop watches what gloo's do: one listening socket, TCP, a pipe."""
    listening = [one for one in loop if sockets.listening_address(one) is not None]
    return len(listening) == 1 and all(sockets.is_tcp_or_pipe(one) for one in loop)


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
