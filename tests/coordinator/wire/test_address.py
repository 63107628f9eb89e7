from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.coordinator.wire import address as module
from undaunted.coordinator.wire.address import (
    Address,
    from_socket,
    is_loopback,
    own_address,
    own_host,
    parse_address,
)

if TYPE_CHECKING:
    from typing import Self


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node0:29400", Address("node0", 29400)),
        (" 10.0.0.1:0 ", Address("10.0.0.1", 0)),
        ("[::1]:65535", Address("::1", 65535)),
        (":29400", Address("", 29400)),
        ("@a name", Address("@a name", 0)),
        ("/a/path:1", Address("/a/path:1", 0)),
    ],
)
def test_addresses_are_read_and_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "node0", "node0:", "node0:http", "node0:65536", "node0:-1", "node0:²", "29400"]
)
def test_others_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is no address; give HOST:PORT, as in node0:29400"):
        parse_address(text)


def test_ipv6_needs_brackets() -> None:
    with pytest.raises(ValueError, match="needs brackets"):
        parse_address("::1:29400")


@given(st.text())
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        parse_address(text)
    except ValueError:
        return


def test_addresses_of_sockets() -> None:
    assert str(from_socket(("10.0.0.1", 5))) == "10.0.0.1:5"
    assert str(from_socket(("fe80::1%eth0", 5, 0, 2))) == "[fe80::1%eth0]:5"
    assert from_socket(b"\0name") == from_socket("\0name") == Address("@name", 0)
    assert str(from_socket("")) == "@"  # of who connects


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "@a"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "::", "0.0.0.0", "::ffff:10.0.0.1", "fe80::1%e", "x"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("other", ["127.0.0.1", "localhost"])
def test_towards_this_machine(other: str) -> None:
    assert own_address(other) in ("127.0.0.1", "::1")
    assert own_host(other) == other


class Route:
    """A socket on a machine with the address 10.0.0.7."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self, there: object) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.7", 1


@pytest.mark.parametrize(("there", "host"), [("10.0.0.1", "10.0.0.7"), ("10.0.0.7", "node0")])
def test_towards_another(monkeypatch: pytest.MonkeyPatch, there: str, host: str) -> None:
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda _, port, **__: [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (there, port))],
    )
    monkeypatch.setattr(socket, "socket", Route)
    assert own_address("node0", 29400) == "10.0.0.7"
    assert own_host("node0") == host


def test_a_name_service_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(60))
    monkeypatch.setattr(module, "LOOK_UP_S", 0.01)
    with pytest.raises(TimeoutError, match="node0 has not been looked up within 10 ms"):
        own_address("node0")
    released.set()


def test_what_cannot_be_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(OSError, match="not known"):
        own_host("nowhere")
