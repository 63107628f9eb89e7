"""Directories for checkpoints and logs: can be written, have room, and are not too slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import format_duration
from undaunted.doctor.checks.sizes import GIB, MIB, size

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts, Trial
    from undaunted.doctor.finding import Finding, Severity
    from undaunted.doctor.known_issues import KnownIssues, SettingIssue

SUBJECT = "storage"
_CHECKPOINTS = 3
_FEW_INODES = 10_000
_SLOW = 20 * MIB  # bytes per second
_LOG_ROOM = GIB


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    """What a trial in each directory gave."""
    issue = issues.setting("L21")
    return [finding for trial in facts.trials for finding in _trial(trial, asked, issue)]


def _trial(trial: Trial, asked: Asked, issue: SettingIssue) -> list[Finding]:
    where = f"{trial.path} ({trial.purpose})"
    if trial.problem:
        return [issue.finding(SUBJECT, f"{where}: {trial.problem}", "fail", wanted="writable")]
    findings = [*_room(trial, where, asked, issue)]
    speed = trial.written / trial.seconds if trial.seconds > 0 else None
    if speed is None:
        return findings
    told = f"{where}: {size(speed)}/s written"
    if trial.purpose == "checkpoints" and asked.checkpoint_bytes:
        told += f", a checkpoint takes {format_duration(asked.checkpoint_bytes / speed)}"
    if speed < _SLOW:
        findings.append(issue.finding(SUBJECT, told, "warn", wanted=f"{size(_SLOW)}/s or more"))
    else:
        findings.append(issue.finding(SUBJECT, told, "info"))
    return findings


def _room(trial: Trial, where: str, asked: Asked, issue: SettingIssue) -> list[Finding]:
    place = trial.file_system
    findings = []
    needed = _LOG_ROOM
    if trial.purpose == "checkpoints":
        needed = max(needed, _CHECKPOINTS * asked.checkpoint_bytes)
    if place.free is not None and place.free < needed:
        severity: Severity = (
            "fail" if trial.purpose == "checkpoints" and asked.checkpoint_bytes else "warn"
        )
        found = f"{where}: {size(place.free)} free"
        findings.append(issue.finding(SUBJECT, found, severity, wanted=f"{size(needed)} free"))
    if place.free_inodes is not None and place.free_inodes < _FEW_INODES:
        found = f"{where}: room for {place.free_inodes} more files"
        findings.append(issue.finding(SUBJECT, found, "warn", wanted=f"{_FEW_INODES} or more"))
    return findings
