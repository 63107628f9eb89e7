"""The first messages between a rank and the guard that serves it alone.

Blocking, on a Unix socket: frames of a 4-byte big-endian length and MessagePack. The messages of
`undaunted.inprocess.core.messages` follow on the same socket.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.coordinator.wire import frames
from undaunted.inprocess.core.messages import Limits

if TYPE_CHECKING:
    import socket

LONGEST = 64 * 1024  # bytes of a frame


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """From a rank to its guard: all that the guard needs.

    Attributes:
        job_rank: of this rank.
        world_size: how many ranks the job has.
        hosts: the controller is to run in this guard.
        address: ``HOST:PORT``, or ``@NAME`` of an abstract Unix socket, where the controller
            listens; "" = it does not, as there is no other guard.
        run: names the job; guards of other jobs are refused.
        token: shared secret of the job's guards, b"" = there is none.
        heartbeat_interval_s: as given to `Wrapper`, seconds.
        limits: of the first call.
        logfile: where the guard writes its lines, "" = nowhere.
        pidfile: where it writes its pid, "" = nowhere.
        append_pid: ``pidfile`` is shared with other guards.
    """

    job_rank: int
    world_size: int
    hosts: bool
    address: str = ""
    run: str = ""
    token: bytes = b""
    heartbeat_interval_s: float = 1.0
    limits: Limits = Limits()
    logfile: str = ""
    pidfile: str = ""
    append_pid: bool = False


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The guard serves.

    Attributes:
        pid: of the guard.
        port: that the controller listens at, 0 = it does not.
    """

    pid: int
    port: int = 0


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The guard cannot serve; ``text`` says why, and what to do."""

    text: str


Answer = Ready | Refused


def send(sock: socket.socket, message: msgspec.Struct) -> None:
    """Send a message.

    Raises:
        OSError: the other side is gone.
    """
    sock.sendall(frames.encode(msgspec.msgpack.encode(message)))


def receive(sock: socket.socket, kind: Any, deadline: float | None = None) -> Any:
    """Return the next message, of type ``kind``; None = the other side is gone.

    Args:
        sock: blocking; its timeout is changed.
        kind: type of the message, or a union of tagged ones.
        deadline: of the monotonic clock, seconds; None = the other side's end.

    Raises:
        TimeoutError: nothing has come in time.
        OSError: the socket cannot be read.
        ValueError: something has come that is no such message.
    """
    head = _exactly(sock, 4, deadline)
    if head is None:
        return None
    length = int.from_bytes(head, "big")
    if length > LONGEST:
        raise ValueError(f"a frame of {length} bytes")
    content = _exactly(sock, length, deadline)
    if content is None:
        return None
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def _exactly(sock: socket.socket, count: int, deadline: float | None) -> bytes | None:
    """Read exactly ``count`` bytes, as later ones have another reader; None = the other's end."""
    content = b""
    while len(content) < count:
        if deadline is not None:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
        part = sock.recv(count - len(content))
        if not part:
            return None
        content += part
    return content
