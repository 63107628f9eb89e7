"""Whether one process may look into another: stacks of hung ranks, shared descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.doctor.checks.sizes import whole
from undaunted.doctor.versions import parse_range, parse_version

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding
    from undaunted.doctor.known_issues import KnownIssues

SUBJECT = "tracing and capabilities"
_SYS_PTRACE = 1 << 19
_SYS_NICE = 1 << 23
_NEEDS_NICE = parse_range(">=2.24")


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:  # noqa: ARG001
    """ptrace_scope, and capabilities in containers."""
    findings = []
    scope = whole(facts.settings.get("kernel.yama.ptrace_scope"))
    may = facts.capabilities is not None and bool(facts.capabilities & _SYS_PTRACE)
    if scope == 3 or (scope == 2 and not may):
        found = f"kernel.yama.ptrace_scope is {scope}"
        findings.append(issues.setting("L08").finding(SUBJECT, found, wanted="0 or 1"))
    nice = facts.capabilities is None or bool(facts.capabilities & _SYS_NICE)
    if facts.in_container and not nice and _needs_nice(facts):
        found = "this container has no SYS_NICE"
        findings.append(issues.setting("L09").finding(SUBJECT, found))
    return findings


def _needs_nice(facts: Facts) -> bool:
    try:
        return _NEEDS_NICE.includes(parse_version(facts.versions.get("nccl", "")))
    except ValueError:
        return False
