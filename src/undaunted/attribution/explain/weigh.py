"""From what is known of the failures of a job to causes and advice. Pure.

Each failed round is a `Case`; `explain` weighs the cases of a job in their order, as `decision`
does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from undaunted.attribution.decision import Decision, History, Round, decide, without_cause
from undaunted.attribution.findings import (
    CAUSES,
    INJECTED,
    MISMATCH,
    MISSING,
    OUT_OF_MEMORY,
    REMEDIES,
    SURE,
    Finding,
    severity_of,
    worst_first,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# What the words of a program's own exception may tell: the launcher says program_error for it, and
# one failure has one name.
OWN_WORDS = frozenset({"data_error", "not_finite"})


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one failure.

    Attributes:
        name: ``round 3``; "" = the one failure of a folder without a journal.
        about: the round, for the decision.
        line: how the launcher says it, "" = it does not.
        findings: what was found out, in any order.
        waiting: ranks that waited for the ones to blame.
        victims: nodes that could not go on because of it.
        did: what undaunted did, "" = it was not there.
        pause: its line about a pause before the next round, "" = there was none.
        advised: what the launcher has advised, None = nothing.
        look: where to look next.
        unknown: what is not known, and what would have helped.
    """

    name: str = ""
    about: Round
    line: str = ""
    findings: tuple[Finding, ...] = ()
    waiting: tuple[int, ...] = ()
    victims: tuple[str, ...] = ()
    did: str = ""
    pause: str = ""
    advised: Decision | None = None
    look: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A case, and what is concluded.

    Attributes:
        case: see there; its findings are in order, the root cause first.
        root: the root cause, None = not known.
        advice: what to do about it: as the launcher has said, else as the failures up to this one
            ask for.
        times: how many of the cases up to this one have the same cause, ranks and nodes.
        failures: how many cases there are up to this one.
    """

    case: Case
    root: Finding | None
    advice: Decision
    times: int = 1
    failures: int = 1


def explain(rounds: Sequence[Case | Round]) -> list[Explained]:
    """Return what is concluded about failures of one job, oldest first.

    Args:
        rounds: oldest first: cases of those that failed, and those that did not, as they may have
            come further.
    """
    history, explained = History(), list[Explained]()
    for case in rounds:
        if isinstance(case, Round):
            history = without_cause(history, case)
            continue
        findings = sorted(worst_first(case.findings), key=_doubt)
        history, advice = decide(history, findings[:1], case.about)
        root = findings[0] if findings else None
        advised = case.advised
        if advised is not None and _is_about(advised, root):
            advice = advised
        elif advised is not None and root is not None and root.cause != INJECTED:
            said = f"its launcher, which reads no logs, advised: {advised.action}: {advised.reason}"
            case = replace(case, did="; ".join(filter(None, (case.did, said))))  # noqa: PLW2901
        if root is not None and root.cause in REMEDIES and advice.action != "exclude":
            remedy = root.remedy or REMEDIES[root.cause]
            advice = replace(advice, reason=f"{remedy}: {advice.reason}")
        alike = sum(root is not None and _alike(one.root, root) for one in explained)
        explained.append(
            Explained(
                case=replace(case, findings=tuple(findings), look=(*_look(root), *case.look)),
                root=root,
                advice=advice,
                times=alike + 1,
                failures=len(explained) + 1,
            )
        )
    return explained


def _is_about(advised: Decision, root: Finding | None) -> bool:
    """Whether a launcher has given advice about this cause, as far as is known."""
    return root is None or advised.cause is None or advised.cause.cause == root.cause


def _doubt(one: Finding) -> tuple[bool, float]:
    """Say how little a finding is worth as the root cause; 0 = as its severity says."""
    known = CAUSES.get(one.cause)
    follows = known is not None and known.follows
    return follows, 0.0 if one.confidence >= SURE else 1.0 - one.confidence


def _look(root: Finding | None) -> tuple[str, ...]:
    if root is None or not root.nodes or root.cause not in CAUSES:
        return ()
    if CAUSES[root.cause].scope not in {"gpu", "node"}:
        return ()
    return (f"node {root.nodes[0]}: the log of its kernel (dmesg), and undaunted doctor there",)


def _alike(one: Finding | None, other: Finding) -> bool:
    who = (other.cause, other.ranks, other.nodes)
    return one is not None and (one.cause, one.ranks, one.nodes) == who


def said_in(one: Finding, rank: int, node: str) -> Finding:
    """Add rank and node of the log that a finding quotes, where it names none.

    Args:
        one: see there.
        rank: whose log it is, -1 = not that of one rank.
        node: of that rank, "" = not known.
    """
    known = CAUSES.get(one.cause)
    if one.ranks or one.nodes or rank < 0 or known is None:
        return one
    if known.follows or known.comes_from_anywhere:
        return one
    return replace(one, ranks=(rank,), nodes=(node,) if node else ())


def joined(told: Finding | None, seen: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings of the launcher and of logs or recordings without saying a thing twice.

    Args:
        told: who failed, by the launcher; None = it does not say.
        seen: by logs and recordings.
    """
    if told is None:
        return tuple(seen)
    if told.cause == INJECTED:  # what else is seen of these ranks is the fault, or follows from it
        return (told, *(one for one in seen if one.ranks and not {*one.ranks} <= {*told.ranks}))
    seen = [one for one in seen if not _adds_nothing(one, told)]
    for one in worst_first(seen):
        if one.confidence >= SURE and _is_why(one, told):
            # Who gets a wrong collective fails, not who has called it.
            who = one if one.cause == MISMATCH != told.cause else told
            better = replace(
                one,
                ranks=who.ranks or one.ranks,
                nodes=who.nodes or one.nodes,
                t=told.t or one.t,
            )
            return (better, *(each for each in seen if each is not one))
    return (told, *seen)


def _adds_nothing(one: Finding, told: Finding) -> bool:
    """Whether it is only another name for what the launcher says, or what followed from it."""
    line = told.quote.partition("\n")[0]
    message = line.partition(": ")[2] or line
    own = one.cause in OWN_WORDS or (one.cause == "program_error" and told.cause == MISSING)
    if own and told.cause in ("program_error", MISSING) and message:
        return message in one.quote and {*one.ranks} <= {*told.ranks}
    known, other = CAUSES.get(one.cause), CAUSES.get(told.cause)
    ended = other is not None and (other.follows or told.cause in {"killed", OUT_OF_MEMORY})
    follow = known is not None and known.follows and ended
    return follow and not one.ranks and told.confidence >= SURE and one.cause != told.cause


def _is_why(one: Finding, told: Finding) -> bool:
    known, other = CAUSES.get(one.cause), CAUSES.get(told.cause)
    if known is not None and known.follows and not one.ranks:
        return False  # whose line it is has waited, perhaps
    same_ranks = not one.ranks or not told.ranks or bool({*one.ranks} & {*told.ranks})
    severer = severity_of(one.cause) >= severity_of(told.cause) and one.cause != "no_dump"
    is_symptom = other is not None and other.kind == "symptom"
    return same_ranks and (one.cause == told.cause or (is_symptom and severer))
