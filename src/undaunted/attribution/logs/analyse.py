"""From the lines of logs to findings: what ended the program, and who it was. Pure but for reading.

A line counts only if the program did not go on after it. What has been survived, what follows from
something else, and what comes after the end of the job was asked for, is left out.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import TYPE_CHECKING

from msgspec.structs import replace

from undaunted.attribution.findings import CAUSES, Action, Finding, severity_of, worst_first
from undaunted.attribution.logs.compare import FEW, compare
from undaunted.attribution.logs.landmarks import MOST_ROUNDS, landmarks
from undaunted.attribution.logs.prefixes import is_of_torchrun, rank_in_name
from undaunted.attribution.logs.rules import rules, with_message
from undaunted.attribution.logs.scan import LineSeen, LogScan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from undaunted.attribution.logs.landmarks import Landmarks, LastWords, Part
    from undaunted.attribution.logs.scan import Hit

_ASKED = frozenset(cause for cause, row in CAUSES.items() if row.kind == "end")
_DEVICE = severity_of("gpu_lost")
_PROGRAM = severity_of("program_error")
_NUMBER = re.compile(r"SeqNum=(\d{1,18})\b")
_WORK = re.compile(r"\bOpType=(\w{1,60}), NumelIn=(\d{1,18}), NumelOut=(\d{1,18})")
_OF_GROUP = re.compile(r"\bPG GUID (\w{1,40})\b")
_BETWEEN_TWO = re.compile(r"\bOpType=\w{0,20}(?:SEND|RECV|COALESCED)\b")
_WRAPPER = re.compile(r"\bCheckpointException ranks:dict_keys")
# Errors of a process that has started or asked another one, which says what went wrong.
_CARRIER = re.compile(
    r"\bRayTaskError\b|\bActorDiedError: |\bRayActorError: |\bTrainingFailedError: "
    r"|: Caught \w+ in DataLoader worker|\bProcessRaisedException:|(?:^|\s)Exception:\s*$"
    r"|\bCalledProcessError: .* returned non-zero exit status"
    r"|: .{0,200}\b[Ss]ee (?:the )?(?:root cause|stack trace|traceback|errors?)\b.{0,20}\b"
    r"(?:above|below)\b"
)
_VAGUE_OF_CUDA = re.compile(r"\bunhandled cuda error\b", re.IGNORECASE)
_STUCK = re.compile(r"\bwatchdog got stuck\b")
_CONSEQUENCES = frozenset({"terminated", "peer_lost"})  # of another failure
# Who warns of these goes on in another way, with another address or interface.
_TRIED_OTHERWISE = frozenset({"network_setup", "rendezvous_failed"})
_LATER = 0.9
_SURE_OF_LAUNCHER = 0.95
# How a launcher calls an end that somebody asked for, or that a node is the cause of.
_ASKED_BY = {
    "preempted": "preempted",
    "interrupted": "cancelled",  # of older versions
    "stopped by the user (Ctrl-C)": "cancelled",
    "too few nodes": "node_failed",
}
_SLURM = re.compile(r"(?:[\[\w.:+ -]{0,40}[\]:] )?\W{0,3}(?:srun|slurmstepd(?:-[\w.-]+)?|sbatch): ")
_RANK = re.compile(r"[a-z _]+(?:, [^:]*)?(?: \(exit code \d+\))?: rank \d")
_HAS_PLACE = frozenset({"gpu", "node", "rank"})
_GUESSED = 0.4
_CODE = re.compile(r"exitcode\s*:")
_EXIT = re.compile(
    r"exitcode\s*: [1-9]|exit code [1-9]|traceback : To enable traceback|ChildFailed"
)
_KILLED = re.compile(r"exitcode\s*: -9\b|SIGKILL")
# Ends that say nothing beside a cause: an abort of its own, and siblings that torchrun ends.
_TELLS_LITTLE = re.compile(
    r"exitcode\s*: -6\b|\bSIGABRT\b|\bAborted\b|terminate called|\bclosing signal\b"
)
# Torchrun, above its summary, which says the rank of the job: without one there is one node.
_LOCAL = re.compile(r"\bfailed \(exitcode: -?\d{1,4}\) local_rank: (\d{1,7})\b")
_ABORTED = re.compile(r"exitcode\s*: -6\b")
_DIED = re.compile(r"\bWorker exit type: SYSTEM_ERROR\b")  # Ray
# Lines beside which there is mostly another that says more.
_VAGUE = re.compile(
    r"^\W*exitcode\s*:|ExceptionGroup: |: Caught \w+ in "
    r"|closing signal|invoked oom-killer|oom-kill:|terminate called|ChildFailed"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """The last failure of a job, as logs tell it.

    Attributes:
        findings: the root cause first; empty if nothing ended the program.
        stepped: whether a step had been made.
        step: number of the last one, None = not known.
        ended: whether a log says that the program came to its end.
        action: what the logs alone speak for. "exclude" only where the nodes are known; "stop" only
            if the root cause is the program's own and would come again in every attempt: no step
            was made, and all ranks say the same.
        last: the last line of a launcher of undaunted, None = there is none. Of a job that has
            finished nothing is found that came before.
        survived: failures after which the launchers of undaunted went on, as they say.
    """

    findings: list[Finding]
    stepped: bool
    step: float | None
    ended: bool
    action: Action
    last: LastWords | None = None
    survived: tuple[str, ...] = ()


def analyse(
    files: Iterable[str | PathLike[str]], previous: Iterable[str | PathLike[str]] | None = None
) -> list[Finding]:
    """Find out from log files what ended a job, the root cause first.

    Args:
        files: logs of the same launch: of ranks, nodes, or of all together.
        previous: logs of the last round that went well, to compare with.
    """
    return read_logs(files, previous).findings


def read_logs(
    files: Iterable[str | PathLike[str]],
    previous: Iterable[str | PathLike[str]] | None = None,
    world_size: int | None = None,
    *,
    names: bool = True,
    advance: Callable[[int], object] | None = None,
) -> Reading:
    """Like `analyse`, with what the findings rest on.

    Args:
        files: see `analyse`.
        previous: see `analyse`.
        world_size: number of ranks; None: as the logs say.
        names: whether ranks are taken from names of files where lines do not say them.
        advance: called with how many bytes more were read, for people who wait.
    """
    known = [_scanned(file, advance, compared=True) for file in previous or ()]
    scans = [_scanned(file, advance, compared=bool(known)) for file in files]
    if names:
        _name_ranks(scans, world_size)
    return judge(scans, known, world_size)


def read_folder(
    files: Iterable[str | PathLike[str]],
    advance: Callable[[int], object] | None = None,
    opener: Callable[[str, int], int] = os.open,
) -> Reading:
    """Like `read_logs`, of all that is there of a job: of each log the last round counts.

    Args:
        files: see `analyse`.
        advance: see `read_logs`.
        opener: opens files, as that of the built-in ``open``.
    """
    scans, ends, survived = [], {}, dict[str, None]()
    for file in map(str, files):
        marks = _marks_of(file, opener)
        part = marks.rounds[-1] if marks is not None and len(marks.rounds) > 1 else None
        scans.append(_scanned(file, advance, opener, compared=False, part=part))
        if marks is not None:
            survived |= dict.fromkeys(marks.survived)
            if (end := marks.ends[-1]) is not None:
                ends[file] = end
    _name_ranks(scans, None)
    reading = in_words_of_launchers(judge(scans), ends)
    return changed(reading, survived=tuple(survived)[-MOST_ROUNDS:])


def _marks_of(path: str, opener: Callable[[str, int], int]) -> Landmarks | None:
    """Return the landmarks of a log, None = it cannot be read."""
    try:
        fd = opener(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # reading it says why
        return None
    try:
        return landmarks(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def read_part(
    path: str, part: Part, last: LastWords | None, opener: Callable[[str, int], int]
) -> Reading:
    """Like `read_logs`, of a part of one log.

    Args:
        path: of the log.
        part: of it, such as a round.
        last: the last line of a launcher in it.
        opener: opens the file, as that of the built-in ``open``.
    """
    scan = _scanned(path, opener=opener, compared=False, part=part)
    _name_ranks([scan], None)
    return in_words_of_launchers(judge([scan]), {path: last} if last is not None else {})


def in_words_of_launchers(reading: Reading, ends: Mapping[str, LastWords]) -> Reading:
    """Return what logs say, as launchers have it, who know how the job has ended.

    Args:
        reading: of the logs.
        ends: the last line of a launcher, by log; a launcher that left before the job's end is
            worth less than one that did not.
    """
    if not ends:
        return reading
    worth = {outcome: place for place, outcome in enumerate(("finished", "", "excluded"))}
    last = min(ends.values(), key=lambda one: worth.get(one.outcome, worth[""]))
    findings = reading.findings
    if last.outcome == "finished":  # nor is it a failure what Slurm says of the step after that
        findings = [one for one in findings if _is_later(one, ends)]
    elif cause := _ASKED_BY.get(last.outcome):
        found = [one for one in findings if one.cause == cause]
        findings = found or [Finding(cause, confidence=_SURE_OF_LAUNCHER, quote=last.text)]
    elif _RANK.match(last.text):  # a node that was lost was replaced
        findings = [one for one in findings if not _SLURM.match(one.quote)] or findings
    ended = last.outcome == "finished"
    return changed(reading, findings=findings, ended=ended and not findings, last=last)


def _is_later(one: Finding, ends: Mapping[str, LastWords]) -> bool:
    """Whether another program has failed after the job."""
    path, _, line = one.source.rpartition(":")
    return path in ends and int(line) > ends[path].line and not _SLURM.match(one.quote)


def _scanned(
    file: str | PathLike[str],
    advance: Callable[[int], object] | None = None,
    opener: Callable[[str, int], int] | None = None,
    *,
    compared: bool,
    part: Part | None = None,
) -> LogScan:
    scan = LogScan(str(file), rules(), opener, part, compared=compared)
    scan.read(advance=advance)
    scan.finish()
    return scan


def _name_ranks(scans: Sequence[LogScan], world_size: int | None) -> None:
    """Take ranks from names of files, if these can be ranks of the job."""
    named = [(scan, *found) for scan in scans if (found := rank_in_name(scan.path))]
    ranks = {rank for _, rank, _ in named}
    if len(ranks) < len({(rank, folder) for _, rank, folder in named}):
        return  # each node counts its own
    size = world_size or _world_size(scans)
    if size and (max(ranks, default=0) >= size or _are_local(named, size)):
        return
    for scan, rank, _ in named:
        scan.rank = rank
        scan.ranks.add(rank)


def _are_local(named: Sequence[tuple[LogScan, int, str]], world_size: int) -> bool:
    """Whether files are of the ranks of one node of several."""
    local = {rank for scan, rank, _ in named if is_of_torchrun(scan.path)}
    return 0 < len(local) < world_size


def _world_size(scans: Sequence[LogScan]) -> int:
    return max((scan.world_size for scan in scans), default=0)


@dataclass(frozen=True, slots=True)
class _Job:
    """The ranks of a job.

    Attributes:
        node_of: nodes of ranks, where lines say both.
        ranks: that say something.
        size: how many there are, at least.
    """

    node_of: dict[int, str]
    ranks: set[int]
    size: int


def judge(
    scans: Sequence[LogScan], previous: Sequence[LogScan] = (), world_size: int | None = None
) -> Reading:
    """Say what scans have found so far.

    Args:
        scans: of the logs of one launch.
        previous: of the last round that went well.
        world_size: number of ranks; None: as the logs say.
    """
    seen = _without_warnings(_not_survived(scans))
    seen = _without_vague(_without_carriers(_without_wrappers(seen)))
    seen |= _doubtful(scans, seen)
    seen |= _by_last_words(scans, seen)
    seen = _judge_by_exit_codes(_without_late_kill(_without_ends(seen)))
    node_of = {rank: node for scan in scans for rank, node in scan.node_of.items()}
    ranks = {rank for scan in scans for rank in scan.ranks}
    world_size = world_size or _world_size(scans)
    job = _Job(node_of, ranks, world_size or max(ranks, default=-1) + 1)
    made = [(_place(one), _finding(one, seen, job)) for one in _judge_by_text(seen)]
    findings = compare(_in_order(made), seen, scans, previous)
    stepped = any(scan.steps for scan in scans)
    return Reading(
        findings,
        stepped,
        max((scan.last_step for scan in scans if scan.last_step is not None), default=None),
        any(scan.ended >= 0 for scan in scans),
        _action(findings[0], seen, world_size, stepped=stepped) if findings else "restart",
    )


def _action(root: Finding, seen: dict[str, LineSeen], world_size: int, *, stepped: bool) -> Action:
    cause = CAUSES[root.cause]
    if cause.action == "exclude" and cause.after == 1 and root.nodes:
        return "exclude"
    one = seen.get(root.cause)
    everywhere = one is not None and world_size > 1 and one.ranks >= set(range(world_size))
    if cause.action == "stop" and everywhere and not stepped and one and one.certain:
        return "stop"
    return "restart"


def _not_survived(scans: Sequence[LogScan]) -> dict[str, LineSeen]:
    """Collect, by cause, what was not survived."""
    seen: dict[str, LineSeen] = {}
    for scan in scans:
        for one in scan.seen():
            last = one.hits[-1].t
            if last > 0 and any(other.went_on_after(last) for other in scans if other is not scan):
                continue
            if one.cause not in seen:
                seen[one.cause] = one
                continue
            known = seen[one.cause]
            known.ranks |= one.ranks
            known.nodes += one.nodes
            if (one.hits[0].t or math.inf) < (known.hits[0].t or math.inf):
                known.hits = one.hits + known.hits
            else:
                known.hits += one.hits
    return seen


def _without_warnings(seen: dict[str, LineSeen]) -> dict[str, LineSeen]:
    """Leave out warnings of ranks that went on in another way, where something has ended them."""
    warned = {
        cause
        for cause in _TRIED_OTHERWISE & seen.keys()
        if all(hit.is_warning for hit in seen[cause].hits)
    }
    others = seen.keys() - warned - _CONSEQUENCES
    return {cause: one for cause, one in seen.items() if not others or cause not in warned}


def _without_wrappers(seen: dict[str, LineSeen]) -> dict[str, LineSeen]:
    """Leave out errors that only say which ranks have failed, where these say with what."""
    hits = [hit for one in seen.values() for hit in one.hits if _WRAPPER.search(hit.quote)]
    ranks = {rank for hit in hits for rank in hit.ranks}
    left = {}
    for cause, one in seen.items():
        others = [hit for hit in one.hits if not _WRAPPER.search(hit.quote)]
        if others and severity_of(cause) >= _PROGRAM:
            more = ranks if one.ranks & ranks else set()
            left[cause] = changed(one, hits=others, ranks=one.ranks | more)
        elif others:
            left[cause] = one
    return left if any(severity_of(cause) >= _PROGRAM for cause in left) else seen


def _without_carriers(seen: dict[str, LineSeen]) -> dict[str, LineSeen]:
    """Leave out errors that pass on another process's, where there are others."""
    left = {
        cause: changed(one, hits=hits)
        for cause, one in seen.items()
        if (hits := [hit for hit in one.hits if not _CARRIER.search(hit.quote)])
    }
    # A word that something failed is no other error.
    return left if any(not hit.meaning.alone for one in left.values() for hit in one.hits) else seen


