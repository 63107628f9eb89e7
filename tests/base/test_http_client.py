"""One request and its answer, or why there is none."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.base import http_client
from undaunted.base.http_client import NoAnswerError, exchange

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_S = 20.0
REFUSED = b"HTTP/1.1 429 Slowly\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\nno"


@contextlib.contextmanager
def answering(listener: socket.socket, answer: bytes | None) -> Iterator[list[bytes]]:
    """Give one client this answer, None = none; what it sent is found afterwards."""
    sent: list[bytes] = []
    over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            data = b""
            while b"\r\n\r\n" not in data:
                data += connection.recv(65536)
            sent.append(data)
            if answer is None:
                over.wait(LIMIT_S)
            else:
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join(LIMIT_S)
        listener.close()


def over_tcp(answer: bytes | None) -> tuple[str, contextlib.AbstractContextManager[list[bytes]]]:
    listener = socket.create_server(("127.0.0.1", 0))
    return f"http://127.0.0.1:{listener.getsockname()[1]}", answering(listener, answer)


def test_request_and_answer_whatever_its_status() -> None:
    url, served = over_tcp(REFUSED)
    with served as sent:
        response = exchange(url, "POST", "/a?b=1", "{}", limit_s=LIMIT_S, token=b"secret")
    assert response == (429, b"no", "7")
    head, body = sent[0].split(b"\r\n\r\n")
    assert head.startswith(b"POST /a?b=1 HTTP/1.1\r\n")
    assert {b"Authorization: Bearer secret", b"Content-Type: application/json"} < set(
        head.split(b"\r\n")
    )
    assert body in {b"", b"{}"}  # it may come in a piece of its own


def test_over_a_unix_socket(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    with answering(listener, b"HTTP/1.1 200 OK\r\n\r\nyes") as sent:
        assert exchange(f"unix://{tmp_path}/s", "GET", "/", limit_s=LIMIT_S) == (200, b"yes", "")
    assert b"Authorization" not in sent[0]


@pytest.mark.parametrize(
    ("answer", "limit_s", "said"),
    [
        (None, 0.05, "no answer within 0.05 s"),
        (b"hello\r\n\r\n", LIMIT_S, "hello"),
        (b"", LIMIT_S, "Remote end closed"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2000), LIMIT_S, "longer than"),
    ],
)
def test_no_usable_answer(
    answer: bytes | None, limit_s: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "_LONGEST_ANSWER", 1000)
    url, served = over_tcp(answer)
    with served, pytest.raises((NoAnswerError, ConnectionError), match=said):
        exchange(url, "GET", "/", limit_s=limit_s)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        exchange(f"unix://{tmp_path}/none", "GET", "/", limit_s=LIMIT_S)
