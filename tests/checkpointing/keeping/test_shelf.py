"""Arenas on the shelf: kept for the processes of later rounds, and handed to nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from undaunted.base.memory import create_memfd
from undaunted.checkpointing.keeping import client as messages
from undaunted.checkpointing.keeping.client import Left, ShelfClient
from undaunted.checkpointing.keeping.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLACE = "/checkpoints"


def with_shelf(monkeypatch: pytest.MonkeyPatch, use: Callable[[Shelf], None]) -> list[str]:
    """Calls ``use`` in a thread while a shelf is served; returns what the shelf remarked."""
    remarks: list[str] = []

    async def run() -> None:
        shelf = Shelf(remarks.append)
        shelf.open()
        monkeypatch.setenv(messages.VARIABLE, shelf.name)
        try:
            await asyncio.wait_for(asyncio.to_thread(use, shelf), 30)
        finally:
            shelf.close()

    asyncio.run(run())
    return remarks


def client(rank: int = 0, place: str = PLACE) -> ShelfClient:
    found = ShelfClient.connect(rank, place)
    assert found is not None
    return found


def keep(owner: ShelfClient, content: bytes, slot: int = 0) -> None:
    fd = create_memfd("test", 4096)
    os.pwrite(fd, content, 0)
    try:
        owner.keep(slot, fd)
    finally:
        os.close(fd)


def contents(left: list[Left]) -> Iterator[tuple[int, int, bytes]]:
    for one in sorted(left, key=lambda one: (one.rank, one.slot)):
        yield one.rank, one.slot, os.pread(one.fd, 5, 0)
        os.close(one.fd)


def test_without_a_socket_nothing_is_kept_and_that_is_said() -> None:
    remarks: list[str] = []

    async def run() -> None:
        first, second = Shelf(remarks.append), Shelf(remarks.append)
        second.name = first.name
        first.open()
        second.open()
        second.close()
        first.close()

    asyncio.run(run())
    (line,) = remarks
    assert line.startswith("copies of checkpoints are not kept over a restart: ")
    assert "Address already in use" in line


def test_what_a_process_has_left_is_found_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def use(_: Shelf) -> None:
        first, second = client(0), client(1)
        keep(first, b"zero.", 0)
        keep(first, b"older", 1)
        keep(second, b"one..")
        first.close()
        second.close()
        later = client(0)
        assert list(contents(later.left())) == [
            (0, 0, b"zero."),
            (0, 1, b"older"),
            (1, 0, b"one.."),
        ]
        later.close()

    assert with_shelf(monkeypatch, use) == []


def test_what_lives_and_what_belongs_elsewhere_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def use(_: Shelf) -> None:
        living, elsewhere, asking = client(0), client(1, "/other"), client(2)
        keep(living, b"alive")
        keep(elsewhere, b"other")
        elsewhere.close()
        assert asking.left() == []
        living.close()
        asking.close()

    with_shelf(monkeypatch, use)


def test_a_new_arena_replaces_the_former_one_of_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def use(shelf: Shelf) -> None:
        owner = client()
        for content in (b"first", b"newer"):
            keep(owner, content)
        assert len(shelf.arenas()) == 1
        owner.close()
        asking = client()
        assert list(contents(asking.left())) == [(0, 0, b"newer")]
        asking.close()

    with_shelf(monkeypatch, use)


def test_dropping_spares_what_living_processes_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    def use(shelf: Shelf) -> None:
        gone, living = client(0), client(1)
        keep(gone, b"gone.")
        keep(living, b"stays")
        gone.close()
        living.drop()
        assert [key.rank for key in shelf.arenas()] == [1]
        living.close()

    with_shelf(monkeypatch, use)


@pytest.mark.parametrize("packet", [b"\xff", b"", b"\x80", b"x" * 5000], ids=len)
def test_garbage_ends_its_connection_only(packet: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def use(shelf: Shelf) -> None:
        good = client()
        keep(good, b"kept.")
        bad = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        bad.settimeout(10)
        bad.connect(f"\0{shelf.name}")
        bad.send(packet)
        assert bad.recv(10) == b""
        bad.close()
        assert good.left() == []
        good.close()

    remarks = with_shelf(monkeypatch, use)
    assert len(remarks) == bool(packet)


def test_an_arena_without_its_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def use(shelf: Shelf) -> None:
        owner = client()
        with pytest.raises(OSError, match="one descriptor"):
            owner._ask(messages.Keep(0, PLACE, 0))
        assert shelf.arenas() == {}
        owner.close()

    with_shelf(monkeypatch, use)


def test_without_an_agent_there_is_no_shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(messages.VARIABLE, raising=False)
    assert ShelfClient.connect(0, PLACE) is None
    monkeypatch.setenv(messages.VARIABLE, "undaunted-nobody-is-here")
    assert ShelfClient.connect(0, PLACE) is None


def test_an_agent_that_is_gone_is_an_error_and_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[ShelfClient] = []
    with_shelf(monkeypatch, lambda _: clients.append(client()))
    with pytest.raises(OSError, match=r"closed|pipe|reset"):
        clients[0].left()
    clients[0].close()


def test_an_answer_that_comes_late_is_not_that_to_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.bind("")
        agent.listen()
        monkeypatch.setenv(messages.VARIABLE, agent.getsockname()[1:].decode())
        agent.settimeout(30)
        monkeypatch.setattr("undaunted.checkpointing.keeping.client._TIMEOUT_S", 0.1)
        owner = client()
        first, _ = agent.accept()
        with pytest.raises(TimeoutError):
            keep(owner, b"first")
        monkeypatch.setattr("undaunted.checkpointing.keeping.client._TIMEOUT_S", 30)

        def answer() -> None:
            with first, contextlib.suppress(BrokenPipeError):
                first.send(msgspec.msgpack.encode(messages.Done()))
            second, _ = agent.accept()
            with second:
                second.recv(1000)
                second.send(msgspec.msgpack.encode(messages.Done("the shelf is full")))

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(OSError, match="the shelf is full"):
            keep(owner, b"second")
        answering.join()
        owner.close()
