"""The port for rank 0's store: kept free for it and for nobody else."""

from __future__ import annotations

import socket

import pytest

from undaunted.fault_tolerance.agent.round import ReservedPort


def test_the_store_of_rank_0_can_listen_beside_the_reservation() -> None:
    port = ReservedPort()
    try:
        with (
            socket.create_server(("127.0.0.1", port.number)) as server,
            socket.create_connection(server.getsockname()[:2], timeout=5),
        ):
            pass
    finally:
        port.close()


def test_nobody_who_asks_for_a_free_port_gets_it() -> None:
    port = ReservedPort()
    others = []
    try:
        for _ in range(200):
            other = socket.socket()
            others.append(other)
            other.bind(("127.0.0.1", 0))
        assert port.number not in {other.getsockname()[1] for other in others}
    finally:
        port.close()
        for other in others:
            other.close()


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("", 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            ReservedPort(taken)


@pytest.mark.torch
@pytest.mark.leaves("fds")  # torch keeps a pipe of the store until the process ends
def test_torchs_store_binds_beside_it() -> None:
    distributed = pytest.importorskip("torch.distributed")
    port = ReservedPort()
    try:
        store = distributed.TCPStore("127.0.0.1", port.number, 1, is_master=True)
        store.set("key", "value")
        assert store.get("key") == b"value"
        del store
    finally:
        port.close()
