"""How many processes and threads there may be, and how many will be wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.doctor.checks.sizes import whole

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding
    from undaunted.doctor.known_issues import KnownIssues

SUBJECT = "processes and threads"
_PER_RANK = 64
_LEAST = 4097


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    """The limits of user and container, and OMP_NUM_THREADS."""
    return [*_allowed(facts, asked, issues), *_oversubscribed(facts, asked, issues)]


def _allowed(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    issue = issues.setting("L04")
    threads = max(1, whole(facts.environ.get("OMP_NUM_THREADS")) or 1)
    wanted = max(_LEAST, _PER_RANK * (asked.nproc_per_node or 1) * threads)
    findings = []
    limit = facts.limits.get("nproc")
    if limit is not None and limit.soft is not None and limit.soft < wanted:
        found = f"ulimit -u is {limit.soft}"
        findings.append(issue.finding(SUBJECT, found, wanted=f"at least {wanted}"))
    most = facts.cgroup.pids_max
    if most is not None and most < wanted:
        now = (
            ""
            if facts.cgroup.pids_now is None
            else f", of which {facts.cgroup.pids_now} are in use"
        )
        found = f"pids.max of the container is {most}{now}"
        findings.append(issue.finding(SUBJECT, found, wanted=f"at least {wanted}"))
    return findings


def _oversubscribed(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    threads = whole(facts.environ.get("OMP_NUM_THREADS"))
    ranks = asked.nproc_per_node or 1
    if threads is None or facts.cpus is None or threads * ranks <= facts.cpus:
        return []
    found = f"OMP_NUM_THREADS={threads} with {ranks} ranks on {facts.cpus} CPUs"
    issue = next(issue for issue in issues.variables if issue.id == "E23")
    wanted = str(max(1, facts.cpus // ranks))
    return [issue.finding(SUBJECT, found, wanted=wanted)]
