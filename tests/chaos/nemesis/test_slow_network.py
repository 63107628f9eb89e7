"""A network of a run's own, which can be made slow."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from undaunted.chaos.nemesis import slow_network, stage
from undaunted.chaos.nemesis.helper import NotPossibleError
from undaunted.chaos.nemesis.slow_network import (
    SlowNetwork,
    sent_over_loopback,
    slow_rate,
)
from undaunted.chaos.nemesis.small_disk import SmallDisk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
  eth0: 111 2 0 0 0 0 0 0 222 1 0 0 0 0 0 0
    lo: 5001 90 0 0 0 0 0 0 5002 90 0 0 0 0 0 0
"""
# Sends so many bytes to itself over the loopback; tells when it begins, and how long it took.
SEND = """
import socket, sys, threading, time
count = int(sys.argv[1])
server = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(server.getsockname())
receiver, _ = server.accept()
print("begun", flush=True)
begun = time.monotonic()
threading.Thread(target=sender.sendall, args=(bytes(count),)).start()
while count:
    count -= len(receiver.recv(1 << 16))
print(time.monotonic() - begun, flush=True)
"""


@pytest.fixture
def network() -> Iterator[SlowNetwork]:
    if reason := slow_network.not_possible():
        pytest.skip(reason)
    with contextlib.closing(SlowNetwork()) as network:
        yield network


def inside(network: SlowNetwork, argv: Sequence[str]) -> subprocess.Popen[str]:
    words = stage.command(os.getpid(), network.namespaces, argv)
    return subprocess.Popen(words, pass_fds=network.namespaces, stdout=subprocess.PIPE, text=True)


def send(network: SlowNetwork, count: int) -> subprocess.Popen[str]:
    sender = inside(network, [sys.executable, "-c", SEND, str(count)])
    assert sender.stdout is not None
    assert sender.stdout.readline() == "begun\n"
    return sender


def test_what_is_slow_takes_longer(network: SlowNetwork) -> None:
    network.slow()

    said, _ = send(network, 8000).communicate(timeout=60)

    assert float(said) > 0.5  # 4 kB at once, 4 kB per second


def test_what_waits_comes_when_it_is_over(network: SlowNetwork) -> None:
    network.slow()
    sender = send(network, 1_000_000)  # four minutes

    network.lift()
    said, _ = sender.communicate(timeout=60)

    assert float(said) < 60


def test_slow_a_second_time(network: SlowNetwork) -> None:
    network.slow()
    network.lift()
    network.slow()
    said, _ = send(network, 8000).communicate(timeout=60)
    assert float(said) > 0.5
    network.lift()
    said, _ = send(network, 1_000_000).communicate(timeout=60)
    assert float(said) < 60


def test_nothing_but_a_loopback(network: SlowNetwork) -> None:
    said, _ = inside(network, ["/bin/cat", "/proc/net/dev"]).communicate(timeout=60)

    assert [line.split(":")[0].strip() for line in said.splitlines()[2:]] == ["lo"]


def test_on_top_of_a_small_disk(network: SlowNetwork, tmp_path: Path) -> None:
    try:
        disk = SmallDisk(tmp_path, 1 << 20)
    except NotPossibleError as error:
        pytest.skip(str(error))
    (disk.directory / "file").write_text("hello")
    with contextlib.closing(disk), contextlib.closing(SlowNetwork(disk.namespaces)) as both:
        both.slow()

        said, _ = inside(both, ["/bin/cat", str(tmp_path / "file")]).communicate(timeout=60)

    assert said == "hello"


def test_without_tc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(slow_network, "_PLACES", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "iproute2" in slow_network.not_possible()


def test_a_namespace_that_cannot_be_entered() -> None:
    with open(os.devnull) as file, pytest.raises(NotPossibleError, match="no network"):  # noqa: PTH123
        SlowNetwork([file.fileno()])


def test_bytes_that_were_sent() -> None:
    assert sent_over_loopback(DEV) == 5002
    assert sent_over_loopback("") == 0


def test_a_part_of_what_was_sent_is_let_through() -> None:
    assert slow_rate(8_000_000, 10.0) == 200_000
    assert slow_rate(0, 10.0) == slow_rate(0, 0.0) == 4000
