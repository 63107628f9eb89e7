"""The finding of a check."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["fail", "warn", "info"]
WORST_FIRST: tuple[Severity, ...] = ("fail", "warn", "info")


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a reader should know.

    Attributes:
        id: key of the known issue, as in the documentation.
        severity: ``fail``: training will not work, or its data may be wrong; ``warn``: it may
            hang, become slow, or hide its causes; ``info``: good to know.
        subject: heading it stands under.
        found: what is there.
        wanted: what should be, "" where that goes without saying.
        why: what goes wrong otherwise.
        remedy: what to do.
        sources: where that is known from.
        unconfirmed: no source says exactly this; it was concluded.
    """

    id: str
    severity: Severity
    subject: str
    found: str
    wanted: str = ""
    why: str = ""
    remedy: str = ""
    sources: tuple[str, ...] = ()
    unconfirmed: bool = False


def ordered(findings: list[Advice]) -> list[Advice]:
    """Return the findings, worst first, as they came otherwise."""
    return sorted(findings, key=lambda finding: WORST_FIRST.index(finding.severity))
