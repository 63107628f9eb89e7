"""Says what is best done after a round that failed: `coordinator.policy.verdict.Advise`.

What a node has found out about its failure goes to the leader as bytes, and so is the history that
the leader keeps. Only this module knows their form.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from undaunted.attribution import decision
from undaunted.attribution.decision import History, Round
from undaunted.attribution.findings import MISMATCH, SURE, UNEQUAL, Finding
from undaunted.attribution.verdicts import GUESSED, blames_rank, cause_seen
from undaunted.base.text import name_ranks, one_line
from undaunted.checkpointing.format.ledger import Failure
from undaunted.coordinator.policy.messages import Advised
from undaunted.coordinator.policy.verdict import Advice, Attempt
from undaunted.journal.events import RoundAdvised, RoundStarted
from undaunted.journal.lines import decode as decode_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from undaunted.journal.events import Verdict

_MOST_BYTES = 4 * 1024  # of what a node has found out
_LONGEST_QUOTE = 400
# Who has begun no iteration after so long may have trained without a word.
_EARLY_S = 60.0
# Of a journal, that are looked at for how it ends.
_END_BYTES = 1 << 20


class NodeFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """The findings of a node about its failure.

    Attributes:
        finding: without nodes.
        iteration: that the rank to blame had begun last, None = none.
        early: it failed so soon that it cannot have done much.
    """

    finding: Finding
    iteration: int | None = None
    early: bool = False


def encode(verdict: Verdict, lived_s: float) -> bytes:
    """Return what a verdict of a node says, for the leader.

    Args:
        verdict: the node's own.
        lived_s: how long the rank to blame had run.
    """
    cause, confidence = cause_seen(verdict.kind, verdict)
    if not cause:
        return b""
    quote = one_line(verdict.exception or verdict.line, longest=_LONGEST_QUOTE)
    ranks = (verdict.rank,) if blames_rank(verdict.kind, cause) else ()
    finding = Finding(cause, ranks, confidence=confidence, quote=quote)
    return msgspec.msgpack.encode(NodeFinding(finding, verdict.iteration, lived_s <= _EARLY_S))


def advise(history: bytes, attempt: Attempt) -> Advice:
    """Say what is best done. Never raises: an error of ours must not keep a job from restarting."""
    known, problem = History(), ""
    try:
        known = History.decode(history)
    except ValueError as error:
        problem = one_line(f"it cannot be read: {error}")
    try:
        return _advise(known, attempt, problem)
    except Exception as error:  # noqa: BLE001 - said, and the policy goes on without
        return Advice(None, b"", one_line(f"{type(error).__name__}: {error}"))


def _advise(known: History, attempt: Attempt, problem: str) -> Advice:
    about = Round(attempt.nodes, attempt.spare, attempt.iteration)
    blamed = attempt.blamed
    if blamed is None:
        return Advice(None, decision.without_cause(known, about).encode(), problem)
    finding, found = _root(attempt)
    if found is not None and found.iteration is not None:
        about = replace(about, iteration=found.iteration)
    early = found is not None and found.early
    known_progress = early or about.iteration is not None
    # Of one node the leader knows no cause; only a hang shows it that calls differ.
    hung = bool(blamed.cause) or (finding is not None and finding.cause == MISMATCH)
    about = replace(about, progress_known=known_progress, hung=hung)
    known, decided = decision.decide(known, [] if finding is None else [finding], about)
    advised = Advised(blamed.round, decided.action, decided.reason, decided.nodes)
    if finding is not None:
        advised = replace(
            advised, cause=finding.cause, ranks=finding.ranks, confidence=finding.confidence
        )
    failure = _failure(attempt, finding, about)
    return Advice(advised, known.encode(), problem, failure, decided.repeats)


def _failure(attempt: Attempt, finding: Finding | None, about: Round) -> str:
    """Return how the round failed, for ranks that choose the checkpoint they load."""
    if finding is None or finding.confidence < SURE:
        return ""
    steps = None
    if about.iteration is not None and attempt.first is not None:
        steps = max(about.iteration - attempt.first, 0)
    elif about.iteration is None and about.progress_known:
        steps = 0
    failure = Failure(
        round=attempt.round,
        cause=finding.cause,
        error=decision.fingerprint(finding.quote),
        nodes=finding.nodes,
        ranks=finding.ranks,
        steps=steps,
    )
    return msgspec.json.encode(failure).decode()


def remembered(failure: str, run: str, at: float) -> str:
    """Return a failure as the job's next start has to know it; "" = there is none.

    Args:
        failure: see `Advice.failure`.
        run: id of the run.
        at: seconds since 1970.
    """
    if not failure:
        return ""
    known = msgspec.json.decode(failure, type=Failure)
    return msgspec.json.encode(replace(known, run=run, at=at)).decode()


def failure_before(journal: Path) -> str:
    """Return how the last round of an earlier start failed, as its journal tells; "" = it did not.

    Args:
        journal: of this node, before this start writes to it.
    """
    try:
        with journal.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _END_BYTES, 0))
            lines = file.read(_END_BYTES).splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            event = decode_line(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue  # the first one is cut
        if isinstance(event, RoundAdvised):
            return event.failure
        if isinstance(event, RoundStarted):
            return ""
    return ""


def _root(attempt: Attempt) -> tuple[Finding | None, NodeFinding | None]:
    """What is known of the cause, and what the node that is blamed has found out itself."""
    blamed = attempt.blamed
    assert blamed is not None, "nothing has failed otherwise"
    nodes = (blamed.node,) if blamed.node else ()
    found = _found(attempt.findings, blamed.node)
    if blamed.cause:
        sure = 1.0 if blamed.certain else GUESSED
        cause = Finding(blamed.cause, blamed.ranks, nodes, confidence=sure, quote=blamed.line)
        return cause, found
    if attempt.left:
        return Finding(UNEQUAL, attempt.left, quote=f"{name_ranks(attempt.left)} had ended"), found
    if found is not None:
        alike = tuple(node for node in attempt.findings if _alike(attempt.findings, node, found))
        return replace(found.finding, nodes=alike), found
    if attempt.lost:
        return Finding("node_failed", (), nodes), None
    return None, None


def _alike(findings: Mapping[str, bytes], node: str, found: NodeFinding) -> bool:
    """Whether a node has failed of the same."""
    other = _found(findings, node)
    if other is None or other.finding.cause != found.finding.cause:
        return False
    texts = (decision.fingerprint(each.finding.quote) for each in (other, found))
    return len(set(texts)) == 1


def _found(findings: Mapping[str, bytes], node: str) -> NodeFinding | None:
    data = findings.get(node, b"")
    try:
        return (
            msgspec.msgpack.decode(data, type=NodeFinding) if 0 < len(data) <= _MOST_BYTES else None
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
