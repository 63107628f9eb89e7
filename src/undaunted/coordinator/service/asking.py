"""Questions to a member of the job, one connection each."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.deadline import wait_for
from undaunted.base.text import format_duration, one_line
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.times import ANSWER_S
from undaunted.coordinator.wire.connection import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from undaunted.coordinator.service.ledger_file import LedgerFile
    from undaunted.coordinator.wire.connection import Connection
    from undaunted.coordinator.wire.network import Network

# Members of a job that has ended, which `left_behind` asks at the same time.
_AT_ONCE = 64
_LONGEST_NAME = 80  # characters of a name that are shown


class UnansweredError(WireError):
    """A question was sent, and no answer has come: it may have been read."""


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
            self.answer.set_exception(UnansweredError(f"{connection.peer}: {reason}"))
            self.answer.exception()  # has been seen, should nobody wait any more


async def ask(address: str, question: p.Message, network: Network) -> tuple[p.Message | None, bool]:
    """Return the answer of the launcher at ``address``; None = there is none in time.

    The second is whether nobody listens there, so that the launcher has ended.
    """
    answer = answer_of(address, question, network, timeout_s=ANSWER_S)
    try:
        return await wait_for(answer, ANSWER_S), False
    except WireError as error:
        return None, error.number == errno.ECONNREFUSED
    except TimeoutError:
        return None, False


async def answer_of(
    address: str,
    question: p.Message,
    network: Network,
    *,
    timeout_s: float,
    reach_s: float | None = None,
    longest: int = p.MAX_MESSAGE_BYTES,
) -> p.Message:
    """Return the answer of the process that listens at ``address``.

    Args:
        address: see `connect`.
        question: the message.
        network: over which.
        timeout_s: longest duration until there is a connection, and then until the answer is there.
        reach_s: the first of these, None = as long as the other.
        longest: how many bytes the answer may have.

    Raises:
        WireError: there is no connection; says why.
        UnansweredError: there is no answer.
    """
    waiting = _Answer(question)
    connection = await network.connect(
        address,
        waiting,
        longest=longest,
        timeout_s=timeout_s if reach_s is None else reach_s,
    )
    try:
        return await wait_for(waiting.answer, timeout_s)
    except TimeoutError:
        late = f"{address}: no answer within {format_duration(timeout_s)}"
        raise UnansweredError(late, number=errno.ETIMEDOUT) from None
    finally:
        connection.close("no answer in time")


async def left_behind(
    file: LedgerFile, run_id: str, network: Network, say: Callable[[str], None], attempt: int = 0
) -> p.Ledger:
    """Return the ledger that an earlier coordinator of this job has left, if any member lives.

    Otherwise the job begins anew, see `anew`; so it does if the ledger is of an earlier attempt. A
    job is known by its run id and by where it meets. ``say`` shows a line if the ledger is of
    another job.

    Raises:
        ValueError: the file is no ledger.
    """
    known = await asyncio.to_thread(file.read)
    if known is None:
        return p.NO_LEDGER
    if known.run_id != run_id:
        other = one_line(known.run_id, longest=_LONGEST_NAME)
        say(f"the run directory has the state of job {other}: job {run_id} begins without it")
        return p.NO_LEDGER
    goes_on = known.attempt >= attempt and await living(known, network)
    return known if goes_on else anew(known)


def anew(known: p.Ledger) -> p.Ledger:
    """Return what a job begins with that begins anew: what was left, as that of no job."""
    return msgspec.structs.replace(known, run_id="")


async def living(known: p.Ledger, network: Network) -> dict[register.Voter, p.MissAnswer]:
    """Ask the members of a ledger's table and committee; return the answers of those that live."""
    question = p.Miss(node="", incarnation="", epoch=known.epoch)
    slots = asyncio.Semaphore(_AT_ONCE)

    async def answer_of_member(address: str) -> p.Message | None:
        async with slots:
            return (await ask(address, question, network))[0]

    listening = {register.voter(seat): seat.address for seat in known.table if seat.address}
    listening |= {who: each.address for who, each in register.members(known).items()}
    answers = await asyncio.gather(*map(answer_of_member, listening.values()))
    return {
        who: answer
        for who, answer in zip(listening, answers, strict=True)
        if isinstance(answer, p.MissAnswer) and answer.incarnation == who[1]
    }


def goes_on(known: p.Ledger, answers: Mapping[register.Voter, p.MissAnswer]) -> bool:
    """Return whether those that have answered go on with the job: enough, or with a leader.

    Without a committee one of them is enough.
    """
    followed = any(not answer.lost for answer in answers.values())
    return followed or (bool(answers) and register.is_kept_by(answers, known))


def led_by_others(known: p.Ledger, node: str) -> bool:
    """Return whether living members of a ledger have a leader, or find one without ``node``.

    They have a committee, or the lead was handed over to one of them.
    """
    goes_on = known.run_id != ""
    return goes_on and (p.has_committee(known) or known.leader not in ("", node))
