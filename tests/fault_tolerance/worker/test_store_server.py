"""A rank that begins `init_process_group` before rank 0 connects as soon as rank 0 listens."""

from __future__ import annotations

import socket
import sys
from types import ModuleType, SimpleNamespace

import pytest

from undaunted.fault_tolerance.worker import store_server

NAME = "torch.distributed.rendezvous"


class Rank:
    """This process as a rank: a port that the agent has reserved, a clock, and torch's function.

    Attributes:
        delays: how long was slept, seconds.
        before_sleep: called before each sleep, with how many there were.
        connected: for each call of torch's function, whether somebody listened.
    """

    def __init__(self) -> None:
        self.reserved = self._bound()
        self.port: int = self.reserved.getsockname()[1]
        self.server = self._bound(self.port)
        self.now = 0.0
        self.delays: list[float] = []
        self.before_sleep = lambda _: None
        self.connected: list[bool] = []

    def _bound(self, port: int = 0) -> socket.socket:
        sock = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:  # as torch does
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("", port))
        return sock

    def sleep(self, delay_s: float) -> None:
        self.before_sleep(len(self.delays))
        self.delays.append(delay_s)
        self.now += delay_s

    def create_store(self, hostname, port, rank, world_size, timeout, use_libuv=True):
        with socket.socket() as client:
            self.connected.append(client.connect_ex((hostname, port)) == 0)
        return rank, world_size, timeout, use_libuv

    def begins(self, rank: int = 1, port: int = 0):
        """What `init_process_group` does first."""
        rendezvous = sys.modules[NAME]
        return rendezvous._create_c10d_store("127.0.0.1", port or self.port, rank, 2, 9.0)

    def close(self) -> None:
        self.reserved.close()
        self.server.close()


@pytest.fixture
def rank(monkeypatch):
    rank = Rank()
    torchs = ModuleType(NAME)
    torchs._create_c10d_store = rank.create_store
    monkeypatch.setitem(sys.modules, NAME, torchs)
    monkeypatch.setattr(
        store_server, "time", SimpleNamespace(monotonic=lambda: rank.now, sleep=rank.sleep)
    )
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setenv("MASTER_PORT", str(rank.port))
    assert store_server.wait_before_connecting()
    yield rank
    rank.close()


def test_a_rank_that_is_early_connects_when_rank_0_listens(rank):
    rank.before_sleep = lambda number: rank.server.listen() if number == 3 else None
    assert rank.begins() == (1, 2, 9.0, True)
    assert rank.connected == [True]
    assert rank.delays == [0.001, 0.002, 0.004, 0.008]


def test_a_rank_that_is_not_early_does_not_wait(rank):
    rank.server.listen()
    rank.begins()
    assert rank.connected == [True]
    assert not rank.delays


def test_asking_makes_no_connection(rank):
    rank.server.listen()
    rank.server.setblocking(False)
    assert store_server._is_listened_at(rank.port)
    with pytest.raises(BlockingIOError):
        rank.server.accept()


def test_it_does_not_wait_for_ever(rank):
    rank.begins()
    assert rank.connected == [False], "torch is asked, and sees what it does"
    assert 5.0 <= rank.now < 5.1
    assert max(rank.delays) == 0.05


def test_rank_0_serves_itself(rank):
    rank.begins(rank=0)
    assert not rank.delays


def test_rank_0_of_another_node_cannot_be_seen(rank, monkeypatch):
    monkeypatch.setenv("GROUP_RANK", "1")
    rank.begins()
    assert not rank.delays


def test_a_store_of_the_program_at_another_port_is_not_waited_for(rank):
    rank.begins(port=1)
    assert not rank.delays


def test_an_environment_without_a_launcher_is_not_waited_for(rank, monkeypatch):
    monkeypatch.delenv("MASTER_PORT")
    rank.begins()
    assert not rank.delays


def test_a_process_without_descriptors_does_not_wait(rank, monkeypatch):
    def no_more(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(store_server.socket, "socket", no_more)
    assert store_server._is_listened_at(rank.port)


def test_another_function_of_torch_is_left_as_it_is(monkeypatch):
    def create_store(rank, hostname, port):
        return rank, hostname, port

    other = ModuleType(NAME)
    other._create_c10d_store = create_store
    monkeypatch.setitem(sys.modules, NAME, other)
    assert not store_server.wait_before_connecting()
    assert other._create_c10d_store is create_store


@pytest.mark.parametrize("modules", [{}, {NAME: ModuleType(NAME)}])
def test_where_torch_has_no_such_function_nothing_happens(monkeypatch, modules):
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert not store_server.wait_before_connecting()


@pytest.mark.torch
def test_this_torch_has_the_function(monkeypatch):
    rendezvous = pytest.importorskip(NAME)
    monkeypatch.setattr(rendezvous, store_server._FUNCTION, rendezvous._create_c10d_store)
    assert store_server.wait_before_connecting()