def _without_vague(seen: dict[str, LineSeen]) -> dict[str, LineSeen]:
    """Leave out NCCL's name for any error of CUDA, where another line says which it was."""
    left = {
        cause: changed(one, hits=hits)
        for cause, one in seen.items()
        if (hits := [hit for hit in one.hits if not _VAGUE_OF_CUDA.search(hit.quote)])
    }
    return left if any(severity_of(cause) >= _PROGRAM for cause in left) else seen


def _doubtful(scans: Sequence[LogScan], seen: Mapping[str, LineSeen]) -> dict[str, LineSeen]:
    """Collect errors that may have been the end, where nothing else is known to be."""
    if seen.keys() - _CONSEQUENCES:
        return {}
    ends = seen["terminated"].hits if "terminated" in seen else []
    failed = any(_is_exit(hit) or hit.meaning.alone for hit in ends)
    found: dict[str, LineSeen] = {}
    for scan in scans:
        hit = scan.doubtful(failed=failed)
        if hit is None or (hit.t and any(other.went_on_after(hit.t) for other in scans)):
            continue
        one = found.setdefault(hit.meaning.cause, LineSeen(hit.meaning.cause))
        one.hits.append(hit)
        one.ranks.update(hit.ranks)
        one.nodes += hit.nodes
    return found


