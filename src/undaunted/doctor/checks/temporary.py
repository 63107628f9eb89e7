"""The directory for temporary files, and what logind removes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.doctor.checks.sizes import GIB, size

if TYPE_CHECKING:
    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding, Severity
    from undaunted.doctor.known_issues import KnownIssues

SUBJECT = "temporary files"
NETWORK = frozenset(
    {"nfs", "nfs4", "lustre", "cifs", "smb3", "beegfs", "gpfs", "ceph", "fuse.sshfs"}
)
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def check(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:  # noqa: ARG001
    """Writable, programs allowed, local, with room; and RemoveIPC."""
    return [*_directory(facts, issues), *_remove_ipc(facts, issues)]


def _directory(facts: Facts, issues: KnownIssues) -> list[Finding]:
    issue = issues.setting("L12")
    place = facts.file_systems.get("tmp")
    if place is None:
        return []
    if place.problem:
        return [issue.finding(SUBJECT, f"{place.path}: {place.problem}", "fail")]
    findings = []
    caches_elsewhere = all(facts.environ.get(name) for name in _CACHES)
    if "noexec" in place.options and not caches_elsewhere:
        found = f"{place.path} is mounted noexec"
        findings.append(issue.finding(SUBJECT, found, wanted="programs allowed"))
    if place.kind in NETWORK:
        found = f"{place.path} is on a network file system ({place.kind})"
        findings.append(issue.finding(SUBJECT, found, wanted="a local disk"))
    if place.free is not None and place.free < GIB:
        found = f"{place.path} has {size(place.free)} free"
        severity: Severity = "fail" if not place.free else "warn"
        findings.append(issue.finding(SUBJECT, found, severity, wanted="1 GiB free"))
    return findings


def _remove_ipc(facts: Facts, issues: KnownIssues) -> list[Finding]:
    value = facts.settings.get("RemoveIPC", "").strip().casefold()
    if value not in {"yes", "true", "1", "on"}:
        return []
    return [
        issues.setting("L07").finding(SUBJECT, f"RemoveIPC={value} in logind.conf", wanted="no")
    ]
