"""From journals, and what logs and recordings say, to what happened, who it was and why. Pure.

The launcher knows who failed and when; logs and recordings mostly know why. Each failed round is a
`Case`; `explain` weighs the cases of a job in their order, as `decision` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

import msgspec
from msgspec.structs import replace

from undaunted.attribution.decision import Decision, History, Round, decide
from undaunted.attribution.findings import (
    CAUSES,
    SURE,
    Action,
    Finding,
    severity_of,
    worst_first,
)
from undaunted.attribution.logs.rules import rules, template
from undaunted.attribution.verdicts import cause_seen
from undaunted.base.text import count, format_duration, name_ranks
from undaunted.journal import events as e
from undaunted.journal.job.render import still_runs
from undaunted.journal.render import utc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobRound, JobSummary

# Causes that say what was seen of a process, not why: what a log names instead is worth more.
_BROAD = frozenset({"program_error", "native_crash", "terminated", "peer_lost", "host_lag"})
# What the words of a program's own exception may tell: the launcher says program_error for it, and
# one failure has one name.
_OWN_WORDS = frozenset({"data_error", "not_finite"})


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one failure.

    Attributes:
        name: ``round 3``; "" = the one failure of a folder without a journal.
        about: the round, for the decision.
        line: how the launcher says it, "" = it does not.
        findings: what was found out, in any order.
        waiting: ranks that waited for the ones to blame.
        victims: nodes that failed because of it.
        did: what undaunted did, "" = it was not there.
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
    """

    case: Case
    root: Finding | None
    advice: Decision
    times: int = 1


def explain(cases: Sequence[Case]) -> list[Explained]:
    """Return what is concluded about failures of one job, oldest first."""
    history, explained = History(), list[Explained]()
    for case in cases:
        findings = sorted(worst_first(case.findings), key=_doubt)
        history, advice = decide(history, findings[:1], case.about)
        root = findings[0] if findings else None
        alike = sum(root is not None and _alike(one.root, root) for one in explained)
        explained.append(
            Explained(
                case=replace(case, findings=tuple(findings), look=(*_look(root), *case.look)),
                root=root,
                advice=case.advised or advice,
                times=alike + 1,
            )
        )
    return explained


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


