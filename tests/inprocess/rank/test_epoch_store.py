from __future__ import annotations

import os
import select
import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from undaunted.inprocess.rank.epoch_store import EpochStore, own_host

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TIMEOUT = timedelta(seconds=30)


@pytest.fixture(scope="module", autouse=True)
def _what_torch_keeps() -> None:
    """Descriptors that torch opens once per process."""
    store = EpochStore("127.0.0.1", TIMEOUT)
    store.begin("0", store.address(), serve=True)
    store.get()
    store.close()


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


def begin(server: EpochStore, client: EpochStore) -> None:
    address = server.address()
    server.begin("0", address, serve=True)
    client.begin("0", address, serve=False)


def test_all_ranks_have_one_store(server: EpochStore, client: EpochStore) -> None:
    begin(server, client)
    server.get().set("key", "value")
    assert client.get().get("key") == b"value"
    assert client.get() is client.get()


def test_every_epoch_has_a_fresh_one(server: EpochStore, client: EpochStore) -> None:
    begin(server, client)
    assert server.get().add("count", 1) == 1
    for store in (server, client):
        store.drop()
    begin(server, client)
    assert server.get().add("count", 1) == 1
    assert client.get().add("count", 1) == 2


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
    server.get()
    thread.join()
    assert found == [1]
    assert server.listening_fd == -1


def test_it_costs_nothing_where_nobody_asks(server: EpochStore) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        server.begin("0", server.address(), serve=True)
        server.drop()
    assert len(os.listdir("/proc/self/fd")) == before
    assert server.base is None


def test_what_waits_for_it_is_ended(server: EpochStore, client: EpochStore) -> None:
    begin(server, client)
    server.get()
    store = client.get()
    other, peer = socket.socketpair()
    failed = []

    def wait() -> None:
        try:
            store.wait(["never"], TIMEOUT)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive():  # until it waits
        client.break_off()
        thread.join(0.01)
    assert failed
    with other, peer:
        other.send(b"x")
        assert peer.recv(1) == b"x"


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


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        ({}, ""),
        ({"WORLD_SIZE": "1", "MASTER_ADDR": "node0"}, ""),
        ({"WORLD_SIZE": "2"}, "127.0.0.1"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "127.0.0.1"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "127.0.0.1"),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0"}, "127.0.0.1"),
    ],
)
def test_under_which_name_others_reach_this_machine(environ: dict[str, str], host: str) -> None:
    assert own_host(environ) == host


def test_a_master_that_nobody_knows() -> None:
    from undaunted.inprocess.exception import InternalError

    with pytest.raises(InternalError, match="MASTER_ADDR"):
        own_host({"WORLD_SIZE": "2", "MASTER_ADDR": "no.such.host.invalid"})
