"""Messages between processes of a node: JSON behind four bytes of length, never pickle.

A message is what JSON holds, `WorkloadControlRequest` and `RankInfo`; tuples arrive as lists.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import time
from typing import TYPE_CHECKING, Any

from undaunted.fault_tolerance.data import RankInfo, WorkloadAction, WorkloadControlRequest

if TYPE_CHECKING:
    import socket

MOST_BYTES = 1 << 20
HEADER = struct.Struct(">I")
_KIND = "__undaunted__"


def encode(message: object) -> bytes:
    """Return a message with its length in front.

    Raises:
        TypeError: it holds what JSON does not.
        ValueError: it is longer than 1 MiB.
    """
    body = json.dumps(message, default=_plain).encode()
    if len(body) > MOST_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is too long, {MOST_BYTES} is the most")
    return HEADER.pack(len(body)) + body


def length(header: bytes) -> int:
    """Return how many bytes of a message follow its header.

    Raises:
        ValueError: more than any message has.
    """
    (size,) = HEADER.unpack(header)
    if size > MOST_BYTES:
        raise ValueError(f"a message of {size} bytes was announced, {MOST_BYTES} is the most")
    return int(size)


def decode(body: bytes) -> Any:
    """Return the message behind a header.

    Raises:
        ValueError: it is none.
    """
    try:
        return json.loads(body, object_hook=_object)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"not a message: {body[:100]!r}") from None


def receive_all(sock: socket.socket, count: int, deadline: float | None = None) -> bytes:
    """Return exactly ``count`` bytes; fewer only at the end of the connection.

    Args:
        sock: the connection.
        count: how many.
        deadline: of ``time.monotonic()``, for all of them; None = the socket's timeout for each
            piece.

    Raises:
        OSError: the connection has broken, or it took too long.
    """
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError("the message did not come in time")
            sock.settimeout(left)
        if not (part := sock.recv(count - len(parts))):
            break
        parts += part
    return bytes(parts)


def receive(sock: socket.socket, timeout_s: float | None = None) -> Any:
    """Read one message.

    Args:
        sock: the connection.
        timeout_s: for all of it; None = the socket's timeout for each piece.

    Raises:
        EOFError: the connection has ended.
        ValueError: it is no message.
        OSError: the connection has broken, or it took too long.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    header = receive_all(sock, HEADER.size, deadline)
    if len(header) < HEADER.size:
        raise EOFError("the connection has ended")
    size = length(header)
    body = receive_all(sock, size, deadline)
    if len(body) < size:
        raise EOFError("the connection has ended within a message")
    return decode(body)


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, WorkloadControlRequest):
        return {_KIND: "request", "action": value.action.name, "description": value.description}
    if isinstance(value, RankInfo):
        return {_KIND: "rank", **dataclasses.asdict(value)}
    raise TypeError(f"{value!r} cannot be sent to another process: JSON does not hold it")


def _object(found: dict[str, Any]) -> Any:
    kind = found.pop(_KIND, None)
    if kind == "request":
        return WorkloadControlRequest(WorkloadAction[found["action"]], str(found["description"]))
    return RankInfo(**found) if kind == "rank" else found
