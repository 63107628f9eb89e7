"""Versions with known bugs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import one_line
from undaunted.doctor.versions import parse_range, parse_version, unaffected

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
    """Look for torch and for calls of the launcher; compare every version with every range."""
    findings = [*_torch(facts, issues), *_launcher(facts, issues)]
    for issue in issues.versions:
        version = facts.versions.get(issue.component, "")
        if version and issue.concerns(asked.features) and _affected(version, issue, facts):
            name = NAMES.get(issue.component, issue.component)
            wanted = unaffected(issue.ranges)
            findings.append(issue.finding(SUBJECT, f"{name} {version}", wanted=wanted))
    return findings


def _torch(facts: Facts, issues: KnownIssues) -> list[Finding]:
    """Without torch the ranks of most programs end at once."""
    issue = issues.setting("D03")
    python = one_line(facts.python)
    if facts.torch_problem:
        found = f"{python} cannot import torch: {facts.torch_problem}"
        return [issue.finding(SUBJECT, found, wanted=issue.wanted)]
    if python and "torch" not in facts.versions and "software" not in facts.unknown:
        found = f"there is no torch for {python}"
        return [issue.finding(SUBJECT, found, "warn", wanted=issue.wanted)]
    return []


def _launcher(facts: Facts, issues: KnownIssues) -> list[Finding]:
    """Look for functions of the kernel and of Python that the launcher uses."""
    findings = []
    if facts.refused:
        found = f"Linux {facts.versions.get('linux', '')} refuses {', '.join(facts.refused)}"
        issue = issues.setting("D04")
        findings.append(issue.finding(SUBJECT, found, wanted=issue.wanted))
    if facts.lacking:
        found = f"this build of Python lacks {', '.join(facts.lacking)}"
        issue = issues.setting("D05")
        findings.append(issue.finding(SUBJECT, found, wanted=issue.wanted))
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