def _by_last_words(scans: Sequence[LogScan], seen: Mapping[str, LineSeen]) -> dict[str, LineSeen]:
    """Collect the last lines of trouble, where rules know nothing but that a process failed."""
    ends = seen["terminated"].hits if "terminated" in seen else []
    failed = all(_is_exit(hit) or hit.meaning.alone for hit in ends)
    if seen.keys() - {"terminated"} or not failed:
        return {}
    found: dict[str, LineSeen] = {}
    for hit in (hit for scan in scans for hit in scan.last_words()):
        cause = hit.meaning.cause
        if ends and cause in {"program_error", *_CONSEQUENCES}:
            continue  # that is known
        one = found.setdefault(cause, LineSeen(cause))
        one.hits.append(hit)
        one.ranks.update(hit.ranks)
        one.nodes += hit.nodes
    return found


def _without_ends(seen: dict[str, LineSeen]) -> dict[str, LineSeen]:
    """Leave out what came with an end that somebody asked for, or such an end after a failure.

    Both stay where the order is not known.
    """
    asked = [hit for cause, one in seen.items() if cause in _ASKED for hit in one.hits]
    if not asked:
        return seen
    first = {hit.path: hit.line for hit in sorted(asked, key=lambda hit: -hit.line)}
    since = min((hit.t for hit in asked if hit.t), default=0.0)
    came = {
        cause: min(_order(hit, first, since) for hit in one.hits)
        for cause, one in seen.items()
        if cause not in _ASKED
    }
    if any(when < 0 and severity_of(cause) >= _PROGRAM for cause, when in came.items()):
        return {cause: one for cause, one in seen.items() if cause not in _ASKED}
    return {
        cause: one
        for cause, one in seen.items()
        if cause in _ASKED
        or severity_of(cause) in {_DEVICE, 0}
        or (came[cause] == 0 and severity_of(cause) >= _PROGRAM)
    }


