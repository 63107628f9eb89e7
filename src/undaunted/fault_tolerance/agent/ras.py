"""Asks NCCL's RAS service, which listens in one of the ranks of each node, once in a hang.

Lines of text on TCP. Whatever does not answer as NCCL does, at once, is not asked any further.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from undaunted.attribution.nccl_ras import MOST_BYTES, parse
from undaunted.base.deadline import wait_for

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_PORT = 28028
_GREETING_S = 0.3  # a thread that does nothing else answers
# Within the look at the ranks, which takes up to 1.6 s. NCCL waits this long for processes that do
# not answer, in whole seconds.
_NCCL_S = 1
_ANSWER_S = 1.3
_MOST_LINE = 4096


async def ask(environment: Mapping[str, str], pids: Collection[int]) -> dict[int, str]:
    """Return what NCCL says of these ranks that keep others waiting, by pid.

    Args:
        environment: of the ranks: ``NCCL_RAS_ENABLE``, ``NCCL_RAS_ADDR``.
        pids: of ranks of this node, living or dead.
    """
    if environment.get("NCCL_RAS_ENABLE", "").strip() == "0" or not pids:
        return {}
    host, port = _address(environment.get("NCCL_RAS_ADDR", ""))
    try:
        answer = await wait_for(_answer(host, port), _ANSWER_S)
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return {}
    # Large jobs answer megabytes.
    report = await asyncio.to_thread(parse, answer) if answer else None
    return report.of(pids) if report is not None else {}


def _address(value: str) -> tuple[str, int]:
    host, colon, port = value.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return "localhost", _PORT
    return host.strip("[]") or "localhost", int(port)


async def _answer(host: str, port: int) -> bytes:
    reader, writer = await wait_for(
        asyncio.open_connection(host, port, limit=_MOST_LINE), _GREETING_S
    )
    try:
        greeting = await wait_for(_say(reader, writer, "CLIENT PROTOCOL 2"), _GREETING_S)
        if not greeting.upper().startswith(b"SERVER PROTOCOL "):
            return b""
        await wait_for(_say(reader, writer, f"TIMEOUT {_NCCL_S}"), _GREETING_S)
        # Before 2.28 NCCL says that it does not know this: it answers in text.
        await wait_for(_say(reader, writer, "SET FORMAT json"), _GREETING_S)
        writer.write(b"VERBOSE STATUS\n")
        return await _rest(reader)
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str) -> bytes:
    writer.write(f"{line}\n".encode())
    return await reader.readuntil(b"\n")


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """Return all that comes, b"" if it is more than any job has to say."""
    parts = []
    left = MOST_BYTES
    while part := await reader.read(1 << 16):
        parts.append(part)
        left -= len(part)
        if left < 0:
            return b""
    return b"".join(parts)
