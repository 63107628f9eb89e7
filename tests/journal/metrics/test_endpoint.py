"""A scraper is answered, or refused, and cannot hold anything up."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from undaunted.base.http_server import MOST
from undaunted.journal.metrics.endpoint import Endpoint
from undaunted.journal.metrics.exposition import Family

pytest.importorskip("prometheus_client")

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

WAIT_S = 30.0


def some() -> list[Family]:
    return [Family("undaunted_round", "Number.").add(3, node="n0")]


@contextlib.contextmanager
def serving(
    read: Callable[[], list[Family]] = some,
    *,
    token: bytes = b"",
    tls: ssl.SSLContext | None = None,
    deadline_s: float = WAIT_S,
) -> Iterator[tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    endpoint = Endpoint(listener, read, token=token, tls=tls, deadline_s=deadline_s)
    try:
        yield address
    finally:
        assert endpoint.close(WAIT_S)


def ask(address: tuple[str, int], request: str) -> str:
    """What comes back until the end."""
    with socket.create_connection(address, timeout=WAIT_S) as connection:
        connection.sendall(request.replace("\n", "\r\n").encode())
        return read_all(connection)


def read_all(connection: socket.socket) -> str:
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


def get(path: str = "/metrics", *headers: str) -> str:
    return "\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""])


def test_a_scrape() -> None:
    with serving() as address:
        head, body = ask(address, get()).split("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain")
    assert f"Content-Length: {len(body)}" in head
    assert 'undaunted_round{node="n0"} 3.0' in body


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (get("/"), "200 OK"),
        (get("/other"), "404"),
        (get("/metrics?x=1"), "200 OK"),
        ("HEAD /metrics HTTP/1.1\n\n", "200 OK"),
        ("POST /metrics HTTP/1.1\n\n", "405"),
        ("\n\n", "400"),
        ("GET /metrics\n\n", "400"),
        ("\0\xff\n\n", "400"),
        (get("/metrics", "X: " + "x" * 70_000), "431"),
    ],
)
def test_other_requests(request_text: str, status: str) -> None:
    with serving() as address:
        answer = ask(address, request_text)
    assert answer.startswith(f"HTTP/1.1 {status}") or (status == "431" and not answer)
    if request_text.startswith("HEAD"):
        assert answer.endswith("\r\n\r\n")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (("Authorization: Bearer the right token",), "200"),
        (("authorization:Bearer the right token",), "200"),
        (("Authorization: bearer  the right token",), "200"),
        (("Authorization: the right token",), "401"),
        (("Authorization: Bearer the wrong token",), "401"),
        (("Authorization: Basic the right token",), "401"),
        ((), "401"),
    ],
)
def test_a_token(headers: tuple[str, ...], status: str) -> None:
    with serving(token=b"the right token") as address:
        answer = ask(address, get("/metrics", *headers))
    assert answer.startswith(f"HTTP/1.1 {status}")
    assert ("undaunted_round" in answer) == (status == "200")
    assert "the right token" not in answer


def test_what_cannot_be_read_is_told_to_who_asks() -> None:
    def broken() -> list[Family]:
        raise ValueError("no pages")

    with serving(broken) as address:
        assert "500" in (answer := ask(address, get()))
        assert "ValueError: no pages" in answer
        assert "404" in ask(address, get("/other"))  # and it goes on


def test_who_asks_at_once_again_gets_the_same() -> None:
    calls = []

    def counting() -> list[Family]:
        calls.append(1)
        return some()

    with serving(counting) as address:
        for _ in range(20):
            ask(address, get())
    assert len(calls) < 20


def test_silent_scrapers_do_not_keep_others_out() -> None:
    with serving(deadline_s=3600) as address, contextlib.ExitStack() as silent:
        for _ in range(3 * MOST):
            connection = socket.create_connection(address, timeout=WAIT_S)
            silent.enter_context(connection)
            connection.sendall(b"GET /metr")
        assert "200 OK" in ask(address, get())


def test_a_silent_one_is_let_go_in_the_end() -> None:
    with serving(deadline_s=0.05) as address:
        connection = socket.create_connection(address, timeout=WAIT_S)
        with connection:
            assert connection.recv(1) == b""


def test_those_who_do_not_read_their_answers_are_let_go() -> None:
    def much() -> list[Family]:
        family = Family("undaunted_round", "Number.")
        for number in range(20_000):
            family.add(1, node=f"a node with a long name {number}")
        return [family]

    with serving(much, deadline_s=3600) as address, contextlib.ExitStack() as lazy:
        for _ in range(2 * MOST):
            connection = socket.create_connection(address, timeout=WAIT_S)
            lazy.enter_context(connection)
            connection.sendall(get().replace("\n", "\r\n").encode())
        assert "200 OK" in ask(address, get())


def test_an_end_does_not_wait_for_those_being_served() -> None:
    with serving(deadline_s=3600) as address:
        connection = socket.create_connection(address, timeout=WAIT_S)
    with connection:
        assert read_all(connection) == ""
