"""From journals, and what logs and recordings say, to what is known of a failure. Pure.

The launcher knows who failed and when; logs and recordings mostly know why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

import msgspec
from msgspec.structs import replace

from undaunted.attribution.crash import without_frames
from undaunted.attribution.decision import Decision, Round
from undaunted.attribution.explain.weigh import OWN_WORDS, Case, joined
from undaunted.attribution.findings import (
    INJECTED,
    LIKELY,
    MISMATCH,
    UNEQUAL,
    Action,
    Finding,
)
from undaunted.attribution.logs.rules import rules, template, with_message
from undaunted.attribution.peers import is_of_a_socket
from undaunted.attribution.verdicts import blames_rank, cause_seen
from undaunted.base.text import count, format_duration
from undaunted.journal import events as e
from undaunted.journal.job.render import still_runs, utc
from undaunted.journal.job.values import JobRound, JobSummary  # noqa: TC001 - as above
from undaunted.journal.query import every
from undaunted.journal.words import outcome_in_words, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.attribution.logs.landmarks import LastWords
    from undaunted.attribution.logs.rules import Meaning
    from undaunted.journal.job.launches import Launch

_SHORT_NS = 60_000_000_000
# Outcomes of a job: another start is of no use; is of use without a node.
_FOR_GOOD = frozenset({"no_restart", "invalid"})
_FOR_GOOD_IN_WORDS = frozenset(map(outcome_in_words, _FOR_GOOD))  # as launchers print them
_ANOTHER_START = frozenset({"preempted", "too_few_nodes"})
_ELSEWHERE = frozenset({"excluded", "suspect", "straggler"})
_NOT_RESTARTED = "; not restarted: "  # of a reason: the launcher had restarts left
# What a launcher, or `undaunted srun` after it, says where another start would end so again.
_NOT_AGAIN = re.compile(r"; (not restarted: .*|not queued again: this start came to .*)")
_BLAMED = re.compile(r"\(?\bnode ([\w.-]+)")
_LAUNCHER_KNOWS = OWN_WORDS | {"peer_lost"}


class Evidence(msgspec.Struct, frozen=True):
    """The words of files beside the journal about a round; as in `Case`."""

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
    about = _about(job, one, launches, verdict)
    quote, source = places(told) if told else ("", "")
    was_asked = one.failure is None and _is_preempted(job, one)
    finding = _finding(job, one, verdict, blamed)
    if finding is not None:
        finding = replace(finding, t=about.t, quote=quote or one.cause, source=source)
        words = _words(verdict.exception) if verdict and verdict.exception else None
        if words is not None and words.cause == finding.cause:
            finding = with_message(finding, words.message)
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
        pause=one.pause,
        advised=ended_for_good(job, one) or _advised(one),
        look=evidence.look,
        unknown=() if was_asked else (*_missing(one), *evidence.unknown),
    )


def _about(
    job: JobSummary, one: JobRound, launches: Sequence[Launch], verdict: e.Verdict | None
) -> Round:
    """Return what the decision has to know of a round that failed."""
    iteration = _iteration(one, verdict)
    return Round(
        nodes=tuple(part.node for part in one.parts),
        spare=_spare(job, one, launches),
        iteration=iteration,
        t=_wall(job, one),
        progress_known=iteration is not None or _was_short(one),
        hung=one.failure is not None and one.failure.kind == "hang",
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


def ended_for_good(job: JobSummary, one: JobRound) -> Decision | None:
    """Return the advice of a job that is not to be started again after this round."""
    if one is not job.rounds[-1]:
        return None
    refused = job.outcome == "failed" and _NOT_RESTARTED in job.reason
    if refused or job.outcome in _FOR_GOOD:
        return Decision("stop", _why_ended(job, one) or job.outcome)
    goes_back = job.outcome in _ANOTHER_START and not _is_by_user(job)
    nowhere = _no_further(job) if goes_back else ""
    return Decision("stop", nowhere) if nowhere else None


def _no_further(job: JobSummary) -> str:
    """Say that the last start of a program came no further than one before, "" = it may have."""
    last = job.rounds[-1]
    by_start: dict[bool, list[int]] = {True: [], False: []}
    for one in job.rounds:
        if one.last_iteration is not None and _program(job, one) == _program(job, last):
            by_start[one.attempt == last.attempt].append(one.last_iteration)
    now, before = by_start[True], by_start[False]
    if not now or not before or max(now) > max(before):
        return ""
    return (
        f"this start came to iteration {max(now)}, no further than one before: has each start too "
        "little time? Does it resume?"
    )


def _program(job: JobSummary, one: JobRound) -> tuple[str, ...]:
    launches = [job.launches[part.launch] for part in one.parts[:1]]
    return tuple(word for each in launches for word in (each.run_id, *each.argv))


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
        cause, confidence = cause_of(verdict.exception)
        if cause == "peer_lost" and is_of_a_socket(verdict.exception):
            cause = "program_error"  # raised outside of communication, or it had its cause before
        if cause == MISMATCH:
            return Finding(cause, confidence=confidence)  # who gets it need not have called it
    if not blames_rank(one.failure.kind, cause):
        return Finding(cause, confidence=confidence)
    nodes = (one.failure.node,) if one.failure.node else ()
    if not cause:
        # The node that failed may have another run directory: the leader knows more.
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
    return Finding("cancelled" if _is_by_user(job) else "preempted")


def _is_by_user(job: JobSummary) -> bool:
    return outcome_in_words(job.outcome, job.reason) != job.outcome


def cause_of(exception: str) -> tuple[str, float]:
    """Return the cause that the last line of a traceback means, and how sure that is.

    It is ``program_error`` if no other.

    An exception that means a lost peer has its cause from the launcher, which knows its traceback:
    others of these words are of the program's own connections.
    """
    words = _words(exception)
    if words is None or words.cause in _LAUNCHER_KNOWS | {"program_error"}:
        return "program_error", 1.0
    return words.cause, words.confidence if words.confidence <= LIKELY else 1.0


def _words(exception: str) -> Meaning | None:
    """Return what the rules say of the last line of a traceback."""
    line = next(iter(without_frames(exception).splitlines()), "")
    key = template(line.encode())
    numbers = rules().search([key]).get(key, ())
    return rules().meaning(line, 0, numbers, ends_traceback=True) if numbers else None


def _did(job: JobSummary, one: JobRound) -> str:
    """Say what undaunted did after a round."""
    after = next(iter(job.rounds[job.rounds.index(one) + 1 :]), None)
    if after is None:
        return _ended(job, one)
    if after.attempt != one.attempt:
        return "ended; the job was launched again"
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
        if last.outcome in _FOR_GOOD_IN_WORDS:
            advised = Decision("stop", "the launcher says that another start would lead nowhere")
        elif reason := _NOT_AGAIN.search(last.text):
            advised = Decision("stop", reason[1])
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
    """Return whether files, or the launcher, tell of a failure."""
    return bool(case.findings or case.line)
