"""Asks the launchers of a job: at the sockets of a run directory, or through its coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from undaunted import __version__
from undaunted.base import process
from undaunted.base.text import printable
from undaunted.coordinator.protocol import MAX_ANSWER_BYTES, Answer, Question, Refused
from undaunted.coordinator.service.asking import UnansweredError, answer_of
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.network import Sockets
from undaunted.coordinator.wire.sockets import peer
from undaunted.fault_tolerance import control_socket as s
from undaunted.journal.reader import newest_run

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from undaunted.coordinator.protocol import Message

T = TypeVar("T")

ANSWER_S = 15.0  # for an answer; a launcher needs 5 s itself, and the coordinator 10 s for another
_AT_ONCE = 4  # launchers that are asked; each of them answers 8 clients
REACH_S = 5.0  # for a launcher to take a connection; one that does not is stopped, or gone
_AGAIN_S = 0.5  # until who has sent us to a leader that is gone is asked for the next one
_MOST_LEADERS = 5  # one after the other, as one sends us to the next


class NoAnswerError(Exception):
    """A launcher does not answer, or refuses; the message says which one and why."""


class Launchers(Protocol):
    """Those of a job that can be asked, by names that only `ask` understands."""

    async def names(self, question: s.Question) -> list[str]:
        """Return whom a question is for; raises NoAnswerError where there is nobody."""

    async def ask(self, name: str, question: s.Question) -> s.Answer:
        """Return what one of them answers; raises NoAnswerError if it does not."""


class Here:
    """The launchers on this machine that share a run directory; names are those of sockets."""

    def __init__(self, run: Path) -> None:
        self._run = run.absolute()

    async def names(self, question: s.Question) -> list[str]:
        """Find the sockets."""
        del question
        found = sorted(each.name for each in self._run.glob(f"{s.PREFIX}*{s.SUFFIX}"))
        if not found:
            raise NoAnswerError(f"{self._run}: no launcher can be asked here: {self._nobody()}")
        return [each.removeprefix(s.PREFIX).removesuffix(s.SUFFIX) for each in found]

    def _nobody(self) -> str:
        if inside := newest_run(self._run):
            return f"this is no run, but holds some; the newest one is {inside}"
        return (
            "the run is over (undaunted report says how it ended), has only just begun, or is on "
            "other machines; ask its coordinator, if it has several nodes: undaunted ctl HOST:PORT"
        )

    async def ask(self, name: str, question: s.Question) -> s.Answer:
        """Ask at a socket."""
        place = self._run / s.file_name(name)
        try:
            with s.address_of(place) as address:
                asked = Question(data=msgspec.json.encode(question))
                said = await _said(address, asked, Sockets(Terms("", __version__)))
        except (OSError, WireError) as error:
            why = f"{_why(place, error)}{_fate(question, error)}"
            raise NoAnswerError(f"node {name}: {why}") from None
        return _answer(said, f"node {name}")


def _fate(question: s.Question, error: Exception) -> str:
    """What is known of an order where no answer has come; who reads it later finds nobody."""
    if isinstance(question, s.Order) and isinstance(error, WireError) and not error.refused:
        if error.number == errno.ETIMEDOUT:
            return "; an order that it has not read yet is not carried out any more"
        if not error.number:
            return "; whether it has passed an order on is not known: see status"
    return ""


def _why(place: Path, error: Exception) -> str:
    number = error.number if isinstance(error, WireError) else 0
    if number == errno.ENOENT:
        return "there is no such launcher here; undaunted ctl RUN status shows those that run"
    if number == errno.ECONNREFUSED:
        return (
            "no launcher listens at its socket here: it was killed (undaunted report says how far "
            "the run came), or it runs on another machine (call undaunted ctl there)"
        )
    if number == errno.ENOTCONN:  # as asyncio sees it
        return "too many others wait for it: try again"
    if number != errno.ETIMEDOUT:
        return str(error)
    pid = _pid_at(place)
    stopped = process.state(pid) in ("T", "t")
    what = f"is stopped by a signal: kill -CONT {pid}" if stopped else "does not answer"
    late_s = ANSWER_S if isinstance(error, UnansweredError) else _reach_s()
    return f"its launcher (pid {pid}) {what}; no answer within {late_s:g} s"


def _pid_at(place: Path) -> int:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as link,
        contextlib.suppress(OSError),
        s.address_of(place) as address,
    ):
        link.connect(address)
        return peer(link).pid
    return 0


class There:
    """The launchers of a job of several nodes, through their leader; a name is that of a node.

    Args:
        address: ``HOST:PORT`` of a coordinator; one that does not lead knows who does.
        token: of the job.
        tls: None = it does not use it.
    """

    def __init__(self, address: str, token: bytes, tls: ssl.SSLContext | None) -> None:
        self._leader, self._network = address, Sockets(Terms("", __version__, token), tls)

    async def names(self, question: s.Question) -> list[str]:
        """Have the leader, who is "", name the others; orders are for the leader only."""
        if isinstance(question, s.Order):
            return [""]
        answer = await self.ask("", s.Status())
        job = body_of(answer, s.NodeStatus).job
        nodes = [*(each.node for each in job.members), *(job.spares or [])]
        return ["", *(each for each in nodes if each != answer.node)]

    async def ask(self, name: str, question: s.Question) -> s.Answer:
        """Have a node answer, or the leader."""
        asked = Question(data=msgspec.json.encode(question), node=name)
        until = asyncio.get_running_loop().time() + ANSWER_S
        sent_by = sent_on = ""
        sent = 0
        while True:
            try:
                said = await _said(self._leader, asked, self._network)
            except WireError as error:
                if sent_by and _may_be_replaced(error, until):
                    await asyncio.sleep(_AGAIN_S)
                    self._leader, sent_by, sent = sent_by, "", 0
                    continue
                late = f"{self._leader}: no answer within {_reach_s():g} s"
                why = late if sent_on and error.number == errno.ETIMEDOUT else str(error)
                remedy = _remedy(error, sent_on=bool(sent_on))
                raise NoAnswerError(f"{sent_on}{why}{remedy}{_fate(question, error)}") from None
            sent += 1
            if not isinstance(said, Refused) or not said.leader or sent == _MOST_LEADERS:
                return _answer(said, self._leader)
            sent_on, sent_by = f"{self._leader}: {said.reason}; ", self._leader
            self._leader = said.leader


def _reach_s() -> float:
    return min(REACH_S, ANSWER_S)


def _may_be_replaced(error: WireError, until: float) -> bool:
    """Return whether no leader has heard the question, and there is time to wait for another."""
    if isinstance(error, UnansweredError) or error.refused:
        return False
    return asyncio.get_running_loop().time() + _AGAIN_S < until


def _remedy(error: WireError, *, sent_on: bool) -> str:
    """What to do where nobody has answered from another machine."""
    if error.refused:
        return "; --token-file takes the token of its launchers, --tls-ca is for their TLS"
    if sent_on:
        return "; ask again: another node may lead soon"
    if error.number == errno.ECONNREFUSED:
        return (
            "; nobody listens there: the job, or only its leader, has ended or not begun; any of "
            "its launchers says who leads"
        )
    if error.number == errno.ETIMEDOUT:
        return "; its launcher may be stopped: ask that of another node"
    return ""


async def _said(address: str, asked: Question, network: Sockets) -> Message:
    return await answer_of(
        address,
        asked,
        network,
        timeout_s=ANSWER_S,
        reach_s=_reach_s(),
        longest=MAX_ANSWER_BYTES,
    )


def _answer(said: Message, who: str) -> s.Answer:
    if isinstance(said, Refused):
        raise NoAnswerError(f"{who}: {said.reason}")
    if not isinstance(said, Answer):
        raise NoAnswerError(f"{who}: it has not answered the question")
    try:
        answer = msgspec.json.decode(said.data, type=s.Answer)
    except msgspec.MsgspecError as error:
        raise NoAnswerError(f"{who}: what it answers makes no sense: {error}") from None
    if answer.error:
        raise NoAnswerError(f"node {answer.node}: {answer.error}")
    return answer


def body_of(answer: s.Answer, kind: type[T]) -> T:
    """Return the body of an answer.

    Raises:
        NoAnswerError: it is something else.
    """
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.MsgspecError as error:
        raise NoAnswerError(
            f"node {answer.node}: another version of undaunted runs there ({error})"
        ) from None


def ask(launchers: Launchers, name: str, question: s.Question) -> list[s.Answer]:
    """Return the answers of all launchers, or that of a name; of an order the first that there is.

    Says who has not answered a question.

    Raises:
        NoAnswerError: nobody has.
    """
    is_order = isinstance(question, s.Order)
    slots = asyncio.Semaphore(1 if is_order else _AT_ONCE)
    answers: list[s.Answer] = []

    async def attempt(each: str) -> s.Answer | str | None:
        async with slots:
            if answers and is_order:
                return None
            try:
                answers.append(await launchers.ask(each, question))
            except NoAnswerError as error:
                return str(error)
            return answers[-1]

    async def ask_them() -> list[s.Answer | str | None]:
        names = [name] if name else await launchers.names(question)
        return await asyncio.gather(*map(attempt, names))

    replies = asyncio.run(ask_them())
    problems = [each for each in replies if isinstance(each, str)]
    if not answers:
        raise NoAnswerError("; ".join(problems))
    for problem in problems if not is_order else ():
        print(f"undaunted ctl: {printable(problem)}", file=sys.stderr)
    return [each for each in replies if isinstance(each, s.Answer)]
