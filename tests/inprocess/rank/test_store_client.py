from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from undaunted.coordinator.wire.address import Address
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.rank import store_client
from undaunted.inprocess.rank.epoch_store import EpochStore
from undaunted.inprocess.rank.store_client import StoreClient

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TIMEOUT = timedelta(seconds=30)


@pytest.fixture(autouse=True)
def _attempts_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_client, "_FIRST_ATTEMPT_S", 0.05)


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


def test_a_server_that_says_nothing_is_given_up(silent: socket.socket) -> None:
    client = StoreClient(Address(*silent.getsockname()), TIMEOUT)
    giving_up = threading.Timer(0.01, client.give_up)
    giving_up.start()
    with pytest.raises(InternalError, match="cannot be reached"):
        client.connect()
    giving_up.join()
    wait_for_its_thread(silent)


def test_torch_says_what_is_wrong_when_the_time_is_over() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # nobody listens
        client = StoreClient(Address(*sock.getsockname()), timedelta(seconds=0.1))
        with pytest.raises(RuntimeError, match="timed out"):
            client.connect()


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