def _without_late_kill(seen: dict[str, LineSeen]) -> dict[str, LineSeen]:
    """Leave out that a process was killed after a timeout: it may have waited for another."""
    if "killed" not in seen or (timeout := seen.get("collective_timeout")) is None:
        return seen
    first = {hit.path: hit.line for hit in sorted(timeout.hits, key=lambda hit: -hit.line)}
    since = min((hit.t for hit in timeout.hits if hit.t), default=0.0)
    late = all(_order(hit, first, since) > 0 for hit in seen["killed"].hits)
    return {cause: one for cause, one in seen.items() if cause != "killed" or not late}


def _judge_by_exit_codes(seen: dict[str, LineSeen]) -> dict[str, LineSeen]:
    """Judge by how processes ended, where nothing says more.

    Who has lost a peer ends by an exit code, or aborts, but is not killed by that.
    """
    if "terminated" not in seen or seen.keys() - _CONSEQUENCES:
        return seen
    hits = seen["terminated"].hits
    first = [hit for hit in hits if hit.is_first and _CODE.search(hit.quote)]
    if killed := [hit for hit in first if _KILLED.search(hit.quote)]:
        return {"killed": _guessed("killed", killed), **seen}
    if "peer_lost" in seen or any(_CARRIER.search(hit.quote) for hit in hits):
        return seen
    if aborted := [hit for hit in first if _ABORTED.search(hit.quote)]:
        return {"native_crash": _guessed("native_crash", aborted), **seen}
    for cause in ("native_crash", "program_error") if not first else ():
        if alone := [hit for hit in hits if hit.meaning.alone == cause]:
            return {cause: _guessed(cause, alone), **seen}
    exits = [hit for hit in first or hits if _is_exit(hit)]
    if not exits:
        return seen
    return {"program_error": _guessed("program_error", exits), **seen}


