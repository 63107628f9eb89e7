"""Limits of this process (ulimit), which ranks inherit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.doctor.checks.sizes import MIB, size

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding, Severity
    from undaunted.doctor.known_issues import KnownIssues

SUBJECT = "limits"
_FILES = 65536
_FEW_FILES = 4096
_FEW_LOCKED = 64 * MIB  # what systems give unless asked is 64 KiB to 8 MiB


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    """Open files, locked memory, stack, and who has set them."""
    return [
        *_open_files(facts, issues),
        *_locked_memory(facts, asked, issues),
        *_stack(facts, asked, issues),
        *_handed_on(facts, issues),
    ]


def _open_files(facts: Facts, issues: KnownIssues) -> list[Finding]:
    files = facts.limits.get("nofile")
    if files is None or files.soft is None or files.soft >= _FILES:
        return []
    found = f"ulimit -n is {files.soft}"
    if files.hard is None or files.hard > files.soft:
        most = "unlimited" if files.hard is None else str(files.hard)
        found += f" (up to {most} allowed)"
    severity: Severity = "warn" if files.soft < _FEW_FILES else "info"
    return [issues.setting("L03").finding(SUBJECT, found, severity, wanted=str(_FILES))]


def _locked_memory(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    locked = facts.limits.get("memlock")
    rdma = bool(facts.rdma) or "rdma" in asked.features
    if locked is None or locked.soft is None or not rdma:
        return []
    found = f"ulimit -l is {size(locked.soft)}, and there is {_devices(facts)}"
    few = locked.soft <= _FEW_LOCKED
    return [
        issues.setting("L02").finding(SUBJECT, found, "fail" if few else "warn", wanted="unlimited")
    ]


def _devices(facts: Facts) -> str:
    return f"RDMA ({', '.join(facts.rdma[:4])})" if facts.rdma else "to be RDMA"


def _stack(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    stack = facts.limits.get("stack")
    if stack is None or stack.soft is not None:
        return []
    severity: Severity = "warn" if "nvl72" in asked.features else "info"
    issue = issues.setting("L05")
    return [issue.finding(SUBJECT, "ulimit -s is unlimited", severity, wanted="8192 KiB")]


def _handed_on(facts: Facts, issues: KnownIssues) -> list[Finding]:
    """Slurm's own record of the limits of the submitting shell, where it has handed them on."""
    files = facts.limits.get("nofile")
    told = facts.environ.get("SLURM_RLIMIT_NOFILE", "")
    if files is None or files.soft is None or not told.isdecimal():
        return []
    if int(told) != files.soft or files.soft >= _FILES:
        return []
    found = f"Slurm has handed on ulimit -n {told} of the shell that submitted the job"
    return [issues.setting("L06").finding(SUBJECT, found, wanted=str(_FILES))]
