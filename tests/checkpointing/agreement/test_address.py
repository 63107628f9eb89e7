from __future__ import annotations

import socket

import pytest

from undaunted.checkpointing.agreement import address

LONG_S = 60.0


def test_the_same_network_has_the_same_name() -> None:
    assert address.network()
    assert address.network() == address.network()


def test_own_hosts_begin_with_what_masters_peers_use() -> None:
    assert address.own_hosts({"MASTER_ADDR": "127.0.0.1"})[0] == "127.0.0.1"
    assert address.own_hosts({"MASTER_ADDR": "localhost"})[0] == "localhost"
    assert address.own_hosts({}) == [socket.gethostname()]


def test_a_master_that_cannot_be_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **named: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert address.own_hosts({"MASTER_ADDR": "nowhere"}) == [socket.gethostname()]


def test_where_all_ranks_are_here_loopback_is_served() -> None:
    assert address.to_serve_at({"MASTER_ADDR": "192.0.2.7"}, one_machine=True) == "127.0.0.1"


@pytest.mark.parametrize(
    ("routes", "at"),
    [
        ({"node0": "10.0.0.5"}, "10.0.0.5"),
        ({"node0": "127.0.1.1", "here": "10.0.0.6"}, "10.0.0.6"),
        ({"node0": "127.0.1.1", "here": "127.0.1.1"}, ""),
        ({}, ""),
    ],
)
def test_on_several_nodes_the_own_address_is_served(
    routes: dict[str, str], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own_address(other: str) -> str:
        if other not in routes:
            raise OSError("Name or service not known")
        return routes[other]

    monkeypatch.setattr(address, "own_address", own_address)
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    assert address.to_serve_at({"MASTER_ADDR": "node0"}, one_machine=False) == at


def test_the_first_host_that_answers_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert address.reachable(["127.0.0.2", "127.0.0.1"], port, LONG_S) == "127.0.0.1"


def test_no_host_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match=rf"port {port} cannot be reached \(127\.0\.0\.1: "):
        address.reachable(["127.0.0.1"], port, LONG_S)
