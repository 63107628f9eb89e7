from __future__ import annotations

import asyncio
import errno
import socket
import threading
from typing import Any

import pytest

from tests.coordinator.wire.talk import DEADLINE_S, on_loop
from undaunted.coordinator.wire import sockets as module
from undaunted.coordinator.wire.address import Address
from undaunted.coordinator.wire.sockets import SocketAddress, listen, resolve, tune

IPV4 = SocketAddress(socket.AF_INET, ("127.0.0.1", 0))
IPV6 = SocketAddress(socket.AF_INET6, ("::1", 0, 0, 0))


def close(listeners: list[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_both_families_have_the_same_port() -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    listeners = listen([IPV4, IPV6])
    ports = {listener.getsockname()[1] for listener in listeners}
    close(listeners)
    assert len(listeners) == 2
    assert len(ports) == 1


def test_a_family_that_is_not_there_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._listen_at

    def without_ipv6(place: SocketAddress, port: int) -> socket.socket:
        if place.family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no")
        return real(place, port)

    monkeypatch.setattr(module, "_listen_at", without_ipv6)
    listeners = listen([IPV6, IPV4])
    close(listeners)
    assert len(listeners) == 1
    with pytest.raises(OSError, match="no"):
        listen([IPV6])


def test_another_port_is_tried_where_any_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._listen_at
    asked: list[int] = []

    def first_time_in_use(place: SocketAddress, port: int) -> socket.socket:
        asked.append(port)
        if len(asked) == 2:
            raise OSError(errno.EADDRINUSE, "in use")
        return real(place, port)

    monkeypatch.setattr(module, "_listen_at", first_time_in_use)
    close(listen([IPV4, SocketAddress(socket.AF_INET, ("127.0.0.2", 0))]))
    assert asked[0] == asked[2] == 0
    assert asked[1] > 0
    assert asked[3] > 0


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = SocketAddress(socket.AF_INET, taken.getsockname())
        with pytest.raises(OSError, match="in use"):
            listen([place])


def test_a_port_can_be_listened_at_again_at_once() -> None:
    (first,) = listen([IPV4])
    place = SocketAddress(socket.AF_INET, first.getsockname())
    with socket.create_connection(place.sockaddr) as peer:
        first.setblocking(True)
        accepted, _ = first.accept()
        accepted.close()  # first to close: this side keeps the port in TIME_WAIT
        assert peer.recv(1) == b""
    first.close()
    close(listen([place]))


def test_options_of_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = socket.create_connection(listener.getsockname())
        with sock:
            tune(sock)
            assert not sock.getblocking()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.IPPROTO_TCP, 16), "lost packets are sent again soon"
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000


class NameServer:
    """Stands for `socket.getaddrinfo` of names; numbers go to the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, answers: bool) -> None:
        self.released = threading.Event()
        self.real = socket.getaddrinfo
        if answers:
            self.released.set()
        monkeypatch.setattr(socket, "getaddrinfo", self.answer)

    def answer(self, host: str | None, port: int, **options: Any) -> list[Any]:
        if options["flags"] & socket.AI_NUMERICHOST:
            return self.real(host, port, **options)
        assert self.released.wait(DEADLINE_S)
        if host == "nobody":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.real("127.0.0.1", port, **options) * 2


async def until_no_thread_waits() -> None:
    """All threads of look-ups have ended."""
    for thread in threading.enumerate():
        if thread.name == "undaunted-resolve":
            await asyncio.get_running_loop().run_in_executor(None, thread.join, DEADLINE_S)


@on_loop
async def test_numbers_need_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    NameServer(monkeypatch, answers=False)
    assert await resolve(Address("10.0.0.1", 5), 1) == [
        SocketAddress(socket.AF_INET, ("10.0.0.1", 5))
    ]
    everywhere = await resolve(Address("", 5), 1, passive=True)
    assert SocketAddress(socket.AF_INET, ("0.0.0.0", 5)) in everywhere


@on_loop
async def test_names_are_looked_up_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    NameServer(monkeypatch, answers=True)
    places = await resolve(Address("node0", 5), DEADLINE_S)
    assert places == [SocketAddress(socket.AF_INET, ("127.0.0.1", 5))]
    await until_no_thread_waits()


@on_loop
async def test_names_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    NameServer(monkeypatch, answers=True)
    with pytest.raises(OSError, match="the name nobody cannot be looked up: Name or service"):
        await resolve(Address("nobody", 5), DEADLINE_S)
    await until_no_thread_waits()


@on_loop
async def test_names_that_cannot_be_names() -> None:
    with pytest.raises(OSError, match="cannot be"):
        await resolve(Address("x" * 70 + ".y", 5), DEADLINE_S)
    await until_no_thread_waits()


@on_loop
async def test_a_name_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    away = NameServer(monkeypatch, answers=False)
    monkeypatch.setattr(module, "_threads", threading.BoundedSemaphore(2))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="the name node0 was not looked up in time"):
                await resolve(Address("node0", 5), 0.01)
        with pytest.raises(OSError, match="too many others still are"):
            await resolve(Address("node1", 5), 0.01)
    finally:
        away.released.set()
        await until_no_thread_waits()
    await resolve(Address("node0", 5), DEADLINE_S)
    await until_no_thread_waits()
