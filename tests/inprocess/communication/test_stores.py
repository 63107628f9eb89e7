"""Interrupting who waits in a TCPStore."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.base import threads, torch_store
from undaunted.inprocess.communication import stores
from undaunted.inprocess.communication.stores import StoreConnection
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.rank.epoch_store import EpochStore

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.fixture(autouse=True)
def _attempts_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_store, "_FIRST_ATTEMPT_S", 0.05)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Takes connections, and says nothing."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(16)
        yield sock


def wait_for_its_thread(server: socket.socket) -> None:
    server.close()
    for thread in threading.enumerate():
        if thread.name == "undaunted-store":
            thread.join(20)
            assert not thread.is_alive()


def test_an_abort_ends_the_wait_for_the_server(silent: socket.socket) -> None:
    store = EpochStore("127.0.0.1", TIMEOUT)
    store.begin("0", f"127.0.0.1:{silent.getsockname()[1]}", serve=False)
    breaking_off = threading.Timer(0.01, store.break_off)
    breaking_off.start()
    with pytest.raises((InternalError, RuntimeError)):
        store.get()
    breaking_off.join()
    store.close()
    wait_for_its_thread(silent)


pytest.importorskip("torch")


class Keys:
    """A client that has keys."""

    port = 0

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def delete_key(self, key: str) -> None:
        self.deleted.append(key)


class NamedKeys(Keys):
    def list_keys(self) -> list[str]:
        return ["0/a", "1/a", "0/b"]


@pytest.mark.parametrize(("client", "deleted"), [(NamedKeys(), ["0/a", "0/b"]), (Keys(), [])])
def test_keys_are_deleted_where_the_store_can_name_them(client: Any, deleted: list[str]) -> None:
    """One of torch 2.8 cannot."""
    StoreConnection(client, None).forget("0/")
    threads.settle(20)
    assert client.deleted == deleted
