"""The decision about a failure: restart, go on without nodes, or stop. Pure; see the design.

The table `CAUSES` says what each cause asks for and how often it must have been seen; the history
of the job says how often it was. Where anything is in doubt the answer is a restart: a job that was
stopped and would have run is the worst error there is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from undaunted.attribution.findings import (
    CAUSES,
    LAUNCHER_ERROR,
    MISSING,
    SURE,
    UNEQUAL,
    UNSAVED,
    Action,
    Finding,
    worst_first,
)
from undaunted.base.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_FAILURES = 32
MOST_BYTES = 16 << 10  # of a history, encoded
_LONGEST = 80  # characters of a fingerprint
_MOST_NODES = 8  # of a failure; of more the failure is no node's
# On every node, and however far the job came, these come again.
_EVERYWHERE = frozenset({LAUNCHER_ERROR, UNSAVED})
# What differs between two failures that are the same: numbers, addresses, paths.
_DIFFERS = re.compile(r"0x[0-9a-f]+|(?:/[^\s:'\"]+)+|\b[0-9a-f]{8,}\b|\d+(?:\.\d+)?", re.IGNORECASE)

# The type at the front, behind the prefix of a log: `_queue.Empty`, `requests.Timeout: text`.
_TYPE = re.compile(r"(?:\[[^\]\s]*\]:? ?)?(?:[\w<>]+\.)*(_*[A-Z]\w*)(?::|\s*$)")
_EXCEPTION = re.compile(r"\b([A-Z]\w{0,60}(?:Error|Exception|Exit|Interrupt))\b")
# Exceptions that a program raises because of its own code and data: those of Python, and that of a
# checkpoint which does not fit the state.
_OWN_NAMES = """
    ArithmeticError AssertionError AttributeError FloatingPointError ImportError
    IndentationError IndexError KeyError LookupError ModuleNotFoundError NameError
    NotImplementedError OverflowError RecursionError StructureError SyntaxError TabError
    TypeError UnboundLocalError UnicodeDecodeError UnicodeEncodeError UnicodeError ValueError
    ZeroDivisionError
"""
_OWN = frozenset(_OWN_NAMES.split())


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a round: an attempt of the job, and a strike of each node that is named.

    Attributes:
        cause: its name in `CAUSES`, "" = it did not fail, or nothing is known of why.
        fingerprint: what of the text stays the same when it happens again.
        iteration: the last one that was begun, None = none.
        ranks: to blame; empty = not known, or all.
        nodes: to blame; empty = not known, or all.
        t: when, seconds since 1970.
    """

    cause: str
    fingerprint: str = ""
    iteration: int | None = None
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    t: float = 0.0

    def repeats(self, other: Failure) -> bool:
        """Return whether it is the same failure once more, with no progress in between."""
        return (
            self.cause == other.cause
            and self.fingerprint == other.fingerprint
            and self.iteration == other.iteration
        )

    def came_further(self, other: Failure) -> bool:
        """Return whether this round has passed the point at which the other one ended."""
        if self.iteration is None:
            return False
        return other.iteration is None or self.iteration > other.iteration


class History(msgspec.Struct, frozen=True):
    """The last rounds of a job that are over, the newest last; at most `MOST_FAILURES`."""

    failures: tuple[Failure, ...] = ()

    def after(self, failure: Failure) -> History:
        """Return the history with one more failure, and without the oldest if there are many."""
        return History((*self.failures, failure)[-MOST_FAILURES:])

    def strikes(self, node: str, cause: str) -> int:
        """Return how many failures of a cause name a node."""
        return sum(node in one.nodes and one.cause == cause for one in self.failures)

    def same(self, failure: Failure) -> list[Failure]:
        """Return the same failures since a round last came further, the newest first."""
        found: list[Failure] = []
        for one in reversed(self.failures):
            if one.repeats(failure):
                found.append(one)
            elif one.came_further(failure):
                break
        return found

    def encode(self) -> bytes:
        """Return at most `MOST_BYTES`; the oldest failures are left out for that."""
        encoded, history = msgspec.msgpack.encode(self), self
        while len(encoded) > MOST_BYTES:
            history = History(history.failures[1:])
            encoded = msgspec.msgpack.encode(history)
        return encoded

    @classmethod
    def decode(cls, encoded: bytes) -> History:
        """Return what `encode` has made.

        Raises:
            ValueError: it is something else.
        """
        try:
            known = msgspec.msgpack.decode(encoded, type=cls) if encoded else cls()
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from None
        return cls(known.failures[-MOST_FAILURES:])


class Round(msgspec.Struct, frozen=True):
    """The facts about the round that failed.

    Attributes:
        nodes: that took part.
        spare: how many of them the job can go on without, or replace.
        iteration: the last one that was begun, None = none.
        t: when it failed, seconds since 1970.
        progress_known: False where iterations may have been done of which nobody was told.
        hung: a limit was passed.
    """

    nodes: tuple[str, ...]
    spare: int = 0
    iteration: int | None = None
    t: float = 0.0
    progress_known: bool = True
    hung: bool = False


