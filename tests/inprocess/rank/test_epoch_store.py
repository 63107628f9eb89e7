from __future__ import annotations

import select
import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.leaks import count_fds
from undaunted.base import threads
from undaunted.inprocess.communication import stores
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.rank.epoch_store import EpochStore

if TYPE_CHECKING:
    from collections.abc import Iterator

dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.torch

TIMEOUT = timedelta(seconds=30)


@pytest.fixture(scope="module", autouse=True)
def _what_torch_keeps() -> None:
    """Descriptors that torch opens once per process."""
    store = EpochStore("127.0.0.1", TIMEOUT)
    store.begin("0", store.address(), serve=True)
    store.get()
    store.close()


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    yield
    threads.settle(20)


@pytest.fixture
def server() -> Iterator[EpochStore]:
    store = EpochStore("127.0.0.1", TIMEOUT)
    yield store
    store.close()


@pytest.fixture
def client() -> Iterator[EpochStore]:
    store = EpochStore("127.0.0.1", TIMEOUT)
    yield store
    store.close()


def begin(server: EpochStore, client: EpochStore, epoch: int = 0) -> None:
    address = server.address()
    server.begin(f"{epoch}", address, serve=True)
    client.begin(f"{epoch}", address, serve=False)


def tcp(store: EpochStore) -> Any:
    return store.get()._underlying_non_prefix_store


def wait_in(store: Any) -> tuple[threading.Thread, list[Exception]]:
    """Have a thread wait for a key that never comes; the list says how that ended."""
    failed: list[Exception] = []

    def wait() -> None:
        try:
            store.wait(["never"], TIMEOUT)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, failed


def test_all_ranks_have_one_store(server: EpochStore, client: EpochStore) -> None:
    begin(server, client)
    server.get().set("key", "value")
    assert client.get().get("key") == b"value"
    assert client.get() is client.get()


def test_every_epoch_has_a_fresh_one_over_the_same_connections(
    server: EpochStore, client: EpochStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_ANSWER_S", 20.0)  # a machine may be busy
    connections = []
    for epoch in range(3):
        begin(server, client, epoch)
        assert server.get().add("count", 1) == 1
        assert client.get().add("count", 1) == 2
        connections.append((tcp(server), tcp(client)))
        for store in (client, server):
            store.break_off()
            store.drop()
    assert connections == connections[:1] * 3


@pytest.mark.skipif(
    not hasattr(dist.TCPStore, "list_keys"), reason="a store of torch 2.8 cannot name its keys"
)
def test_nothing_is_kept_of_earlier_epochs(server: EpochStore, client: EpochStore) -> None:
    for epoch in range(3):
        begin(server, client, epoch)
        threads.settle(20)
        for store in (server, client):
            store.get().set(f"{epoch}", "")
        assert {key.partition("/")[0] for key in tcp(server).list_keys()} == {f"{epoch}"}
        for store in (client, server):
            store.drop()


def test_an_epoch_that_is_over_has_none(server: EpochStore, client: EpochStore) -> None:
    begin(server, client)
    client.break_off()
    with pytest.raises(InternalError, match="over"):
        client.get()


def test_another_first_member_means_another_store(server: EpochStore, client: EpochStore) -> None:
    begin(server, client)
    server.get()
    client.get().set("key", "")
    for store in (client, server):
        store.drop()
    begin(client, server, 1)
    assert server.listening_fd == -1
    client.get().set("key", "value")
    assert server.get().get("key") == b"value"
    server.drop()
    begin(server, client, 2)
    assert server.listening_fd >= 0


def test_who_knows_of_the_epoch_before_its_server_is_not_refused(
    server: EpochStore, client: EpochStore
) -> None:
    address = server.address()
    client.begin("0", address, serve=False)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))):
        pass


def test_who_asks_first_waits_for_the_server(server: EpochStore, client: EpochStore) -> None:
    begin(server, client)
    found = []
    thread = threading.Thread(target=lambda: found.append(client.get().add("count", 1)))
    thread.start()
    ready, _, _ = select.select([server.listening_fd], [], [], 20)
    assert ready
    server.serve()
    thread.join()
    assert found == [1]
    assert server.listening_fd == -1


def test_it_costs_nothing_where_nobody_asks(server: EpochStore) -> None:
    server.address()
    before = count_fds()
    for _ in range(3):
        server.begin("0", server.address(), serve=True)
        server.drop()
        server.serve()
    assert count_fds() == before
    assert server.base is None


def test_who_waits_in_it_is_told_and_then_connects_anew(
    server: EpochStore, client: EpochStore
) -> None:
    begin(server, client)
    server.get()
    before = tcp(client)
    thread, failed = wait_in(client.get())
    other, peer = socket.socketpair()
    while thread.is_alive():  # until it waits
        client.break_off()
        thread.join(0.01)
    assert failed
    with other, peer:
        other.send(b"x")
        assert peer.recv(1) == b"x"
    served_by = tcp(server)
    for store in (client, server):
        store.drop()
    begin(server, client, 1)
    server.get().set("key", "value")
    assert client.get().get("key") == b"value"
    assert tcp(client) is not before
    assert tcp(server) is served_by


def test_a_first_member_that_waits_in_it_makes_it_anew(
    server: EpochStore, client: EpochStore
) -> None:
    begin(server, client)
    thread, failed = wait_in(server.get())
    while thread.is_alive():
        server.break_off()
        thread.join(0.01)
    assert failed
    address = server.address()
    for store in (client, server):
        store.drop()
    begin(server, client, 1)
    assert server.address() == address
    client_thread = threading.Thread(target=lambda: client.get().set("key", "value"))
    client_thread.start()
    assert server.get().get("key") == b"value"
    client_thread.join()


def test_where_it_cannot_be_known_who_waits_the_connection_is_ended(
    server: EpochStore, client: EpochStore
) -> None:
    begin(server, client)
    server.get()
    store = client.get()
    store.set("key", "")
    client.break_off(surely=True)
    with pytest.raises(RuntimeError):
        store.get("key")


def test_a_rank_that_is_alone_needs_no_network() -> None:
    store = EpochStore("", TIMEOUT)
    assert store.address() == ""
    store.begin("0", "", serve=True)
    assert store.listening_fd == -1
    store.get().set("key", "value")
    assert store.get().get("key") == b"value"
    store.close()


def test_a_store_of_the_users_is_shared_by_all_epochs() -> None:
    import torch.distributed as dist

    base = dist.HashStore()
    store = EpochStore("127.0.0.1", TIMEOUT, base)
    assert store.address() == ""
    store.begin("first", "", serve=True)
    store.get().set("key", "a")
    store.drop()
    store.begin("second", "", serve=True)
    assert not store.get().check(["key"])
    assert base.get("first/key") == b"a"
    assert store.base is base
    store.close()
