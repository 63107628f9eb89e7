"""Questions to a member of the job, one connection each."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

from undaunted.base.deadline import wait_for
from undaunted.base.text import format_duration
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import election
from undaunted.coordinator.service import ledger_file
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import WireError

if TYPE_CHECKING:
    import ssl

    from undaunted.coordinator.wire.connection import Connection
    from undaunted.coordinator.wire.handshake import Terms

# Members ask each other again every second.
ANSWER_S = 1.0
# Members of a job that has ended, which `left_behind` asks at the same time.
_AT_ONCE = 64


class _Answer:
    """Handler of a connection for one question."""

    def __init__(self, question: p.Message) -> None:
        self._question = question
        self.answer: asyncio.Future[p.Message] = asyncio.get_running_loop().create_future()

    def opened(self, connection: Connection) -> None:
        connection.send(self._question)

    def received(self, connection: Connection, message: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(message)
        connection.close("answered")

    def closed(self, connection: Connection, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(WireError(f"{connection.peer}: {reason}"))
            self.answer.exception()  # has been seen, should nobody wait any more


async def ask(
    address: str, question: p.Message, terms: Terms, tls: ssl.SSLContext | None
) -> p.Message | None:
    """Return the answer of whoever listens at ``address``; None = there is none within a second."""
    try:
        return await answer_of(address, question, terms, tls, timeout_s=ANSWER_S)
    except WireError:
        return None


async def answer_of(
    address: str,
    question: p.Message,
    terms: Terms,
    tls: ssl.SSLContext | None,
    *,
    timeout_s: float,
    longest: int = p.MAX_MESSAGE_BYTES,
) -> p.Message:
    """Return the answer of whoever listens at ``address``.

    Args:
        address: see `connect`.
        question: what is said there.
        terms: see `connect`.
        tls: see `connect`.
        timeout_s: longest duration until there is a connection, and then until the answer is there.
        longest: how many bytes the answer may have.

    Raises:
        WireError: there is none; says why.
    """
    waiting = _Answer(question)
    connection = await connect(
        address, waiting, terms, tls=tls, longest=longest, timeout_s=timeout_s
    )
    try:
        return await wait_for(waiting.answer, timeout_s)
    except TimeoutError:
        late = f"{address}: no answer within {format_duration(timeout_s)}"
        raise WireError(late, number=errno.ETIMEDOUT) from None
    finally:
        connection.close("no answer in time")


async def left_behind(
    directory: str,
    endpoint: str,
    run_id: str,
    terms: Terms,
    tls: ssl.SSLContext | None,
    attempt: int = 0,
) -> p.Ledger:
    """Return the ledger that an earlier coordinator of this job has left, if any member lives.

    Otherwise the job begins anew, with an empty ledger of the same epoch; so it does if the ledger
    is of an earlier attempt. A job is known by its run id and by where it meets.

    Raises:
        ValueError: the file is no ledger.
    """
    known = await asyncio.to_thread(ledger_file.read, directory, endpoint)
    if known is None or known.run_id != run_id:
        return p.NO_LEDGER
    goes_on = known.attempt >= attempt and await living(known, terms, tls)
    return known if goes_on else anew(known)


def anew(known: p.Ledger) -> p.Ledger:
    """Return the ledger of a job that begins anew after that of a ledger."""
    return p.Ledger(run_id="", epoch=known.epoch)


async def living(
    known: p.Ledger, terms: Terms, tls: ssl.SSLContext | None
) -> dict[election.Voter, p.MissAnswer]:
    """Ask the members of a ledger's table; return the answers of those that live."""
    question = p.Miss(node="", incarnation="", epoch=known.epoch)
    slots = asyncio.Semaphore(_AT_ONCE)

    async def answer_of_member(seat: p.Seat) -> p.Message | None:
        async with slots:
            return await ask(seat.address, question, terms, tls)

    seats = [seat for seat in known.table if seat.address]
    answers = await asyncio.gather(*map(answer_of_member, seats))
    return {
        election.voter(seat): answer
        for seat, answer in zip(seats, answers, strict=True)
        if isinstance(answer, p.MissAnswer) and answer.incarnation == seat.incarnation
    }