class Decision(msgspec.Struct, frozen=True):
    """The act, and its reason.

    Attributes:
        action: ``restart``, ``exclude`` or ``stop``.
        reason: in one line.
        nodes: to go on without; of ``exclude`` only.
        cause: the root cause, None = nothing was found out.
        repeats: how often the job has failed so, with no progress in between; 0 = not known.
    """

    action: Action
    reason: str
    nodes: tuple[str, ...] = ()
    cause: Finding | None = None
    repeats: int = 0


def decide(history: History, findings: Iterable[Finding], about: Round) -> tuple[History, Decision]:
    """Say what to do after a round that failed.

    Args:
        history: of the rounds before.
        findings: about this one, in any order.
        about: the round.

    Returns:
        The history with this failure, and what to do.
    """
    root = next(iter(worst_first(findings)), None)
    if root is None:
        return without_cause(history, about), Decision("restart", "nothing is known of the cause")
    nodes = root.nodes if len(root.nodes) <= _MOST_NODES else ()
    failure = Failure(
        cause=root.cause,
        # What is missing now and then is often another file.
        fingerprint=root.quote if root.cause == MISSING else fingerprint(root.quote),
        iteration=about.iteration,
        ranks=root.ranks if len(root.ranks) <= _MOST_NODES else (),
        nodes=nodes if set(nodes) != set(about.nodes) else (),
        t=root.t or about.t,
    )
    history = history.after(failure)
    action, reason = _weigh(history, failure, root, about)
    without = failure.nodes if action == "exclude" else ()
    repeats = len(history.same(failure)) if about.progress_known else 0
    return history, Decision(action, reason, without, root, repeats)


def without_cause(history: History, about: Round) -> History:
    """Return the history with a round that did not fail, or of whose failure nothing is known."""
    attempt = Failure("", iteration=about.iteration, t=about.t)
    return history if about.iteration is None else history.after(attempt)


def fingerprint(quote: str) -> str:
    """Return what of a text stays the same when the failure happens again."""
    return one_line(_DIFFERS.sub("#", quote), longest=_LONGEST)


def _weigh(history: History, failure: Failure, root: Finding, about: Round) -> tuple[Action, str]:
    known = CAUSES.get(root.cause)
    what = root.cause if known is None else known.meaning
    if known is None or known.action == "restart":
        return "restart", what
    if root.confidence < SURE:
        return "restart", f"{what}, which is not certain"
    if known.action == "exclude":
        return _exclude(history, failure, what, known.after, about)
    if about.hung and root.cause != UNEQUAL:
        return "restart", f"{what}; after a hang no job is stopped"
    if not about.progress_known and root.cause not in _EVERYWHERE:
        return "restart", f"{what}; how far the job came is not known"
    if root.cause == "program_error" and _may_be_environmental(root.quote):
        return "restart", f"{what}, which may have its reason elsewhere"
    same = history.same(failure)
    times = len(same)
    at = (
        "before the first iteration"
        if about.iteration is None
        else f"at iteration {about.iteration}"
    )
    # It may be the node after all: what happens without it will show, where it can be spared.
    elsewhere = root.cause not in _EVERYWHERE and _always_one_node(same)
    there = elsewhere and len(failure.nodes) <= about.spare
    if times < known.after:
        then = "exclude" if there else "stop"
        return "restart", f"{what}, {_seen(times)} {at}; {_later(known.after, then)}"
    if there:
        names = ", ".join(failure.nodes)
        return "exclude", f"{what} on {names}: {times} times {at}, each time there"
    often = f"{times} times {at}" if times > 1 else at
    return "stop", f"{what}: {often}, so a restart would end so again"


def _seen(times: int) -> str:
    return "seen once" if times == 1 else f"seen {times} times"


def _later(after: int, then: str) -> str:
    return f"after {after} times the advice is: {then}"


def _may_be_environmental(quote: str) -> bool:
    """Whether an exception may be of a kind that what is around the program causes as well."""
    named = _TYPE.match(quote) or _EXCEPTION.search(quote)
    return named is not None and named[1] not in _OWN


def _always_one_node(failures: list[Failure]) -> bool:
    first = failures[0].nodes
    return bool(first) and all(one.nodes == first for one in failures)


def _exclude(
    history: History, failure: Failure, what: str, after: int, about: Round
) -> tuple[Action, str]:
    nodes = failure.nodes
    if len(about.nodes) == 1:
        times = len(history.same(failure))
        again = f", {times} times at the same iteration" if times > 1 else ""
        return "restart", f"{what}{again}; the job has no other node"
    if not nodes:
        return "restart", f"{what}; no node is known to be the cause"
    names = ", ".join(nodes)
    strikes = min(history.strikes(node, failure.cause) for node in nodes)
    if strikes < after:
        return "restart", f"{what} on {names}, {_seen(strikes)}; {_later(after, 'exclude')}"
    if len(nodes) > about.spare:
        return "restart", f"{what} on {names}, but the job cannot go on with fewer nodes"
    return "exclude", f"{what} on {names}"
