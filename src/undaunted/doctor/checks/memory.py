"""Memory: limits of the container, and who goes when it is short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.doctor.checks.sizes import GIB, size, whole

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding
    from undaunted.doctor.known_issues import KnownIssues

SUBJECT = "memory"
_PER_RANK = 2 * GIB  # torch with CUDA takes about this before it has any data


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    """The limit of the container, out-of-memory kills, overcommit, scores, core files."""
    return [
        *_container(facts, asked, issues),
        *_overcommit(facts, issues),
        *_core_files(facts, asked, issues),
    ]


def _container(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    issue = issues.setting("L10")
    group = facts.cgroup
    findings = []
    if group.memory_max is not None:
        free = group.memory_max - (group.memory_now or 0)
        needed = max(_PER_RANK * (asked.nproc_per_node or 1), asked.checkpoint_bytes)
        if free < needed:
            found = f"the container may use {size(group.memory_max)}, {size(max(0, free))} more"
            findings.append(issue.finding(SUBJECT, found, wanted=f"{size(needed)} free"))
    if group.oom_kills:
        found = (
            f"out of memory, the kernel has killed {group.oom_kills} processes in this container"
        )
        findings.append(issue.finding(SUBJECT, found, wanted="none"))
    return findings


def _overcommit(facts: Facts, issues: KnownIssues) -> list[Finding]:
    issue = issues.setting("L11")
    findings = []
    if whole(facts.settings.get("vm.overcommit_memory")) == 2:
        found = "vm.overcommit_memory is 2"
        findings.append(issue.finding(SUBJECT, found, wanted="0 or 1"))
    if facts.oom_score_adj is not None and facts.oom_score_adj > 0:
        found = f"oom_score_adj is {facts.oom_score_adj}: this shell's processes are killed first"
        findings.append(issue.finding(SUBJECT, found, "info", wanted="0 or less"))
    return findings


def _core_files(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    core = facts.limits.get("core")
    pattern = facts.settings.get("kernel.core_pattern", "")
    if core is None or core.soft == 0 or pattern.startswith("|"):
        return []  # none, or a program takes care of them
    if core.soft is not None and core.soft * (asked.nproc_per_node or 1) < GIB:
        return []
    large = "of any size" if core.soft is None else f"of {size(core.soft)}"
    found = f"each rank that crashes may leave a core file {large} (ulimit -c)"
    return [issues.setting("L11").finding(SUBJECT, found, "info", wanted="ulimit -c 0")]
