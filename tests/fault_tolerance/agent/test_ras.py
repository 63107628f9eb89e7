"""NCCL is asked who keeps the others waiting: a stand-in for its RAS service answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.attribution.test_nccl_ras import MISMATCH, answer, rank
from undaunted.attribution.nccl_ras import MOST_BYTES
from undaunted.fault_tolerance.agent import ras

if TYPE_CHECKING:
    from collections.abc import Callable

JSON = answer(([rank(0, AllReduce=4), rank(1, AllReduce=3)], []))


class Service:
    """Speaks as NCCL does, line by line; notes what it was told."""

    def __init__(self, *, knows_json: bool = True, told: bytes = JSON) -> None:
        self.knows_json = knows_json
        self.told = told
        self.lines: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().strip():
            self.lines.append(line)
            if line.startswith("CLIENT PROTOCOL"):
                writer.write(b"SERVER PROTOCOL 2\n")
            elif line.startswith("SET FORMAT") and not self.knows_json:
                writer.write(b"ERROR: Unknown command\n")
            elif line == "VERBOSE STATUS":
                writer.write(self.told)
                await writer.drain()
                break
            else:
                writer.write(b"OK\n")
        writer.close()


def asked(handler: Callable[..., Any], *pids: int, **environment: str) -> dict[int, str]:
    async def run() -> dict[int, str]:
        over = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            over.append(asyncio.current_task())
            with contextlib.suppress(OSError):
                await handler(reader, writer)
                await reader.read()  # until it is left alone
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = {"NCCL_RAS_ADDR": f"127.0.0.1:{port}"}
        try:
            return await ras.ask({**address, **environment}, pids or {100, 101})
        finally:
            server.close()
            await asyncio.wait_for(asyncio.gather(*over), 30)

    return asyncio.run(run())


def test_a_rank_that_is_behind_is_named() -> None:
    service = Service()
    assert asked(service).keys() == {101}
    assert service.lines[-1] == "VERBOSE STATUS"


def test_an_older_nccl_answers_in_text() -> None:
    assert asked(Service(knows_json=False, told=MISMATCH.encode()), 100, 103).keys() == {103}


@pytest.mark.parametrize("value", ["0", " 0 "])
def test_where_it_is_off_nobody_is_asked(value: str) -> None:
    service = Service()
    assert asked(service, NCCL_RAS_ENABLE=value) == {}
    assert service.lines == []


async def never_answers(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await reader.read()


async def another_service(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example.org ESMTP\r\n")


async def endless_line(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SERVER PROTOCOL " + b"9" * (1 << 20))


async def ends_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("handler", [never_answers, another_service, endless_line, ends_at_once])
def test_who_does_not_answer_as_nccl_says_nothing(handler: Callable[..., Any]) -> None:
    assert asked(handler) == {}


def test_an_answer_without_end_is_not_kept() -> None:
    assert asked(Service(told=b"communicator " * (MOST_BYTES // 13 + 2))) == {}


def test_the_whole_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "_ANSWER_S", 0.05)
    monkeypatch.setattr(ras, "_GREETING_S", 60.0)
    began = time.monotonic()
    assert asked(never_answers) == {}
    assert time.monotonic() - began < 30


def test_no_service_and_odd_addresses() -> None:
    for address in ("", "localhost", ":", "[::1]:1", "127.0.0.1:1", "x:70000", "\x00:5", "a:²"):
        found = asyncio.run(ras.ask({"NCCL_RAS_ADDR": address}, {100}))
        assert found == {}, address
