"""Interrupting who waits in a TCPStore."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from undaunted.inprocess.communication import stores

pytestmark = pytest.mark.torch
dist = pytest.importorskip("torch.distributed")
TIMEOUT = timedelta(seconds=30)


@pytest.fixture(scope="module", autouse=True)
def first_store() -> None:
    """The first store that serves opens a pipe for all stores of the process, and keeps it."""
    dist.TCPStore("127.0.0.1", 0, None, True, TIMEOUT)


def wait_in(client: Any) -> tuple[threading.Thread, list[str]]:
    """Have a thread wait for a key; who looks at the list afterwards sees how that ended."""
    ended: list[str] = []

    def wait() -> None:
        try:
            client.wait(["never"], TIMEOUT)
        except dist.DistNetworkError:
            ended.append("interrupted")

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, ended


@pytest.mark.parametrize("prefixed", [False, True])
def test_who_waits_is_interrupted_and_the_store_works_on(prefixed: bool) -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, True, TIMEOUT)
    store = dist.PrefixStore("some", server) if prefixed else server
    client = stores.tcp_client(store)
    assert client is server
    for _ in range(3):
        thread, ended = wait_in(store)
        with stores.interrupted(client):
            thread.join(10)
        assert ended == ["interrupted"]
        store.set("key", "value")
        assert store.get("key") == b"value"


def test_the_right_one_of_several_clients_is_interrupted() -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, True, TIMEOUT)
    one, other = server.clone(), server.clone()
    other.set("key", "value")
    thread, ended = wait_in(one)
    with stores.interrupted(one):
        thread.join(10)
        assert other.get("key") == b"value"
    assert ended == ["interrupted"]
    assert one.get("key") == b"value"


def test_without_a_server_the_client_stays_without() -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, True, TIMEOUT)
    with stores.interrupted(server, temporary={server.port}):
        pass
    with pytest.raises(dist.DistNetworkError):
        server.get("key")


def test_other_stores_are_no_clients() -> None:
    assert stores.tcp_client(dist.HashStore()) is None
    assert stores.tcp_client(dist.PrefixStore("some", dist.HashStore())) is None
    assert stores.tcp_client(None) is None
