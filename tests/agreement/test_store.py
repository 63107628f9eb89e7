from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from undaunted.agreement.agreement import Agreement
from undaunted.agreement.failures import AgreedError
from undaunted.agreement.store import AbortedError, Bounded, StoreLink, TimedOutError
from undaunted.base import torch_store

pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.torch

LONG_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def first_store() -> None:
    """Torch keeps a pipe of the first store until the process ends."""
    StoreLink.serve(LONG_S)


@pytest.mark.parametrize(
    ("at", "addresses"), [("127.0.0.1", ["0100007F"]), ("127.0.0.2", ["0200007F"])]
)
def test_it_listens_at_the_given_address_alone(at: str, addresses: list[str]) -> None:
    link, server = StoreLink.serve(LONG_S, at)
    server.set("key", "value")
    assert StoreLink(at, link.port).reopen(LONG_S).get("key") == b"value"
    assert listening(link.port) == addresses


def test_it_listens_at_all_addresses_where_nobody_can_tell_one() -> None:
    link, _server = StoreLink.serve(LONG_S, "")
    assert link.host == "127.0.0.1"
    (where,) = listening(link.port)
    assert set(where) == {"0"}


def listening(port: int) -> list[str]:
    """At which addresses this machine listens at a port, as the kernel writes them."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            where, at = local.split(":")
            if int(at, 16) == port and state == "0A":
                found.append(where)
    return found


def test_a_wait_is_interrupted_and_others_are_not() -> None:
    link, server = StoreLink.serve(LONG_S)
    other_link = StoreLink("127.0.0.1", link.port)
    other = other_link.reopen(LONG_S)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            other.set("begun", "")
            other.wait(["never"], timedelta(seconds=LONG_S))
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    server.wait(["begun"])
    began = time.monotonic()
    other_link.interrupt()
    thread.join(LONG_S)
    assert time.monotonic() - began < LONG_S / 2
    assert len(errors) == 1
    server.set("key", "value")
    other = other_link.reopen(LONG_S)
    assert other.get("key") == b"value"
    # That of the process that serves, without an end to the server.
    link.interrupt()
    with pytest.raises(RuntimeError):
        server.get("key")
    assert link.reopen(LONG_S).get("key") == b"value"


def test_a_round_is_aborted_from_another_thread() -> None:
    link, server = StoreLink.serve(LONG_S)
    rank_1_link = StoreLink("127.0.0.1", link.port)
    rank_1 = Agreement(rank_1_link.reopen(LONG_S), 1, 2, "s", link=rank_1_link)
    errors: list[AgreedError] = []

    def take_part() -> None:
        try:
            rank_1.round("save", b"", lambda _: b"", LONG_S)
        except AgreedError as error:
            errors.append(error)

    thread = threading.Thread(target=take_part)
    thread.start()
    server.wait(["undaunted/agreement/s/main/0/1"])
    began = time.monotonic()
    rank_1.abort()
    thread.join(LONG_S)
    assert time.monotonic() - began < LONG_S / 2
    assert "given up" in str(errors[0])
    rank_1.close()


@pytest.mark.slow
def test_a_server_that_answers_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = StoreLink("127.0.0.1", silent.getsockname()[1])
        began = time.monotonic()
        with pytest.raises((AgreedError, RuntimeError)):
            link.reopen(0.5)
        assert time.monotonic() - began < LONG_S / 2


def test_interrupting_what_is_closed_harms_nobody() -> None:
    link, server = StoreLink.serve(LONG_S)
    del server
    pair: Any = socket.socketpair()
    with pair[0], pair[1]:
        link.interrupt()
        pair[0].sendall(b"x")
        assert pair[1].recv(1) == b"x"


def test_who_is_aborted_while_it_connects_again_keeps_nobody_else_from_connecting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link, server = StoreLink.serve(LONG_S)
    lost = StoreLink("127.0.0.1", link.port)
    rank_1 = Agreement(lost.reopen(LONG_S), 1, 2, "s", link=lost)
    connecting, over, connected = threading.Event(), threading.Event(), threading.Event()

    def connect(_host: str, _port: int, _timeout: timedelta) -> None:
        """As torch does, which tries again and again where nobody listens."""
        connecting.set()
        over.wait(LONG_S)
        connected.set()

    rank_1._interrupt()
    errors: list[AgreedError] = []

    def take_part() -> None:
        try:
            rank_1.round("save", b"", lambda _: b"", LONG_S)
        except AgreedError as error:
            errors.append(error)

    thread = threading.Thread(target=take_part)
    with monkeypatch.context() as torch_waits:
        torch_waits.setattr(torch_store, "connect", connect)
        thread.start()
        assert connecting.wait(LONG_S)
    rank_1.abort()
    thread.join(LONG_S)
    assert "given up" in str(errors[0])
    try:
        other = StoreLink("127.0.0.1", link.port).reopen(2 * LONG_S)
        assert not connected.is_set()
    finally:
        over.set()
    server.set("key", "value")
    assert other.get("key") == b"value"


def test_who_is_aborted_before_it_connects_again_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        link = StoreLink("127.0.0.1", nobody.getsockname()[1])
        began = time.monotonic()
        with pytest.raises(AgreedError, match="given up"):
            link.reopen(LONG_S, lambda: True)
    assert time.monotonic() - began < LONG_S / 2


def test_results_and_errors_are_handed_on() -> None:
    bounded = Bounded(lambda: None)
    assert bounded.call(lambda: 7, LONG_S) == 7

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        bounded.call(fail, LONG_S)
    assert bounded.call(lambda: 8, LONG_S) == 8


def test_a_call_that_hangs_is_interrupted() -> None:
    interrupted, ended = threading.Event(), threading.Event()

    def hang() -> None:
        interrupted.wait(LONG_S)
        ended.set()

    with pytest.raises(TimedOutError, match=r"within 0\.05 s"):
        Bounded(interrupted.set).call(hang, 0.05)
    assert ended.wait(LONG_S)


def test_abort_from_another_thread() -> None:
    interrupted, begun, ended = threading.Event(), threading.Event(), threading.Event()
    bounded = Bounded(interrupted.set)

    def hang() -> None:
        begun.set()
        interrupted.wait(LONG_S)
        ended.set()

    def abort() -> None:
        assert begun.wait(LONG_S)
        bounded.abort()

    thread = threading.Thread(target=abort)
    thread.start()
    with pytest.raises(AbortedError):
        bounded.call(hang, LONG_S)
    thread.join()
    assert ended.wait(LONG_S)
    with pytest.raises(AbortedError):
        bounded.call(lambda: 7, LONG_S)
