"""Room in /dev/shm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.doctor.checks.sizes import GIB, size

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding, Severity
    from undaunted.doctor.known_issues import KnownIssues

SUBJECT = "shared memory"
_FEW = 128 * 1024 * 1024  # what containers give unless asked (64 MB), and somewhat more


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    """A GiB free, and room for a checkpoint where one is kept in memory."""
    issue = issues.setting("L01")
    shm = facts.file_systems.get("shm")
    if shm is None:
        return []
    if shm.problem:
        return [issue.finding(SUBJECT, f"{shm.path}: {shm.problem}", "fail", wanted=issue.wanted)]
    if shm.free is None or shm.size is None:
        return []
    needed = max(GIB, asked.checkpoint_bytes if "async-checkpoint" in asked.features else 0)
    if shm.free >= needed:
        return []
    found = f"{shm.path} has {size(shm.free)} free of {size(shm.size)}"
    severity: Severity = "fail" if shm.size <= _FEW else "warn"
    return [issue.finding(SUBJECT, found, severity, wanted=f"{size(needed)} free")]
