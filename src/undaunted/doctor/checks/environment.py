"""Variables of the environment that hurt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import one_line

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding
    from undaunted.doctor.known_issues import Case, KnownIssues

SUBJECT = "environment variables"


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    """Look at each variable of each issue; the first case that holds counts."""
    findings = []
    for issue in issues.variables:
        if not issue.concerns(asked.features):
            continue
        for name in issue.variables:
            value = facts.environ.get(name)
            for case in issue.cases:
                if _concerns(case, name, facts, asked) and holds(case, value):
                    found = f"{name} is not set" if value is None else f"{name}={one_line(value)}"
                    findings.append(
                        issue.finding(SUBJECT, found, case.severity, wanted=issue.wanted)
                    )
                    break
    return findings


def holds(case: Case, value: str | None) -> bool:
    """Whether a value (None = not set) is what a case is about."""
    if value is None:
        return case.unset
    word = value.strip()
    folded = word.casefold()
    return (
        case.is_set
        or folded in (text.casefold() for text in case.values)
        or (bool(case.other_than) and folded not in (t.casefold() for t in case.other_than))
        or word.startswith(tuple(case.starts))
        or (case.contains != "" and case.contains in word)
        or _beyond(case, word)
    )


def _beyond(case: Case, word: str) -> bool:
    try:
        number = float(word)
    except ValueError:
        return False
    return (case.below is not None and number < case.below) or (
        case.above is not None and number > case.above
    )


def _concerns(case: Case, name: str, facts: Facts, asked: Asked) -> bool:
    if case.variables and name not in case.variables:
        return False
    if case.needs and case.needs not in facts.versions:
        return False
    if case.features and asked.features.isdisjoint(case.features):
        return False
    return asked.features.isdisjoint(case.not_for)
