"""Compares a log with those of a good round, and ranks with each other. Pure.

What a round that went well has said too, explains no failure. What it has not said, and no rule
knows, is worth a quote.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from undaunted.attribution.findings import CAUSES, Finding
from undaunted.base.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.attribution.logs.scan import LineSeen, LogScan

_SAID_BEFORE = 0.3  # factors of what is missing to certainty, or of confidence
_NEW = 0.7
_FEW_SAY_IT = 0.7
FEW = 0.25  # of the ranks: so many may be to blame
_UNEXPLAINED = 0.2
_MOST_QUOTED = 3
_TROUBLE = re.compile(
    r"error|fail|fatal|abort|exception|cannot|could not|unable|lost|invalid", re.IGNORECASE
)


def compare(
    findings: Sequence[Finding],
    seen: Mapping[str, LineSeen],
    scans: Sequence[LogScan],
    previous: Sequence[LogScan],
) -> list[Finding]:
    """Return the findings with the confidence that a comparison gives them, in the same order.

    Args:
        findings: the root cause first.
        seen: the lines that they rest on, by cause.
        scans: of the logs.
        previous: of the logs of the last good round; empty = there is none.
    """
    ranks = {rank for scan in scans for rank in scan.ranks}
    known = {template for scan in previous for template in scan.templates}
    compared = [_compared(one, seen[one.cause], len(ranks), known) for one in findings]
    if known and not any(not CAUSES[one.cause].follows for one in findings):
        compared += _unexplained(scans, known)
    return compared


def _compared(finding: Finding, seen: LineSeen, ranks: int, known: set[int]) -> Finding:
    confidence = finding.confidence
    if known and all(hit.template in known for hit in seen.hits):
        confidence *= _SAID_BEFORE
    elif known:
        confidence = 1 - (1 - confidence) * _NEW
    few = 0 < len(seen.ranks) <= ranks * FEW
    if few and not CAUSES[finding.cause].follows:
        confidence = 1 - (1 - confidence) * _FEW_SAY_IT
    return replace(finding, confidence=round(confidence, 3))


def _unexplained(scans: Sequence[LogScan], known: set[int]) -> list[Finding]:
    """Quote the last lines that are new and came after the last step; those of trouble first."""
    lines = [
        (scan, line)
        for scan in scans
        if scan.ended < 0
        for line in scan.new_lines
        if line.template not in known and line.line > scan.last_step_line
    ]
    lines.sort(key=lambda one: (not _TROUBLE.search(one[1].text), one[1].line))
    return [
        Finding(
            "unexplained",
            confidence=_UNEXPLAINED,
            quote=one_line(line.text),
            source=f"{scan.path}:{line.line}",
        )
        for scan, line in lines[:_MOST_QUOTED]
    ]
