"""Versions with known bugs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.doctor.versions import parse_range, parse_version

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding
    from undaunted.doctor.known_issues import KnownIssues, VersionIssue

SUBJECT = "versions"
# Written as their makers do.
NAMES = {
    "nccl": "NCCL",
    "python": "Python",
    "torch": "torch",
    "linux": "Linux",
    "nvidia-driver": "NVIDIA driver",
    "transformer-engine": "TransformerEngine",
    "megatron-core": "Megatron Core",
    "lightning": "Lightning",
}


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    """Compare every version with every range."""
    findings = []
    for issue in issues.versions:
        version = facts.versions.get(issue.component, "")
        if version and issue.concerns(asked.features) and _affected(version, issue, facts):
            ranges = " or ".join(issue.ranges)
            wanted = f"outside of {ranges}" if ranges != "*" else ""
            name = NAMES.get(issue.component, issue.component)
            findings.append(issue.finding(SUBJECT, f"{name} {version}", wanted=wanted))
    return findings


def _affected(version: str, issue: VersionIssue, facts: Facts) -> bool:
    if issue.arch and facts.arch not in issue.arch:
        return False
    if issue.installed and issue.installed not in facts.versions:
        return False
    if any(facts.environ.get(name) == value for name, value in issue.unless.items()):
        return False
    try:
        number = parse_version(version)
    except ValueError:
        return False  # a build of somebody's own: nothing is known about it
    return any(parse_range(text).includes(number) for text in issue.ranges)