def _guessed(cause: str, hits: Sequence[Hit]) -> LineSeen:
    """Take ends of processes for what ends them most often."""
    guess = [
        changed(hit, meaning=hit.meaning._replace(cause=cause, confidence=_GUESSED)) for hit in hits
    ]
    ranks = {rank for hit in hits for rank in hit.ranks}
    return LineSeen(cause, guess, ranks, [node for hit in hits for node in hit.nodes])


def _judge_by_text(seen: dict[str, LineSeen]) -> Iterator[LineSeen]:
    """Leave out, where there is another cause, ends that nobody else has asked for."""
    for one in seen.values():
        hits = [hit for hit in one.hits if not _tells_little(hit)]
        if one.cause != "terminated" or len(seen) == 1:
            yield one
        elif hits:
            yield changed(one, hits=hits)


def _tells_little(hit: Hit) -> bool:
    by_words = _is_exit(hit) or _TELLS_LITTLE.search(hit.quote) is not None
    return by_words or hit.meaning.alone != ""


def _is_exit(hit: Hit) -> bool:
    return _EXIT.search(hit.quote) is not None


def _order(hit: Hit, first: dict[str, int], since: float) -> int:
    """Return -1 if a line came before what began in these lines and at this time, 1: after it.

    0 = not known: it is in another file, and one of both has no time, or both have the same.
    """
    line = first.get(hit.path)
    if line is not None:
        return -1 if hit.line < line else 1
    if not hit.t or not since or hit.t == since:
        return 0
    return -1 if hit.t < since else 1


