from __future__ import annotations

import errno
import socket

import pytest

from undaunted.coordinator.wire import sockets
from undaunted.coordinator.wire.resolve import Place

IPV4 = Place(socket.AF_INET, ("127.0.0.1", 0))
IPV6 = Place(socket.AF_INET6, ("::1", 0, 0, 0))


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
    listeners = sockets.listen([IPV4, IPV6])
    ports = {listener.getsockname()[1] for listener in listeners}
    close(listeners)
    assert len(listeners) == 2
    assert len(ports) == 1


def test_a_family_that_is_not_there_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sockets._listen_at

    def without_ipv6(place: Place, port: int) -> socket.socket:
        if place.family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no")
        return real(place, port)

    monkeypatch.setattr(sockets, "_listen_at", without_ipv6)
    listeners = sockets.listen([IPV6, IPV4])
    close(listeners)
    assert len(listeners) == 1
    with pytest.raises(OSError, match="no"):
        sockets.listen([IPV6])


def test_another_port_is_tried_where_any_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sockets._listen_at
    asked: list[int] = []

    def first_time_in_use(place: Place, port: int) -> socket.socket:
        asked.append(port)
        if len(asked) == 2:
            raise OSError(errno.EADDRINUSE, "in use")
        return real(place, port)

    monkeypatch.setattr(sockets, "_listen_at", first_time_in_use)
    close(sockets.listen([IPV4, Place(socket.AF_INET, ("127.0.0.2", 0))]))
    assert asked[0] == asked[2] == 0
    assert asked[1] > 0
    assert asked[3] > 0


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = Place(socket.AF_INET, taken.getsockname())
        with pytest.raises(OSError, match="in use"):
            sockets.listen([place])


def test_a_port_can_be_listened_at_again_at_once() -> None:
    (first,) = sockets.listen([IPV4])
    place = Place(socket.AF_INET, first.getsockname())
    with socket.create_connection(place.sockaddr) as peer:
        first.setblocking(True)
        accepted, _ = first.accept()
        accepted.close()  # first to close: this side keeps the port in TIME_WAIT
        assert peer.recv(1) == b""
    first.close()
    close(sockets.listen([place]))


def test_options_of_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = socket.create_connection(listener.getsockname())
        with sock:
            sockets.tune(sock)
            assert not sock.getblocking()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
