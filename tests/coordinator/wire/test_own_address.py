from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.coordinator.wire import own_address as module
from undaunted.coordinator.wire.own_address import own_address, own_host

if TYPE_CHECKING:
    from typing_extensions import Self


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
