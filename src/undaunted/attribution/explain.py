"""From journals, and what logs and recordings say, to what happened, who it was and why. Pure.

The launcher knows who failed and when; logs and recordings mostly know why. Each failed round is a
`Case`; `explain` weighs the cases of a job in their order, as `decision` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path  # noqa: TC003 - msgspec needs the name
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec.structs import replace

from undaunted.attribution.crash import without_frames
from undaunted.attribution.decision import Decision, History, Round, decide, without_cause
from undaunted.attribution.findings import (
    CAUSES,
    INJECTED,
    LIKELY,
    MISSING,
    OUT_OF_MEMORY,
    SAID_BY_ANYBODY,
    SURE,
    UNEQUAL,
    Action,
    Finding,
    severity_of,
    worst_first,
)
from undaunted.attribution.logs.rules import rules, template
from undaunted.attribution.peers import is_of_a_socket
from undaunted.attribution.verdicts import blames_rank, cause_seen
from undaunted.base.text import count, format_duration, name_ranks, one_line, printable
from undaunted.journal import events as e
from undaunted.journal.job.render import still_runs
from undaunted.journal.job.values import JobRound, JobSummary  # noqa: TC001 - as above
from undaunted.journal.query import every
from undaunted.journal.render import NO_END, shown_rounds, utc, without_numbers
from undaunted.journal.words import outcome_in_words, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from undaunted.attribution.logs.analyse import Reading
    from undaunted.attribution.logs.landmarks import LastWords
    from undaunted.journal.job.launches import Launch

MOST_ROUNDS = 20  # shown to people; and of which logs are read
_SCHEMA = 1
_MOST_LINES = 5  # of a kind
_LONGEST_QUOTE = 300
_SHORT_NS = 60_000_000_000

# Causes that say what was seen of a process, not why: what a log names instead is worth more.
_BROAD = frozenset(
    {
        "program_error",
        "native_crash",
        "killed",
        "terminated",
        "peer_lost",
        "host_lag",
        "no_progress",
    }
)
# What the words of a program's own exception may tell: the launcher says program_error for it, and
# one failure has one name.
_OWN_WORDS = frozenset({"data_error", "not_finite"})
# Outcomes of a job: another start is of no use; is of use without a node.
STOPS = frozenset({"no restart", "invalid"})
_FOR_GOOD = frozenset({"no_restart", "invalid"})  # the same in journals
_ELSEWHERE = frozenset({"excluded", "suspect", "straggler"})
_ASKED = frozenset({"preempted", "cancelled"})  # no failures
_WHEN_YOU_LIKE = "none is needed: start the job again when you like"
_NO_ROOM = "make room, or write elsewhere, then start again"
_FIRST = {"disk_full": _NO_ROOM, "quota_exceeded": _NO_ROOM}  # what a restart alone does not mend
_NOT_RESTARTED = "; not restarted: "  # of a reason: the launcher had restarts left
_BLAMED = re.compile(r"\(?\bnode ([\w.-]+)")
_LAUNCHER_KNOWS = _OWN_WORDS | {"peer_lost"}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one failure.

    Attributes:
        name: ``round 3``; "" = the one failure of a folder without a journal.
        about: the round, for the decision.
        line: how the launcher says it, "" = it does not.
        findings: what was found out, in any order.
        waiting: ranks that waited for the ones to blame.
        victims: nodes that could not go on because of it.
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
        if root is not None and root.cause in _FIRST and advice.action == "restart":
            advice = replace(advice, reason=f"{_FIRST[root.cause]}: {advice.reason}")
        alike = sum(root is not None and _alike(one.root, root) for one in explained)
        explained.append(
            Explained(
                case=replace(case, findings=tuple(findings), look=(*_look(root), *case.look)),
                root=root,
                advice=advice,
                times=alike + 1,
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
    """Add rank and node of the log that a finding quotes, where it has none of its own.

    Args:
        one: see there.
        rank: whose log it is, -1 = not that of one rank.
        node: of that rank, "" = not known.
    """
    known = CAUSES.get(one.cause)
    if one.ranks or one.nodes or rank < 0 or known is None or known.follows:
        return one
    if one.cause in SAID_BY_ANYBODY:
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
            who = one if one.cause == "mismatch" != told.cause else told
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
    own = one.cause in _OWN_WORDS or (one.cause == "program_error" and told.cause == MISSING)
    if own and told.cause in ("program_error", MISSING) and message:
        return message in one.quote and {*one.ranks} <= {*told.ranks}
    known, other = CAUSES.get(one.cause), CAUSES.get(told.cause)
    ended = other is not None and (other.follows or told.cause in {"killed", OUT_OF_MEMORY})
    follow = known is not None and known.follows and ended
    return follow and not one.ranks and told.confidence >= SURE and one.cause != told.cause


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


class FailureSource(msgspec.Struct, frozen=True):
    """The line or event that reports a failure.

    Attributes:
        launch: which launch.
        event: what it has written.
        verdict: the same, if it is a verdict.
    """

    launch: Launch
    event: e.Event
    verdict: e.Verdict | None


Places = Callable[[FailureSource], tuple[str, str]]
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


def told_by(one: JobRound, launches: Sequence[Launch]) -> FailureSource | None:
    """Return who tells best of the failure of a round, None = nobody."""
    failure = one.failure
    if failure is None:
        return None
    there = [launches[part.launch] for part in one.parts]
    first = [launch for launch in there if launch.node == failure.node]
    kinds: tuple[type[e.Event], ...] = (e.Verdict, e.RoundBlamed, e.FailureDetected)
    if failure.kind == "lost":  # what its ranks met has followed from that
        kinds = (e.RoundBlamed, e.StopRequested)
    for kind in kinds:
        for launch in first if kind is e.Verdict else [*first, *there]:
            event = launch.state.rounds[one.round].first(kind)
            if event is not None:
                return FailureSource(launch, event, event if isinstance(event, e.Verdict) else None)
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
    iteration = _iteration(one, verdict)
    about = Round(
        nodes=nodes,
        spare=_spare(job, one, launches),
        iteration=iteration,
        t=t,
        progress_known=iteration is not None or _was_short(one),
        hung=one.failure is not None and one.failure.kind == "hang",
    )
    quote, source = places(told) if told else ("", "")
    was_asked = one.failure is None and _is_preempted(job, one)
    finding = _finding(job, one, verdict, blamed)
    if finding is not None:
        finding = replace(finding, t=t, quote=quote or one.cause, source=source)
    return Case(
        name=f"round {one.round}"
        if job.attempts == 1
        else f"launch {one.attempt}, round {one.round}",
        about=about,
        line=one.cause or (_last_heard(job, launches) if _broke_off(job, one) else ""),
        findings=joined(finding, () if was_asked else evidence.findings),
        # Of a hang that all nodes have judged the line counts the ranks of all nodes that wait.
        waiting=tuple(verdict.waiting) if verdict and not (blamed and blamed.ranks) else (),
        victims=tuple(blamed.victims) if blamed else (),
        did=_did(job, one),
        advised=_ended_for_good(job, one) or _advised(one),
        look=evidence.look,
        unknown=() if was_asked else (*_missing(one), *evidence.unknown),
    )


def passed(one: JobRound) -> Round:
    """Return what the decision has to know of a round that did not fail."""
    return Round(tuple(part.node for part in one.parts), iteration=one.last_iteration)


def _iteration(one: JobRound, verdict: e.Verdict | None) -> int | None:
    if verdict is not None and verdict.iteration is not None:
        return verdict.iteration
    return None if _is_elsewhere(one) else one.last_iteration


def _was_short(one: JobRound) -> bool:
    """Whether a round failed so soon that it can have done nothing."""
    return one.failed_ns is not None and one.failed_ns - one.began_ns <= _SHORT_NS


def _is_elsewhere(one: JobRound) -> bool:
    """Whether the journal of the node that failed is not here."""
    return one.failure is not None and one.failure.kind == "unknown"


def _missing(one: JobRound) -> Iterator[str]:
    if one.failure is not None and _is_elsewhere(one):
        yield (
            f"what node {one.failure.node} has seen itself: its journal is not here; put the "
            "journals of all nodes into one directory"
        )


def _last_heard(job: JobSummary, launches: Sequence[Launch]) -> str:
    """Say of a job that broke off when it was heard of last."""
    told = [
        words_of(event).full
        for launch in launches
        for event in every(launch.state.remarks, e.Remark)
        if event.level == "error"
    ]
    if told:
        return told[-1]
    text = (
        "no launcher runs any more, and none has recorded an end: they were killed, or their "
        "journals were cut off"
    )
    if job.started_wall is None:
        return text
    return f"{text}; the last entry is of {utc(job.started_wall + job.duration_ns / 1e9)}"


def _blamed(one: JobRound, launches: Sequence[Launch]) -> e.RoundBlamed | None:
    told = (launches[part.launch].state.rounds[one.round] for part in one.parts)
    return next((found for each in told if (found := each.first(e.RoundBlamed))), None)


def _ended_for_good(job: JobSummary, one: JobRound) -> Decision | None:
    """Return the advice of a job that is not to be started again after this round."""
    refused = job.outcome == "failed" and _NOT_RESTARTED in job.reason
    if one is not job.rounds[-1] or not (refused or job.outcome in _FOR_GOOD):
        return None
    return Decision("stop", _why_ended(job, one) or job.outcome)


def _advised(one: JobRound) -> Decision | None:
    if (said := one.advised) is None:
        return None
    known = [action for action in get_args(Action) if action == said.action]
    cause = Finding(said.cause) if said.cause else None
    return Decision(known[0], said.reason, tuple(said.nodes), cause) if known else None


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
        return _asked_for(job) if _is_preempted(job, one) else None
    said = one.advised
    if one.failure.kind == "crash" and said is not None and said.cause == UNEQUAL:
        return Finding(said.cause, tuple(said.ranks), confidence=said.confidence)
    if verdict is not None and verdict.fault:
        nodes = (one.failure.node,) if one.failure.node else ()
        return Finding(INJECTED, (verdict.rank,), nodes)
    cause, confidence = cause_seen(one.failure.kind, verdict, blamed)
    if cause == "program_error" and verdict is not None and verdict.exception:
        cause = cause_of(verdict.exception)
        if cause == "peer_lost" and is_of_a_socket(verdict.exception):
            cause = "program_error"  # raised outside of communication, or it had its cause before
        if cause == "mismatch":
            return Finding(cause, confidence=confidence)  # who gets it need not have called it
    if not blames_rank(one.failure.kind, cause):
        return Finding(cause, confidence=confidence)
    nodes = (one.failure.node,) if one.failure.node else ()
    if not cause:
        # The node that failed has a run directory of its own, perhaps: the leader knows more.
        if said is None or not said.cause:
            return None
        return Finding(said.cause, tuple(said.ranks), nodes, confidence=said.confidence)
    ranks = [one.failure.rank] if one.failure.rank >= 0 else []
    if one.failure.kind == "hang" and blamed is not None and blamed.ranks:
        ranks = blamed.ranks
    elif verdict is not None:
        ranks = sorted({verdict.rank, *verdict.suspects})
    return Finding(cause, tuple(ranks), nodes, confidence=confidence)


def _asked_for(job: JobSummary) -> Finding:
    """Return who has ended a job that did not fail: a person, or somebody who needs its place."""
    by_user = outcome_in_words(job.outcome, job.reason) != job.outcome
    return Finding("cancelled" if by_user else "preempted")


def cause_of(exception: str) -> str:
    """Return the cause that the last line of a traceback means: ``program_error`` if no other.

    An exception that means a lost peer has its cause from the launcher, which knows its traceback:
    others of these words are of the program's own connections.
    """
    line = next(iter(without_frames(exception).splitlines()), "")
    key = template(line.encode())
    numbers = rules().search([key]).get(key, ())
    meaning = rules().meaning(line, 0, numbers, ends_traceback=True) if numbers else None
    return meaning.cause if meaning and meaning.cause not in _LAUNCHER_KNOWS else "program_error"


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
        text += f": {count(after.world_size, 'rank')} ran again {took} after the failure"
    if one.lost_steps:
        text += f", {count(one.lost_steps, 'step')} done again"
    return text


def _ended(job: JobSummary, one: JobRound) -> str:
    if job.exit_code is None:
        return "nothing is recorded after it"
    why = _why_ended(job, one)
    text = f"ended the job: {outcome_in_words(job.outcome, job.reason)}, exit code {job.exit_code}"
    if job.outcome == "finished" and one.failure is not None:
        text = f"the others went on: the job finished, exit code {job.exit_code}"
    return f"{text}; {why}" if why else text


def _why_ended(job: JobSummary, one: JobRound) -> str:
    """Return why a job ended, beside how its last round failed."""
    return job.reason.removeprefix(one.cause).lstrip("; ")


# --- sentences ------------------------------------------------------------------------------------


def in_words(one: Finding) -> str:
    """Say a cause and who it was in one line."""
    known = CAUSES.get(one.cause)
    what = f"{known.meaning} ({one.cause})" if known else one.cause
    who = " on ".join(part for part in _who(one) if part)
    who += " (inferred from other ranks)" if one.inferred else ""
    if one.confidence <= LIKELY:
        what = f"{'perhaps' if one.confidence < SURE else 'probably'} {what}"
    return f"{who}: {what}" if who else what


def _who(one: Finding) -> Iterator[str]:
    yield name_ranks(one.ranks) if one.ranks else ""
    if one.nodes:
        names = ", ".join(one.nodes[:4]) + (", ..." if len(one.nodes) > 4 else "")
        yield f"node {names}" if len(one.nodes) == 1 else f"nodes {names}"


# --- the page -------------------------------------------------------------------------------------


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """All that is said of a job.

    Attributes:
        path: what was read.
        job: None for a folder without a journal.
        rounds: that failed.
        ending: advice by how the job ended, perhaps in a round that did not fail; None = by rounds.
        calm: what is said where none has failed.
        problems: what could not be read.
    """

    path: Path
    job: JobSummary | None = None
    rounds: list[Explained] = []
    ending: Decision | None = None
    calm: str = ""
    problems: list[str] = []


def page_of(
    path: Path, job: JobSummary, rounds: Sequence[Case | Round], problems: Sequence[str] = ()
) -> Page:
    """Return the page about a run from its rounds, see `explain`."""
    return Page(
        path=path,
        job=job,
        rounds=explain(rounds),
        ending=_ended_for_good(job, job.rounds[-1]) if job.rounds else None,
        calm=_calm(job),
        problems=[*problems],
    )


def page_of_files(
    path: Path,
    reading: Reading,
    evidence: Evidence,
    read_from: Mapping[str, int],
    problems: Sequence[str],
) -> Page:
    """Return the page about a job that did not run under undaunted.

    Args:
        path: where the files are.
        reading: of its logs.
        evidence: of logs and dumps; all of it is taken for one failure.
        read_from: how many logs and dumps were read, by ``log`` and ``dump``.
        problems: what could not be read.
    """
    case = case_of_files(evidence, reading.step, reading.last)
    if not has_failed(case):
        read = " and ".join(count(number, noun) for noun, number in read_from.items() if number)
        calm = no_failure(read, reading.step, ended=reading.ended)
        return Page(path=path, calm=calm, problems=[*problems])
    return Page(path=path, rounds=explain([case]), problems=[*problems])


def case_of_files(evidence: Evidence, step: float | None, last: LastWords | None = None) -> Case:
    """Return what files say of one failure of which there is no journal.

    Args:
        evidence: of the files.
        step: the last one that was made, None = not known.
        last: the last line of a launcher, None = there is none.
    """
    line = did = ""
    advised = None
    if last is not None and last.outcome != "finished":
        line = did = f"undaunted ended the job: {last.text}"
        if last.outcome in STOPS:
            reason = "the launcher says that another start would lead nowhere"
            advised = Decision("stop", reason)
        elif last.outcome in _ELSEWHERE and (node := _BLAMED.search(last.text)):
            advised = Decision("exclude", "the launcher blames this node", (node[1],))
    iteration = None if step is None else int(step)
    named = {node for one in evidence.findings for node in one.nodes}
    return Case(
        # Nothing is known of its other nodes: advice is given as if there were enough.
        about=Round((), len(named), iteration, progress_known=iteration is not None),
        line=line,
        findings=evidence.findings,
        did=did,
        advised=advised,
        look=evidence.look,
        unknown=evidence.unknown,
    )


def has_failed(case: Case) -> bool:
    """Whether files, or the launcher, tell of a failure."""
    return bool(case.findings or case.line)


def no_failure(read: str, step: float | None, *, ended: bool) -> str:
    """Say what files are worth that tell of no failure.

    Args:
        read: what was read, ``3 logs``.
        step: the last one that was made, None = not known.
        ended: whether a log says that the program came to its end.
    """
    last = "" if step is None else f" (the last step is {step:g})"
    if ended:
        return f"the program came to its end{last}; no failure is told of in {read}"
    return (
        f"no failure is told of in {read}{last}: it finished, still runs, hangs, or was killed "
        "without a word"
    )


def _calm(job: JobSummary) -> str:
    """Say how a job stands of which no round failed."""
    if job.outcome == "finished":
        return "the job finished, and no round failed"
    if job.outcome:
        return f"no round failed; {job.reason}" if job.reason else "no round failed"
    if still_runs(job):
        return "no round failed so far; the job still runs"
    return "no round failed as far as is recorded; no end is recorded either"


def as_json(page: Page) -> dict[str, Any]:
    """Return the page for programs."""
    job = page.job
    last = page.rounds[-1] if page.rounds else None
    advice = last and (page.ending or last.advice)
    return {
        "schema": _SCHEMA,
        "path": str(page.path),
        "job": job and {name: getattr(job, name) for name in ("run_id", "outcome", "exit_code")},
        "conclusion": last
        and {
            "text": conclusion(page),
            "cause": last.root and last.root.cause,
            "ranks": last.root.ranks if last.root else (),
            "nodes": last.root.nodes if last.root else (),
            "action": advice and advice.action,
            "reason": advice and advice.reason,
        },
        "slow": page.job.slow if page.job else [],
        "rounds": [_json_of(one) for one in page.rounds],
        "problems": page.problems,
    }


def _json_of(one: Explained) -> dict[str, Any]:
    about = msgspec.to_builtins(one.case)
    round_ = about.pop("about")
    advice = msgspec.to_builtins(one.advice)
    del about["advised"]  # the advice below
    del advice["cause"]  # the first of the findings
    return {**about, **round_, "advice": advice, "times": one.times}


def conclusion(page: Page) -> str:
    """Say in one line what the last failure was, or why there is none to speak of."""
    if not page.rounds:
        return page.calm
    last = page.rounds[-1]
    if last.root is None:
        return last.case.line or "the cause is not known"
    text = in_words(last.root)
    if last.case.about.iteration is not None:
        text += f", at iteration {last.case.about.iteration}"
    return (
        text if last.times == 1 else f"{text}; {last.times} of {len(page.rounds)} failures are so"
    )


def lines_of(page: Page, *, everything: bool = False) -> Iterator[str]:
    """Yield the page for people, line by line.

    Args:
        page: what is known.
        everything: every failure, also those that are like the one before.
    """
    for problem in page.problems[:_MOST_LINES]:
        yield one_line(problem)
    if page.job is not None:
        asked = sum(one.root is not None and one.root.cause in _ASKED for one in page.rounds)
        yield _job_line(page.job, len(page.rounds) - asked)
    yield f"conclusion: {one_line(conclusion(page))}"
    last = page.rounds[-1] if page.rounds else None
    if last is not None and last.root is not None:
        yield from _quote(last.root)
    if last is not None:
        last = replace(last, advice=page.ending or last.advice)
        yield f"advice: {_advice(last, _by_hand(page.job))}"
    for note in page.job.slow[:_MOST_LINES] if page.job else ():
        yield f"slow rank: {one_line(note)}"
    shown = page.rounds if everything else page.rounds[-MOST_ROUNDS:]
    if len(page.rounds) > len(shown):
        yield f"... {count(len(page.rounds) - len(shown), 'earlier failure')}: see --all"
    groups = list(shown_rounds(shown, _likeness, everything=everything))
    for place, few in enumerate(groups, 1):
        yield ""
        one = few[0]
        if len(few) > 1:
            yield f"{one.case.name} to {few[-1].case.name}: the same; see --all"
            continue
        yield from _round(one, is_only=len(page.rounds) == 1)
        again = {text for later in groups[place:] for text in later[0].case.unknown}
        for text in one.case.unknown:
            if text not in again:  # said once, with the last round that it is true of
                yield f"  not known: {one_line(text)}"


def _likeness(one: Explained) -> object:
    told = without_numbers(one.case.line), without_numbers(in_words(one.root) if one.root else "")
    return told, one.advice.action


def _job_line(job: JobSummary, failed: int) -> str:
    name = f"job {one_line(job.run_id)}" if job.run_id else "job of unknown name"
    outcome = outcome_in_words(job.outcome, job.reason) or NO_END[still_runs(job)]
    code = "" if job.exit_code is None else f", exit code {job.exit_code}"
    inside = ""
    if job.failures.in_process:
        restarts = count(job.failures.in_process, "restart")
        inside = f", {restarts} inside of processes: see undaunted report"
    rounds = f"{failed} of {count(len(job.rounds), 'round')} failed"
    return f"{name}: {one_line(outcome)}{code}; {rounds}{inside}"


def _by_hand(job: JobSummary | None) -> str:
    """How a job that has failed for good is restarted; "" = launchers do it, or may."""
    if job is None or job.outcome != "failed":
        return ""
    allowed = any(launch.max_restarts for launch in job.launches)
    return "start the job again" + (
        "" if allowed else " (a launcher with --max-restarts 1 or more does so)"
    )


def _advice(one: Explained, restart: str = "") -> str:
    """Return the advice in words; ``restart``: how a restart is called, "" = as any action."""
    if one.root is not None and one.root.cause in _ASKED:
        return _WHEN_YOU_LIKE
    if one.root is not None and one.root.cause in _FIRST and one.advice.action == "restart":
        return one_line(one.advice.reason)
    names = f" {', '.join(map(printable, one.advice.nodes))}" if one.advice.nodes else ""
    action = restart if restart and one.advice.action == "restart" else one.advice.action
    return f"{action}{names}: {one_line(one.advice.reason)}"


def _quote(one: Finding) -> Iterator[str]:
    if one.quote:
        yield f"    {one_line(one.quote, _LONGEST_QUOTE)}"
    if one.source:
        yield f"    at {one_line(one.source)}"


def _round(one: Explained, *, is_only: bool) -> Iterator[str]:
    case = one.case
    t = (one.root.t if one.root else 0) or case.about.t
    facts = [case.name or "the failure", utc(t) if t else ""]
    if case.about.iteration is not None:
        facts.append(f"iteration {case.about.iteration}")
    yield ", ".join(fact for fact in facts if fact)
    if case.line:
        yield f"  what: {one_line(case.line)}"
    yield f"  cause: {one_line(in_words(one.root)) if one.root else 'not known'}"
    if one.root is not None and not is_only:
        yield from _quote(one.root)
    yield from _followed(case)
    if case.did:
        yield f"  undaunted: {one_line(case.did)}"
    if not is_only:
        yield f"  advice: {_advice(one)}"
    for text in case.look[:_MOST_LINES]:
        yield f"  look at {one_line(text)}"


def _followed(case: Case) -> Iterator[str]:
    """Say what else was seen: what followed, or may have."""
    if case.waiting:
        named = case.findings and case.findings[0].ranks
        yield f"  then: {name_ranks(case.waiting)} waited{' for it' if named else ''}"
    if case.victims:  # their ranks waited, or failed because a peer was gone
        yield f"  then: {one_line(', '.join(case.victims))} could not go on"
    others = case.findings[1:]
    for other in others[:_MOST_LINES]:
        yield f"  also: {one_line(in_words(other))}"
        yield from _quote(other)
    if len(others) > _MOST_LINES:
        yield f"  ... and {len(others) - _MOST_LINES} more: see --json"
