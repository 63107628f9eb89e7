from __future__ import annotations

import errno
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.doctor.probe.tree import write_tree
from undaunted.coordinator.wire.address import Address
from undaunted.doctor import probes as names
from undaunted.doctor.facts import Remote
from undaunted.doctor.probes import local_addresses, look_up, of_names, of_remotes, reach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 10.0.0.0
        /24 link UNICAST
     |-- 10.0.0.5
        /32 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 10.0.0.255
        /32 link BROADCAST
"""
IF_INET6 = "00000000000000000000000000000001 01 80 10 80       lo\nzz 01\n"


@pytest.fixture
def hung_name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names are not looked up before the test is over."""
    over = threading.Event()
    before = set(threading.enumerate())

    def hanging(*args: Any, **kwargs: Any) -> Any:
        over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    yield
    over.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)


def test_numbers_and_names() -> None:
    assert look_up("127.0.0.1") == (("127.0.0.1",), "")
    addresses, problem = look_up("localhost")
    assert set(addresses) & {"127.0.0.1", "::1"}
    assert not problem


@pytest.mark.parametrize("host", ["a..b", "x" * 300])
def test_what_cannot_be_a_name(host: str) -> None:
    addresses, problem = look_up(host)
    assert addresses == ()
    assert problem.startswith("the name cannot be resolved: ")


@pytest.mark.usefixtures("hung_name_server")
def test_a_name_server_that_hangs() -> None:
    began = time.monotonic()
    assert look_up("node7", 0.05) == ((), "the name server has not answered within 50 ms")
    assert reach(Address("node7", 1), look_up_s=0.05).problem.startswith("the name server")
    hosts = [Address(f"node{number}", 1) for number in range(200)]
    found = of_remotes(hosts, all_s=0.1)
    assert [remote.host for remote in found] == [address.host for address in hosts]
    assert all(remote.problem for remote in found)
    assert time.monotonic() - began < 30


def test_own_name(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"proc/net/fib_trie": FIB_TRIE, "proc/net/if_inet6": IF_INET6})
    found = of_names(root)
    assert found.host == socket.gethostname()
    assert found.local == ("10.0.0.5", "127.0.0.1", "::1")
    assert found.ipv6
    assert "lo" in found.interfaces
    assert found.loopback == ""
    assert of_names(tmp_path / "nothing").ipv6 is False


@pytest.mark.parametrize("text", ["", "\0\xff", "|--\n/32 host LOCAL", "|-- a b\n"])
def test_addresses_that_cannot_be_read(text: str) -> None:
    assert local_addresses(text, text) == ()


def test_hosts_that_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert reach(Address("127.0.0.1", port)).answer == "open"
    found = reach(Address("127.0.0.1", port))
    assert (found.answer, found.problem) == ("refused", "")


def test_without_a_port_only_the_name_is_looked_at() -> None:
    assert reach(Address("127.0.0.1", 0)) == Remote(host="127.0.0.1", addresses=("127.0.0.1",))


def test_no_way_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert of_names().loopback == "Network is unreachable"


def test_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    found = reach(Address("127.0.0.1", 7))
    assert found.problem == "port 7 at 127.0.0.1: no answer within 3.0 s"


def test_no_more_threads_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_AT_ONCE", 2)
    hosts = [Address("127.0.0.1", 1), Address("127.0.0.1", 2), Address("127.0.0.1", 3)]
    found = of_remotes(hosts)
    assert [(remote.port, remote.answer) for remote in found] == [
        (1, "refused"),
        (2, "refused"),
        (3, "refused"),
    ]
