"""The page of `undaunted explain`, for people and as JSON. Pure."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - msgspec needs the name
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from undaunted.attribution.decision import Decision  # noqa: TC001 - as above
from undaunted.attribution.explain.case import Evidence, case_of_files, ended_for_good, has_failed
from undaunted.attribution.explain.weigh import Case, Explained, explain
from undaunted.attribution.findings import CAUSES, LIKELY, REMEDIES, SURE, Finding
from undaunted.base.text import count, name_ranks, one_line, printable
from undaunted.journal.job.render import NO_END, shown_rounds, still_runs, utc, without_numbers
from undaunted.journal.job.values import JobSummary  # noqa: TC001 - as above
from undaunted.journal.words import outcome_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from undaunted.attribution.decision import Round
    from undaunted.attribution.logs.analyse import Reading

MOST_ROUNDS = 20  # shown to people; and of which logs are read
_SCHEMA = 1
_MOST_LINES = 5  # of a kind
_LONGEST_QUOTE = 300
_ASKED = frozenset({"preempted", "cancelled"})  # no failures
_AGAIN = "start the job again"  # a restart that no launcher makes
_WHEN_YOU_LIKE = "none is needed: start the job again when you like"


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page shows of a job.

    Attributes:
        path: what was read.
        job: None for a folder without a journal.
        rounds: that failed.
        ending: advice by how the job ended, perhaps in a round that did not fail; None = by rounds.
        calm: the conclusion where none has failed.
        problems: what could not be read.
        survived: failures after which the launchers went on, of a log.
    """

    path: Path
    job: JobSummary | None = None
    rounds: list[Explained] = []
    ending: Decision | None = None
    calm: str = ""
    problems: list[str] = []
    survived: list[str] = []


def page_of(
    path: Path, job: JobSummary, rounds: Sequence[Case | Round], problems: Sequence[str] = ()
) -> Page:
    """Return the page about a run from its rounds, see `explain`."""
    return Page(
        path=path,
        job=job,
        rounds=explain(rounds),
        ending=ended_for_good(job, job.rounds[-1]) if job.rounds else None,
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
    survived = [*reading.survived]
    if not has_failed(case):
        read = " and ".join(count(number, noun) for noun, number in read_from.items() if number)
        read += " since the last restart" if survived else ""
        calm = no_failure(read, reading.step, ended=reading.ended)
        return Page(path=path, calm=calm, problems=[*problems], survived=survived)
    rounds = explain([case])
    return Page(path=path, rounds=rounds, problems=[*problems], survived=survived)


def no_failure(read: str, step: float | None, *, ended: bool) -> str:
    """Say what files are worth that tell of no failure.

    Args:
        read: what was read, ``3 logs``.
        step: the last one that was made, None = not known.
        ended: whether a log says that the program came to its end.
    """
    last = "" if step is None else f" (the last step is {step:g})"
    if ended:
        return f"the program came to its end{last}; no failure found in {read}"
    return (
        f"no failure found in {read}{last}: it finished, still runs, hangs, or was killed "
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
        "survived": page.survived,
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
    return text if last.times == 1 else f"{text}; {last.times} of {last.failures} failures are so"


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


def lines_of(page: Page, *, everything: bool = False) -> Iterator[str]:
    """Yield the page for people, line by line.

    Args:
        page: what is known.
        everything: every failure, also those that are like the one before.
    """
    for problem in page.problems[:_MOST_LINES]:
        yield one_line(problem)
    if page.job is not None:
        asked = sum(map(was_asked_for, page.rounds))
        yield _job_line(page.job, len(page.rounds) - asked)
    yield f"conclusion: {one_line(conclusion(page))}"
    last = page.rounds[-1] if page.rounds else None
    if last is not None:
        advised = replace(last, advice=page.ending or last.advice)
        if last.root is not None:
            yield from _quote(last.root)
            yield from _known(last.root, advised.advice)
        yield f"advice: {_advice(advised, _by_hand(page.job))}"
    for note in page.job.slow[:_MOST_LINES] if page.job else ():
        yield f"slow rank: {one_line(note)}"
    yield from _survived(page.survived)
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
        by_hand = _by_hand(page.job) if one is last else ""
        yield from _round(one, by_hand, is_only=len(page.rounds) == 1)
        again = {text for later in groups[place:] for text in later[0].case.unknown}
        for text in one.case.unknown:
            if text not in again:  # said once, with the last round that it is true of
                yield f"  not known: {one_line(text)}"


def _survived(failures: Sequence[str]) -> Iterator[str]:
    if len(failures) > _MOST_LINES:
        yield f"survived: {count(len(failures) - _MOST_LINES, 'earlier failure')}"
    for text in failures[-_MOST_LINES:]:
        yield f"survived: {one_line(text)}"


def _likeness(one: Explained) -> object:
    told = without_numbers(one.case.line), without_numbers(in_words(one.root) if one.root else "")
    return told, one.advice.action, one.case.pause == ""


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


def was_asked_for(one: Explained) -> bool:
    """Return whether somebody wanted this end: nothing has failed."""
    return one.root is not None and one.root.cause in _ASKED


def _by_hand(job: JobSummary | None) -> str:
    """Say how a person restarts a job that has failed, "" = its launchers go on."""
    if job is not None and job.outcome in {"", "finished"}:
        return ""
    allowed = job is None or any(launch.max_restarts for launch in job.launches)
    return _AGAIN if allowed else f"{_AGAIN} (a launcher with --max-restarts 1 or more does so)"


def _advice(one: Explained, by_hand: str) -> str:
    if was_asked_for(one) and one.advice.action != "stop":
        return _WHEN_YOU_LIKE
    if one.root is not None and one.root.cause in REMEDIES and one.advice.action == "restart":
        return one_line(one.advice.reason)
    names = f" {', '.join(map(printable, one.advice.nodes))}" if one.advice.nodes else ""
    action = (by_hand if one.advice.action == "restart" else "") or one.advice.action
    return f"{action}{names}: {one_line(one.advice.reason)}"


def _quote(one: Finding) -> Iterator[str]:
    if one.quote:
        yield f"    {one_line(one.quote, _LONGEST_QUOTE)}"
    if one.source:
        yield f"    at {one_line(one.source)}"


def _known(one: Finding, advice: Decision) -> Iterator[str]:
    """Say what is known of the message in the quote, but what the advice says already."""
    if one.message:
        yield f"  why: {one.why} ({one.message})"
    if one.message and one.remedy not in advice.reason:
        yield f"  remedy: {one.remedy}"


def _round(one: Explained, by_hand: str, *, is_only: bool) -> Iterator[str]:
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
        yield from _known(one.root, one.advice)
    yield from _followed(case)
    if did := "; ".join(filter(None, (case.did, case.pause))):
        yield f"  undaunted: {one_line(did)}"
    if not is_only:
        yield f"  advice: {_advice(one, by_hand)}"
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
