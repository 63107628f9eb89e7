"""GPUs and what belongs to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding, Severity
    from undaunted.doctor.known_issues import KnownIssues

SUBJECT = "GPUs"


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    """The driver answers, fits its library, and wants nothing; switches are managed."""
    gpus = facts.gpus
    if not gpus.present:
        return []
    issue = issues.setting("L22")
    findings = []
    if gpus.problem:
        findings.append(issue.finding(SUBJECT, f"the driver: {gpus.problem}"))
    if gpus.states:
        findings.append(issue.finding(SUBJECT, gpus.states))
    if gpus.nvswitch and gpus.fabric_manager is False:
        # In a container its process cannot be seen.
        severity: Severity = "warn" if facts.in_container else "fail"
        found = "there are NVLink switches, and no fabric manager runs"
        findings.append(issue.finding(SUBJECT, found, severity))
    library = facts.versions.get("nvidia-driver", "")
    if library and gpus.kernel_driver and library != gpus.kernel_driver:
        found = f"the kernel's driver is {gpus.kernel_driver}, the library {library}"
        findings.append(issue.finding(SUBJECT, found, wanted="the same"))
    if gpus.count is not None and (asked.nproc_per_node or 0) > gpus.count:
        found = f"{gpus.count} GPUs, for {asked.nproc_per_node} ranks"
        findings.append(issue.finding(SUBJECT, found, "warn", wanted="a GPU for each rank"))
    return findings