def _in_order(made: list[tuple[tuple[float, int], Finding]]) -> list[Finding]:
    """Put findings into order; of equally severe ones the later are less sure than the first."""
    made.sort(key=lambda one: (-severity_of(one[1].cause), one[0]))
    ordered: list[Finding] = []
    for _, finding in made:
        before = ordered[-1] if ordered else None
        if before and severity_of(before.cause) == severity_of(finding.cause):
            confidence = min(finding.confidence, _LATER * before.confidence)
            finding = replace(finding, confidence=round(confidence, 3))  # noqa: PLW2901
        ordered.append(finding)
    return worst_first(ordered)


def _place(one: LineSeen) -> tuple[float, int]:
    hit = one.hits[0]
    return hit.t, hit.line


def _finding(one: LineSeen, seen: dict[str, LineSeen], job: _Job) -> Finding:
    first = one.hits[0]
    ranks, nodes = set(one.ranks), set(one.nodes)
    if CAUSES[one.cause].follows:
        ranks = {rank for hit in one.hits for rank in hit.meaning.ranks}
        if not ranks and one.cause != "terminated":  # who is not ended says nothing about an end
            ranks = _stuck(one.hits, job.ranks) or _behind(one.hits, job.ranks)
            ranks = ranks or _silent(one.ranks, job)
        nodes = set()
    elif not ranks and one.cause != "killed" and CAUSES[one.cause].scope in _HAS_PLACE:
        ranks = _others_of(nodes, seen, job.node_of)
    inferred = bool(ranks - one.ranks) and not nodes
    if not ranks and not nodes:
        ranks, nodes = _first_failure(one.cause, seen)
    if not nodes and ranks and all(rank in job.node_of for rank in ranks):
        nodes = {job.node_of[rank] for rank in ranks}
    quoted = max([hit for hit in one.hits if ranks & {*hit.ranks}] or one.hits, key=_telling)
    finding = Finding(
        one.cause,
        tuple(sorted(ranks)),
        tuple(sorted(nodes)),
        _time_of(first, seen),
        quoted.meaning.confidence,
        quoted.quote,
        f"{quoted.path}:{quoted.line}",
        inferred,
    )
    return with_message(finding, quoted.meaning.message)


def _time_of(first: Hit, seen: dict[str, LineSeen]) -> float:
    """Return when a line was said: its own time, else that of what ended behind it.

    The lines before may be as old as the start of the job.
    """
    if first.is_timed:
        return first.t
    behind = [
        hit.t
        for one in seen.values()
        for hit in one.hits
        if hit.is_timed and hit.path == first.path and hit.line > first.line
    ]
    return min(behind, default=first.t)


def _telling(hit: Hit) -> tuple[bool, float]:
    return not _VAGUE.search(hit.quote), hit.meaning.confidence


