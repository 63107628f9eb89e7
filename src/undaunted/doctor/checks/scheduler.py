"""Slurm and Kubernetes, as far as they can be seen from inside of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.doctor.checks.sizes import whole

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding
    from undaunted.doctor.known_issues import KnownIssues

SUBJECT = "scheduler"
MARKS = frozenset({"SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"})  # set in jobs of these
_SHORT_S = 60
_EARLY_ENDS = (
    ("SLURM_KILL_BAD_EXIT", "KillOnBadExit", "--kill-on-bad-exit=0"),
    ("SLURM_WAIT", "WaitTime", "--wait=0"),
)


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:  # noqa: ARG001
    """What ends a job, and how much time it has then."""
    return [*_early_end(facts, issues), *_grace(facts, issues), *_kubernetes(facts, issues)]


def _early_end(facts: Facts, issues: KnownIssues) -> list[Finding]:
    """What makes srun end the launchers of all nodes because one of them has ended."""
    issue = issues.setting("L18")
    findings = []
    for variable, setting, option in _EARLY_ENDS:
        asked = facts.environ.get(variable)
        if asked is not None:
            if asked.strip() not in {"", "0"}:
                findings.append(issue.finding(SUBJECT, f"{variable}={asked}", wanted="0"))
        elif _seconds(facts, setting):
            found = f"{setting} is {facts.slurm[setting]} in the cluster's configuration"
            findings.append(issue.finding(SUBJECT, found, "warn", wanted=f"srun {option}"))
    return findings


def _grace(facts: Facts, issues: KnownIssues) -> list[Finding]:
    issue = issues.setting("L19")
    findings = []
    wait = _seconds(facts, "KillWait")
    if wait is not None and wait < _SHORT_S:
        found = f"KillWait is {wait} s: what Slurm ends is killed after that time"
        findings.append(issue.finding(SUBJECT, found, "info", wanted="a last checkpoint's time"))
    unkillable, message = (
        _seconds(facts, "UnkillableStepTimeout"),
        _seconds(facts, "MessageTimeout"),
    )
    if unkillable is not None and message is not None and unkillable < 5 * message:
        found = f"UnkillableStepTimeout is {unkillable} s, MessageTimeout {message} s"
        findings.append(issue.finding(SUBJECT, found, wanted=f"{5 * message} s or more"))
    return findings


def _seconds(facts: Facts, name: str) -> int | None:
    """Slurm writes ``30 sec``."""
    words = facts.slurm.get(name, "").split()
    return whole(words[0]) if words else None


def _kubernetes(facts: Facts, issues: KnownIssues) -> list[Finding]:
    if not facts.environ.get("KUBERNETES_SERVICE_HOST"):
        return []
    found = "this is a pod of Kubernetes; its grace period cannot be seen from inside"
    return [issues.setting("L20").finding(SUBJECT, found)]
