from __future__ import annotations

import socket
import threading
from datetime import timedelta

import pytest

from tests.ports import address_of_this_machine
from undaunted.base import threads, torch_store
from undaunted.base.torch_store import Connecting, listen, serve

LONG = timedelta(seconds=30)


@pytest.mark.torch
def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(torch_store, "_FIRST_ATTEMPT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connecting = Connecting(*silent.getsockname(), LONG)
        giving_up = threading.Timer(0.01, connecting.give_up)
        giving_up.start()
        with pytest.raises(InterruptedError):
            connecting.connect()
        giving_up.join()
    threads.settle(20)


@pytest.mark.torch
def test_torch_says_what_is_wrong_when_the_time_is_over() -> None:
    pytest.importorskip("torch")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # nobody listens
        with pytest.raises(RuntimeError, match="timed out"):
            Connecting(*sock.getsockname(), timedelta(seconds=0.1)).connect()


@pytest.mark.torch
@pytest.mark.leaves("fds")
def test_giving_up_an_attempt_leaves_older_connections_to_the_port_alone() -> None:
    pytest.importorskip("torch")
    # The first store that serves opens a pipe for all stores of the process, and keeps it.
    server = serve(listen(torch_store.LOOPBACK), LONG)
    connecting = Connecting(torch_store.LOOPBACK, server.port, LONG)
    store = connecting.connect()
    assert connecting.connection is not None
    connecting.give_up()
    with pytest.raises(RuntimeError):
        store.get("key")
    server.set("key", "value")
    assert server.get("key") == b"value"
    with pytest.raises(InterruptedError):
        connecting.connect()


def test_only_that_address_is_listened_at() -> None:
    for host in ("127.0.0.1", address_of_this_machine()):
        with listen(host) as sock:
            assert sock.getsockname()[0] == host
            assert sock.getsockname()[1] > 0


def test_a_name_is_for_all_addresses() -> None:
    with listen("node0") as sock:
        assert sock.getsockname()[0] in ("::", "0.0.0.0")
