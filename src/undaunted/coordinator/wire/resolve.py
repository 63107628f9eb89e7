"""From names to numbers, with a deadline: a name server may be away."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.coordinator.wire.address import UNIX

if TYPE_CHECKING:
    from undaunted.coordinator.wire.address import Address

# Threads that wait for a name server. One that never answers must not gather more and more.
_threads = threading.BoundedSemaphore(16)


class Place(NamedTuple):
    """A numeric address.

    Attributes:
        family: ``AF_INET``, ``AF_INET6`` or ``AF_UNIX``.
        sockaddr: as `socket` takes it.
    """

    family: socket.AddressFamily
    sockaddr: Any


async def resolve(address: Address, timeout_s: float, *, passive: bool = False) -> list[Place]:
    """Return the numeric addresses of ``address``, at least one, the preferred one first.

    A name is looked up in a daemon thread, which is left behind when time runs out.

    Args:
        address: name or number.
        timeout_s: longest wait, seconds.
        passive: to listen there; an empty host means all interfaces.

    Raises:
        OSError: there is none, or it was not found in time.
    """
    if address.is_unix:
        return [Place(socket.AF_UNIX, "\0" + address.host.removeprefix(UNIX))]
    with contextlib.suppress(OSError, UnicodeError):
        return _look_up(address, passive=passive, numeric=True)
    if not _threads.acquire(blocking=False):
        raise OSError(f"the name {address.host} is not looked up: too many others still are")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Place]] = loop.create_future()

    def settle(places: list[Place] | Exception) -> None:
        if answer.done():
            return
        if isinstance(places, Exception):
            answer.set_exception(places)
        else:
            answer.set_result(places)

    def run() -> None:
        try:
            places: list[Place] | Exception = _look_up(address, passive=passive)
        except OSError as error:
            places = OSError(f"the name {address.host} cannot be looked up: {error.strerror}")
        except UnicodeError:
            places = OSError(f"{address.host!r} cannot be the name of a machine")
        finally:
            _threads.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed, nobody waits any more
            loop.call_soon_threadsafe(settle, places)

    threading.Thread(target=run, name="undaunted-resolve", daemon=True).start()
    try:
        await asyncio.wait({answer}, timeout=timeout_s)
        if answer.done():
            return answer.result()
    finally:
        answer.cancel()
    raise OSError(f"the name {address.host} was not looked up in time")


def _look_up(address: Address, *, passive: bool, numeric: bool = False) -> list[Place]:
    flags = (socket.AI_PASSIVE if passive else 0) | (socket.AI_NUMERICHOST if numeric else 0)
    found = socket.getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=flags
    )
    return list(dict.fromkeys(Place(family, sockaddr) for family, _, _, _, sockaddr in found))