def joined(told: Finding | None, seen: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings of the launcher and of logs or recordings without saying a thing twice.

    Args:
        told: who failed, by the launcher; None = it does not say.
        seen: by logs and recordings.
    """
    if told is None:
        return tuple(seen)
    for one in worst_first(seen):
        if one.confidence >= SURE and _is_why(one, told):
            # Who gets a wrong collective fails, not who has called it.
            who = one if one.cause == "mismatch" != told.cause else told
            better = replace(
                one,
                cause=told.cause if _is_same_line(one, told) else one.cause,
                ranks=who.ranks or one.ranks,
                nodes=who.nodes or one.nodes,
                t=told.t or one.t,
                confidence=max(one.confidence, told.confidence),
            )
            return (better, *(each for each in seen if each is not one))
    return (told, *seen)


def _is_same_line(one: Finding, told: Finding) -> bool:
    line = told.quote.partition("\n")[0]
    return one.cause in _OWN_WORDS and line != "" and line in one.quote


def _is_why(one: Finding, told: Finding) -> bool:
    known = CAUSES.get(one.cause)
    if known is not None and known.follows and not one.ranks:
        return False  # whose line it is has waited, perhaps
    same_ranks = not one.ranks or not told.ranks or bool({*one.ranks} & {*told.ranks})
    severer = severity_of(one.cause) >= severity_of(told.cause) and one.cause != "no_dump"
    return same_ranks and (one.cause == told.cause or (told.cause in _BROAD and severer))


# --- from the journal -----------------------------------------------------------------------------


class Evidence(msgspec.Struct, frozen=True):
    """What files beside the journal say of a round; as in `Case`."""

    findings: tuple[Finding, ...] = ()
    look: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class Told(msgspec.Struct, frozen=True):
    """Who tells of a failure.

    Attributes:
        launch: which launch.
        event: what it has written.
        verdict: the same, if it is a verdict.
    """

    launch: Launch
    event: e.Event
    verdict: e.Verdict | None


Places = Callable[[Told], tuple[str, str]]
"""Returns a quote ("" = there is none better than the journal's line) and its place."""


def failed_rounds(job: JobSummary) -> list[JobRound]:
    """Return the rounds to be explained, oldest first: that failed, were preempted or broke off."""
    return [
        one
        for one in job.rounds
        if one.failure is not None or _is_preempted(job, one) or _broke_off(job, one)
    ]


def _is_preempted(job: JobSummary, one: JobRound) -> bool:
    return one is job.rounds[-1] and job.outcome == "preempted"


def _broke_off(job: JobSummary, one: JobRound) -> bool:
    """Whether the launchers ended in this round without a word."""
    no_end = not job.outcome and not one.outcome and one.stopped_ns is None
    return no_end and one is job.rounds[-1] and still_runs(job) is False


def told_by(one: JobRound, launches: Sequence[Launch]) -> Told | None:
    """Return who tells best of the failure of a round, None = nobody."""
    failure = one.failure
    if failure is None:
        return None
    there = [launches[part.launch] for part in one.parts]
    first = [launch for launch in there if launch.node == failure.node]
    for kind in (e.Verdict, e.RoundBlamed, e.FailureDetected):
        for launch in first if kind is e.Verdict else [*first, *there]:
            event = launch.state.rounds[one.round].first(kind)
            if event is not None:
                return Told(launch, event, event if isinstance(event, e.Verdict) else None)
    return None


def case_of(
    job: JobSummary,
    one: JobRound,
    launches: Sequence[Launch],
    evidence: Evidence,
    places: Places,
) -> Case:
    """Return what is known of a round that failed.

    Args:
        job: all of it.
        one: the round.
        launches: of the job.
        evidence: of files beside the journals.
        places: finds quotes.
    """
    told = told_by(one, launches)
    verdict = told.verdict if told else None
    blamed = _blamed(one, launches)
    nodes = tuple(part.node for part in one.parts)
    t = _wall(job, one)
    about = Round(
        nodes=nodes,
        spare=_spare(job, one, launches),
        iteration=_iteration(one, verdict),
        t=t,
    )
    quote, source = places(told) if told else ("", "")
    finding = _finding(job, one, verdict, blamed)
    if finding is not None:
        finding = replace(finding, t=t, quote=quote or one.cause, source=source)
    return Case(
        name=f"round {one.round}"
        if job.attempts == 1
        else f"launch {one.attempt}, round {one.round}",
        about=about,
        line=one.cause or (_last_heard(job) if _broke_off(job, one) else ""),
        findings=joined(finding, evidence.findings),
        # Of a hang that all nodes have judged the line counts the ranks of all nodes that wait.
        waiting=tuple(verdict.waiting) if verdict and not (blamed and blamed.ranks) else (),
        victims=tuple(blamed.victims) if blamed else (),
        did=_did(job, one),
        advised=_advised(one),
        look=evidence.look,
        unknown=(*_missing(one), *evidence.unknown),
    )


def _iteration(one: JobRound, verdict: e.Verdict | None) -> int | None:
    if verdict is not None and verdict.iteration is not None:
        return verdict.iteration
    return None if _is_elsewhere(one) else one.last_iteration


def _is_elsewhere(one: JobRound) -> bool:
    """Whether the journal of the node that failed is not here."""
    return one.failure is not None and one.failure.kind == "unknown"


def _missing(one: JobRound) -> Iterator[str]:
    if one.failure is not None and _is_elsewhere(one):
        yield (
            f"what node {one.failure.node} has seen itself: its journal is not here; put the "
            "journals of all nodes into one directory"
        )


def _last_heard(job: JobSummary) -> str:
    """Say of a job that broke off when it was heard of last."""
    text = "no launcher runs any more, and none has recorded an end: they were killed"
    if job.started_wall is None:
        return text
    return f"{text}; the last entry is of {utc(job.started_wall + job.duration_ns / 1e9)}"


def _blamed(one: JobRound, launches: Sequence[Launch]) -> e.RoundBlamed | None:
    told = (launches[part.launch].state.rounds[one.round] for part in one.parts)
    return next((found for each in told if (found := each.first(e.RoundBlamed))), None)


def _advised(one: JobRound) -> Decision | None:
    if (said := one.advised) is None:
        return None
    known = [action for action in get_args(Action) if action == said.action]
    return Decision(known[0], said.reason, tuple(said.nodes)) if known else None


def _wall(job: JobSummary, one: JobRound) -> float:
    moments = (one.failed_ns, one.stopped_ns, one.began_ns)
    moment = next(moment for moment in moments if moment is not None)
    return 0.0 if job.started_wall is None else job.started_wall + moment / 1e9


def _spare(job: JobSummary, one: JobRound, launches: Sequence[Launch]) -> int:
    """Return how many nodes the job can go on without, those that were lost left out."""
    started = [launches[part.launch].state.job for part in one.parts]
    least = max((each.nodes.least for each in started if each and each.nodes), default=0)
    before = job.rounds[: job.rounds.index(one)]
    lost = {each.failure.node for each in before if each.failure and each.failure.kind == "lost"}
    return max(0, len({*job.nodes} - lost) - least) if least else 0


def _finding(
    job: JobSummary, one: JobRound, verdict: e.Verdict | None, blamed: e.RoundBlamed | None
) -> Finding | None:
    """Return who it was, as the launchers know it, without time and quote."""
    if one.failure is None:
        return Finding("preempted") if _is_preempted(job, one) else None
    cause, confidence = cause_seen(one.failure.kind, verdict, blamed)
    if cause == "program_error" and verdict is not None and verdict.exception:
        cause = cause_of(verdict.exception)
        if cause == "mismatch":
            return Finding(cause, confidence=confidence)  # who gets it need not have called it
    nodes = (one.failure.node,) if one.failure.node else ()
    if not cause:
        # The node that failed has a run directory of its own, perhaps: the leader knows more.
        if (said := one.advised) is None or not said.cause:
            return None
        return Finding(said.cause, tuple(said.ranks), nodes, confidence=said.confidence)
    ranks = [one.failure.rank] if one.failure.rank >= 0 else []
    if one.failure.kind == "hang" and blamed is not None and blamed.ranks:
        ranks = blamed.ranks
    elif verdict is not None:
        ranks = sorted({verdict.rank, *verdict.suspects})
    return Finding(cause, tuple(ranks), nodes, confidence=confidence)


def cause_of(exception: str) -> str:
    """Return the cause that the last line of a traceback means: ``program_error`` if no other."""
    line = exception.splitlines()[0] if exception else ""
    key = template(line.encode())
    numbers = rules().search([key]).get(key, ())
    meaning = rules().meaning(line, 0, numbers, ends_traceback=True) if numbers else None
    return meaning.cause if meaning and meaning.cause not in _OWN_WORDS else "program_error"


def _did(job: JobSummary, one: JobRound) -> str:
    """Say what undaunted did after a round."""
    after = next(iter(job.rounds[job.rounds.index(one) + 1 :]), None)
    if after is None:
        return _ended(job, one)
    if after.attempt != one.attempt:
        return "ended; whoever starts the job has launched it again"
    text = "restarted the job"
    left = sorted({part.node for part in one.parts} - {part.node for part in after.parts})
    if left:
        text += f" without {', '.join(left)}"
    if one.restart_ns is not None:
        took = format_duration(one.restart_ns / 1e9)
        text += f": {count(after.world_size, 'rank')} ran again after {took}"
    if one.lost_steps:
        text += f", {count(one.lost_steps, 'step')} done again"
    return text


def _ended(job: JobSummary, one: JobRound) -> str:
    if job.exit_code is None:
        return "nothing is recorded after it"
    why = job.reason.removeprefix(one.cause).lstrip("; ")
    text = f"ended the job: {job.outcome.replace('_', ' ')}, exit code {job.exit_code}"
    return f"{text}; {why}" if why else text


# --- sentences ------------------------------------------------------------------------------------


def in_words(one: Finding) -> str:
    """Say a cause and who it was in one line."""
    known = CAUSES.get(one.cause)
    what = f"{known.meaning} ({one.cause})" if known else one.cause
    who = " on ".join(part for part in _who(one) if part)
    who += " (inferred from other ranks)" if one.inferred else ""
    if one.confidence < SURE:
        what = f"perhaps {what}"
    return f"{who}: {what}" if who else what


def _who(one: Finding) -> Iterator[str]:
    yield name_ranks(one.ranks) if one.ranks else ""
    if one.nodes:
        names = ", ".join(one.nodes[:4]) + (", ..." if len(one.nodes) > 4 else "")
        yield f"node {names}" if len(one.nodes) == 1 else f"nodes {names}"
