"""From the lines of logs to findings: what ended the program, and who it was. Pure but for reading.

A line counts only if the program did not go on after it. What has been survived, what follows from
something else, and what comes after the end of the job was asked for, is left out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from undaunted.attribution.findings import CAUSES, Action, Finding, severity_of, worst_first
from undaunted.attribution.logs.compare import FEW, compare
from undaunted.attribution.logs.rules import rules
from undaunted.attribution.logs.scan import LogScan, Seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

    from undaunted.attribution.logs.scan import Hit

_ASKED = frozenset({"preempted", "time_limit", "cancelled"})  # somebody asked for the end
_DEVICE = severity_of("gpu_lost")
_PROGRAM = severity_of("program_error")
_NUMBER = re.compile(r"SeqNum=(\d{1,18})\b")
_LATER = 0.9


@dataclass(frozen=True, slots=True)
class Reading:
    """What logs say about the last failure of a job.

    Attributes:
        findings: the root cause first; empty if nothing ended the program.
        stepped: whether a step had been made.
        step: number of the last one, None = not known.
        ended: whether a log says that the program came to its end.
        action: what the logs alone speak for. "exclude" only where the nodes are known; "stop" only
            if the root cause is the program's own and would come again in every attempt: no step
            was made, and all ranks say the same.
    """

    findings: list[Finding]
    stepped: bool
    step: float | None
    ended: bool
    action: Action


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
) -> Reading:
    """Like `analyse`, with what the findings rest on.

    Args:
        files: see `analyse`.
        previous: see `analyse`.
        world_size: number of ranks; None: as the logs say.
    """
    scans = [_scanned(file) for file in files]
    known = [_scanned(file) for file in previous or ()]
    return judge(scans, known, world_size)


def _scanned(file: str | PathLike[str]) -> LogScan:
    scan = LogScan(str(file), rules())
    scan.read()
    return scan


def judge(
    scans: Sequence[LogScan], previous: Sequence[LogScan] = (), world_size: int | None = None
) -> Reading:
    """Say what scans have found so far.

    Args:
        scans: of the logs of one launch.
        previous: of the last round that went well.
        world_size: number of ranks; None: as the logs say.
    """
    seen = _left(_alive(scans))
    node_of = {rank: node for scan in scans for rank, node in scan.node_of.items()}
    ranks = {rank for scan in scans for rank in scan.ranks}
    made = [(_place(one), _finding(one, seen, node_of, ranks)) for one in seen.values()]
    findings = compare(_in_order(made), seen, scans, previous)
    stepped = any(scan.steps for scan in scans)
    world_size = world_size or max((scan.world_size for scan in scans), default=0)
    return Reading(
        findings,
        stepped,
        max((scan.last_step for scan in scans if scan.last_step is not None), default=None),
        any(scan.ended >= 0 for scan in scans),
        _action(findings[0], seen, world_size, stepped=stepped) if findings else "restart",
    )


def _action(root: Finding, seen: dict[str, Seen], world_size: int, *, stepped: bool) -> Action:
    cause = CAUSES[root.cause]
    if cause.action == "exclude" and cause.after == 1 and root.nodes:
        return "exclude"
    one = seen.get(root.cause)
    everywhere = one is not None and world_size > 1 and one.ranks >= set(range(world_size))
    if cause.action == "stop" and everywhere and not stepped and one and one.certain:
        return "stop"
    return "restart"


def _alive(scans: Sequence[LogScan]) -> dict[str, Seen]:
    """Collect, by cause, what was not survived."""
    seen: dict[str, Seen] = {}
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


def _left(seen: dict[str, Seen]) -> dict[str, Seen]:
    """Leave out what came with an end that somebody asked for, or such an end after a failure."""
    asked = [one for cause, one in seen.items() if cause in _ASKED]
    if not asked:
        return seen
    first = min(_place(one) for one in asked)
    failed = [
        one
        for cause, one in seen.items()
        if severity_of(cause) >= _PROGRAM and cause not in _ASKED and _place(one) < first
    ]
    if failed:
        return {cause: one for cause, one in seen.items() if cause not in _ASKED}
    return {
        cause: one
        for cause, one in seen.items()
        if cause in _ASKED or severity_of(cause) in {_DEVICE, 0}
    }


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


def _place(one: Seen) -> tuple[float, int]:
    hit = one.hits[0]
    return hit.t, hit.line


def _finding(
    one: Seen, seen: dict[str, Seen], node_of: dict[int, str], all_ranks: set[int]
) -> Finding:
    first = one.hits[0]
    ranks, nodes = set(one.ranks), set(one.nodes)
    if CAUSES[one.cause].follows:
        ranks = {rank for hit in one.hits for rank in hit.meaning.ranks}
        if not ranks and one.cause != "terminated":  # who is not ended says nothing about an end
            ranks = _behind(one.hits, all_ranks) or _silent(one.ranks, all_ranks)
        nodes = set()
    elif not ranks and CAUSES[one.cause].scope in {"gpu", "node", "rank"}:
        ranks = _others_of(nodes, seen, node_of)
    inferred = bool(ranks - one.ranks) and not nodes
    if not ranks and not nodes:
        ranks, nodes = _first_failure(seen)
    if not nodes and ranks and all(rank in node_of for rank in ranks):
        nodes = {node_of[rank] for rank in ranks}
    quoted = next((hit for hit in one.hits if ranks & {*hit.ranks}), first)
    return Finding(
        one.cause,
        tuple(sorted(ranks)),
        tuple(sorted(nodes)),
        first.t,
        first.meaning.confidence,
        quoted.quote,
        f"{quoted.path}:{quoted.line}",
        inferred,
    )


def _first_failure(seen: dict[str, Seen]) -> tuple[set[int], set[str]]:
    """Return rank and host of the failure that torchrun calls the first, if all summaries agree.

    Not where ranks have failed because of others: the first to end may have waited for another.
    """
    if any(CAUSES[cause].follows and cause != "terminated" for cause in seen):
        return set(), set()
    hits = [hit for one in seen.values() for hit in one.hits if hit.is_first]
    who = {(hit.ranks, hit.nodes) for hit in hits}
    return (set(hits[0].ranks), set(hits[0].nodes)) if len(who) == 1 else (set(), set())


def _behind(hits: list[Hit], all_ranks: set[int]) -> set[int]:
    """Return the few ranks that were at an earlier collective than the others."""
    at: dict[int, set[int]] = {}
    for hit in hits:
        if found := _NUMBER.search(hit.quote):
            at.setdefault(int(found[1]), set()).update(hit.ranks)
    first = at[min(at)] if len(at) > 1 else set()
    return first if len(first) <= len(all_ranks) * FEW else set()


def _silent(said: set[int], all_ranks: set[int]) -> set[int]:
    """Return the few ranks that do not say what all others say: these were waited for."""
    silent = all_ranks - said
    return silent if len(silent) <= len(all_ranks) * FEW else set()


def _others_of(nodes: set[str], seen: dict[str, Seen], node_of: dict[int, str]) -> set[int]:
    """Return the ranks with errors of their own, on nodes of which a device or the host failed."""
    ranks: set[int] = set()
    for one in seen.values():
        if severity_of(one.cause) >= _PROGRAM:
            ranks |= one.ranks
        elif one.cause == "terminated":
            for hit in one.hits:
                if set(hit.nodes) & nodes and hit.meaning.ranks:
                    ranks |= set(hit.ranks)
    return {rank for rank in ranks if not nodes or node_of.get(rank) in {None, *nodes}}
