"""Pages on a loop; how a client is kept from holding it up is in tests/journal/metrics."""

from __future__ import annotations

import asyncio
import socket

from undaunted.base.http_client import exchange
from undaunted.base.http_server import Page, PageServer

LIMIT_S = 20.0


def page(path: str, accept: str) -> Page:
    return Page(f"{path} {accept}") if path == "/a" else Page("{}", "application/json", "404 None")


async def asked(path: str, *, token: bytes = b"", shown: bytes = b"") -> tuple[int, bytes]:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = PageServer(listener, page, token=token, token_option="--some-file")
    try:
        answer = await asyncio.to_thread(exchange, url, "GET", path, limit_s=LIMIT_S, token=shown)
    finally:
        await server.close()
    return answer.status, answer.body


def test_pages() -> None:
    assert asyncio.run(asked("/a")) == (200, b"/a ")
    assert asyncio.run(asked("/b")) == (404, b"{}")


def test_token_is_asked_for() -> None:
    status, text = asyncio.run(asked("/a", token=b"secret", shown=b"wrong"))
    assert status == 401
    assert b"--some-file" in text
    assert asyncio.run(asked("/a", token=b"secret", shown=b"secret"))[0] == 200
