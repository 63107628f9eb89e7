"""Is anybody left of the job that a ledger on disk is about?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from undaunted.coordinator import protocol as p
from undaunted.coordinator.service import ledger_file
from undaunted.coordinator.service.asking import ask

if TYPE_CHECKING:
    import ssl

    from undaunted.coordinator.wire.handshake import Terms

_AT_ONCE = 64


async def left_behind(
    directory: str, endpoint: str, run_id: str, terms: Terms, tls: ssl.SSLContext | None
) -> tuple[p.Ledger, bool]:
    """Return what an earlier coordinator of this job has left, and whether any member lives.

    A job is known by its run id and by where it meets.

    Without a file, or with one of another job, the ledger is empty.

    Raises:
        ValueError: the file is no ledger.
    """
    known = await asyncio.to_thread(ledger_file.read, directory, endpoint)
    if known is None or known.run_id != run_id:
        return p.Ledger(run_id=""), False
    question = p.Miss(node="", incarnation="", epoch=known.epoch)
    slots = asyncio.Semaphore(_AT_ONCE)

    async def lives(seat: p.Seat) -> bool:
        async with slots:
            answer = await ask(seat.address, question, terms, tls)
        return isinstance(answer, p.MissAnswer) and answer.incarnation == seat.incarnation

    seats = [seat for seat in known.table if seat.address]
    return known, any(await asyncio.gather(*map(lives, seats)))