def _first_failure(cause: str, seen: dict[str, LineSeen]) -> tuple[set[int], set[str]]:
    """Return rank and host of the failure that torchrun calls the first, if all summaries agree.

    Not where ranks have failed because of others: the first to end may have waited for another,
    unless it was killed, which it does not do itself.
    """
    every = [hit for one in seen.values() for hit in one.hits]
    if cause == "killed":
        every = [hit for hit in every if _KILLED.search(hit.quote)]
    elif any(CAUSES[each].follows and each != "terminated" for each in seen):
        return set(), set()
    hits = [hit for hit in every if hit.is_first]
    if not hits:
        hits = [hit for hit in every if _says_who_ended(hit)]
        if local := {found[1] for hit in every if (found := _LOCAL.search(hit.quote))}:
            return ({int(one) for one in local} if len(local) == 1 and not hits else set()), set()
    who = {(hit.ranks, hit.nodes) for hit in hits}
    return (set(hits[0].ranks), set(hits[0].nodes)) if len(who) == 1 else (set(), set())


def _says_who_ended(hit: Hit) -> bool:
    """Whether a launcher says which process ended with an error, or by its own signal."""
    ended = hit.meaning.alone != "" or _is_exit(hit) or _DIED.search(hit.quote) is not None
    return ended and bool(hit.ranks or hit.nodes)


def _behind(hits: list[Hit], all_ranks: set[int]) -> set[int]:
    """Return the few ranks that were at an earlier collective of a group than the others."""
    at: dict[int, list[Hit]] = {}
    for hit in hits:
        found = _NUMBER.search(hit.quote)
        if found and not _BETWEEN_TWO.search(hit.quote):
            at.setdefault(int(found[1]), []).append(hit)
    if len(at) < 2:
        return set()
    last = max(at)
    earlier = {number: hits for number, hits in at.items() if number < last}
    one_group = all(
        _may_be_of_one_group(hit, at[last], last - number)
        for number, hits in earlier.items()
        for hit in hits
    )
    first = {rank for hit in at[min(at)] for rank in hit.ranks}
    ahead = {rank for hit in at[last] for rank in hit.ranks}
    least = max(len(all_ranks), max(all_ranks, default=0) + 1)  # of the job: not all may speak
    return first if one_group and len(first) <= least * FEW and len(first) < len(ahead) else set()


def _may_be_of_one_group(hit: Hit, others: Sequence[Hit], behind: int) -> bool:
    """Whether a collective is of the group of later ones: groups count theirs one by one each."""
    groups = {found[1] for one in (hit, *others) if (found := _OF_GROUP.search(one.quote))}
    work, other = _WORK.search(hit.quote), _WORK.search(others[0].quote)
    alike = work is None or other is None or work.groups() == other.groups()
    return len(groups) <= 1 and (alike or behind == 1)


def _stuck(hits: list[Hit], all_ranks: set[int]) -> set[int]:
    """Return the few ranks whose own watchdog stands still, as their threads do, in a driver."""
    stuck = {rank for hit in hits if _STUCK.search(hit.quote) for rank in hit.ranks}
    return stuck if len(stuck) <= len(all_ranks) * FEW else set()


def _silent(said: set[int], job: _Job) -> set[int]:
    """Return the few ranks that do not say what all others say: these were waited for.

    Of ranks that say nothing at all no more than one: there may be no log of the others.
    """
    if silent := job.ranks - said:
        return silent if len(silent) <= len(job.ranks) * FEW else set()
    heard = {rank for rank in job.ranks if rank < job.size}
    if job.size - len(heard) != 1 or job.size * FEW < 1:
        return set()
    return {*range(job.size)} - heard


def _others_of(nodes: set[str], seen: dict[str, LineSeen], node_of: dict[int, str]) -> set[int]:
    """Return the ranks with own errors, on nodes of which a device or the host failed."""
    ranks: set[int] = set()
    for one in seen.values():
        if severity_of(one.cause) >= _PROGRAM:
            ranks |= one.ranks
        elif one.cause == "terminated":
            for hit in one.hits:
                if set(hit.nodes) & nodes and hit.meaning.ranks:
                    ranks |= set(hit.ranks)
    return {rank for rank in ranks if not nodes or node_of.get(rank) in {None, *nodes}}
