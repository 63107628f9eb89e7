"""Aborting collectives of gloo, which has no call for it: its connections are shut down.

Every group of gloo has one event loop, a thread of its own that watches the group's listening
socket, its connections to peers, and nothing else. So the connections are found when they are to
be ended, by the loops that watch them, however and whenever groups and connections were made. No
other connection of the process is in such a loop.

A listening socket must never be shut down: gloo's loop would end the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import time

from undaunted.inprocess.communication import event_loops, sockets

_log = logging.getLogger("nvrx")

_LOOP_NAME = "gloo_tcp_loop"
# Builds that do not name their threads: how a loop of gloo calls epoll_wait.
_LOOP_MAX_EVENTS = 64
_LOOP_TIMEOUT_MS = 10
_PATIENCE_S = 0.2
_PATIENCE_UNNAMED_S = 0.02  # always taken in full: most threads are no event loops
_MAX_SWEEPS = 10
_MAX_VISITS = 4096
_VISIT_TIMEOUT_S = 1.0


def abort() -> None:
    """End all connections of all groups: who waits for a peer gets an error, now and later."""
    ended: set[sockets.Descriptor] = set()
    for _ in range(_MAX_SWEEPS):  # a connection may have been made meanwhile
        fresh = {one for loop in find_loops() for one in loop if one not in ended}
        shut = {one for one in fresh if sockets.shut_down(one)}
        if not shut:
            break
        ended |= shut


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
    """Return what each event loop of gloo watches, the youngest loop first."""
    names = event_loops.thread_names()
    named = [tid for tid, name in names.items() if name == _LOOP_NAME]
    if named:
        found = event_loops.waits(named, _PATIENCE_S)
        missed = (set(named) - found.keys()) & event_loops.thread_names().keys()
        if missed:
            _log.warning(
                "%d of %d event loops of gloo cannot be looked at: collectives of their groups are "
                "not aborted",
                len(missed),
                len(named),
            )
        return [event_loops.watched(wait.epoll_fd) for wait in found.values()]
    loops = (
        event_loops.watched(wait.epoll_fd)
        for wait in event_loops.waits(names, _PATIENCE_UNNAMED_S).values()
        if (wait.max_events, wait.timeout_ms) == (_LOOP_MAX_EVENTS, _LOOP_TIMEOUT_MS)
    )
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
