"""What could not be found out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding
    from undaunted.doctor.known_issues import KnownIssues

SUBJECT = "not looked at"


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:  # noqa: ARG001
    """Return a finding for each."""
    issue = issues.setting("D01")
    return [issue.finding(SUBJECT, f"{what}: {why}") for what, why in facts.unknown.items()]
