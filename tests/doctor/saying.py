"""What a check says to facts that were made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undaunted.doctor.facts import Asked, Facts
from undaunted.doctor.known_issues import known_issues

if TYPE_CHECKING:
    from undaunted.doctor.checks import Check

ISSUES = known_issues()


def said(check: Check, asked: Asked | None = None, **facts: Any) -> list[tuple[str, str, str]]:
    """Id, severity and what was found, of each finding."""
    found = check(Facts(**facts), asked or Asked(), ISSUES)
    return [(finding.id, finding.severity, finding.found) for finding in found]


def wanting(*features: str, **more: Any) -> Asked:
    return Asked(features=frozenset(features), **more)
