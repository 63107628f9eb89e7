"""The socket that ranks call."""

from __future__ import annotations

import asyncio
import stat
from typing import TYPE_CHECKING

import pytest

from undaunted.chaos.nemesis.calls import Call, CallServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

LINE = b'{"fault": "f1", "rank": 1, "iteration": 30, "pid": 7}\n'


async def ask(server: CallServer, line: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(server.path)
    writer.write(line)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def done(_: Call) -> str:
    return ""


def answer_to(directory: Path, line: bytes, act: Callable[[Call], Awaitable[str]]) -> bytes:
    async def run() -> bytes:
        server = CallServer(directory, act)
        await server.start()
        try:
            assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
            return await ask(server, line)
        finally:
            await server.close()
            assert not server.path.exists()

    return asyncio.run(run())


def test_the_fault_is_made_before_the_answer(tmp_path: Path) -> None:
    made: list[Call] = []

    async def act(call: Call) -> str:
        made.append(call)
        return ""

    assert answer_to(tmp_path, LINE, act) == b"done\n"
    assert made == [Call("f1", 1, 30, 7)]


def test_what_could_not_be_made_is_answered(tmp_path: Path) -> None:
    async def act(_: Call) -> str:
        return "failed"

    assert answer_to(tmp_path, LINE, act) == b"failed\n"


@pytest.mark.parametrize("line", [b"", b"\n", b"{", b"[]\n", b"\xff\n", b'{"fault": 3}\n'])
def test_garbage_makes_nothing(tmp_path: Path, line: bytes) -> None:
    async def act(_: Call) -> str:
        raise AssertionError("called")

    assert answer_to(tmp_path, line, act) == b"this is no call\n"


def test_endless_line_is_cut_off(tmp_path: Path) -> None:
    async def run() -> bytes:
        server = CallServer(tmp_path, done)
        await server.start()
        try:
            return await ask(server, b"x" * 100_000)
        except ConnectionError:
            return b""
        finally:
            await server.close()

    assert asyncio.run(run()) == b""


def test_a_caller_that_says_nothing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        server = CallServer(tmp_path, done)
        await server.start()
        _, writer = await asyncio.open_unix_connection(server.path)
        assert await ask(server, LINE) == b"done\n"
        await asyncio.wait_for(server.close(), 10)
        writer.close()

    asyncio.run(run())


def test_a_long_path_is_avoided(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()

    async def run() -> tuple[Path, bytes]:
        server = CallServer(directory, done)
        await server.start()
        try:
            return server.path, await ask(server, LINE)
        finally:
            await server.close()

    path, answer = asyncio.run(run())
    assert answer == b"done\n"
    assert not path.parent.exists()
    assert list(directory.iterdir()) == []
