"""The data file `known_issues.yaml`: what is known to go wrong, with its sources."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from undaunted.doctor.advice import WORST_FIRST, Advice, Severity

FILE = Path(__file__).with_name("known_issues.yaml")
FEATURES = {
    "inprocess": "restart inside the process (undaunted.inprocess, NVRx's Wrapper)",
    "shrink": "shrink_group: communicators that go on without some ranks",
    "async-checkpoint": "checkpoints that are written while training goes on",
    "symmetric-memory": "NCCL's symmetric memory windows",
    "nvl72": "NVLink domains of several nodes",
    "rdma": "InfiniBand or RoCE (assumed where such a device is)",
    "torchrun": "torchrun in place of undaunted run",
}


class Issue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of every kind of row.

    Attributes:
        id: key in messages and documentation; never given to something else.
        why: what happens.
        remedy: what to do.
        sources: issues, documents, commits; ``proposal`` marks thresholds that are our own.
        severity: the worst it can be.
        unconfirmed: concluded, not read in a source; never worse than ``warn``.
        features: matters only for these; empty = always.
    """

    id: str
    why: str
    remedy: str
    sources: list[str]
    severity: Severity
    unconfirmed: bool = False
    features: list[str] = []

    def finding(
        self, subject: str, found: str, severity: Severity | None = None, *, wanted: str = ""
    ) -> Advice:
        """Return what was found as a finding about this issue.

        Args:
            subject: heading.
            found: what is there.
            severity: none worse than the row's, which is the default.
            wanted: what should be.
        """
        severity = severity or self.severity
        assert WORST_FIRST.index(severity) >= WORST_FIRST.index(self.severity), self.id
        return Advice(
            id=self.id,
            severity=severity,
            subject=subject,
            found=found,
            wanted=wanted,
            why=self.why,
            remedy=self.remedy,
            sources=tuple(self.sources),
            unconfirmed=self.unconfirmed,
        )

    def concerns(self, features: frozenset[str]) -> bool:
        """Return whether it matters for somebody who uses ``features``."""
        return not self.features or not features.isdisjoint(self.features)


class VersionIssue(Issue, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Software that has a known bug.

    Attributes:
        component: name in `Facts.versions`.
        ranges: affected versions, see `versions.parse_range`.
        arch: only on these machines, as ``uname -m`` calls them; empty = on all.
        unless: not where a variable of the environment has this value.
        installed: only where this component is installed as well, "" = always.
    """

    component: str
    ranges: list[str]
    arch: list[str] = []
    unless: dict[str, str] = {}
    installed: str = ""


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case in which the value of a variable is worth a word: one of the conditions holds.

    Attributes:
        severity: how bad that is.
        variables: which of the row's; empty = each of them.
        values: it is one of these, whatever its case.
        other_than: it is set to none of these.
        starts: it begins with one of these.
        contains: this is somewhere in it.
        below, above: it is a number less or greater than this.
        is_set: it has any value.
        unset: it has none.
        needs: only where this component is installed; "" = always.
        features: only for these; empty = always.
        not_for: not for these.
    """

    severity: Severity
    variables: list[str] = []
    values: list[str] = []
    other_than: list[str] = []
    starts: list[str] = []
    contains: str = ""
    below: float | None = None
    above: float | None = None
    is_set: bool = False
    unset: bool = False
    needs: str = ""
    features: list[str] = []
    not_for: list[str] = []


class VariableIssue(Issue, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Variables of the environment with values that hurt.

    Attributes:
        variables: names; several are spellings of one setting, or settings of one kind.
        wanted: what it should be, in words.
        cases: when that is not so; the first that holds for a variable counts.
    """

    variables: list[str]
    wanted: str
    cases: list[Case]


class SettingIssue(Issue, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something about the machine, which a function of `checks` looks at.

    Attributes:
        what: what is looked at.
        wanted: how it should be.
    """

    what: str
    wanted: str


class KnownIssues(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of the file."""

    versions: list[VersionIssue]
    variables: list[VariableIssue]
    settings: list[SettingIssue]

    def setting(self, key: str) -> SettingIssue:
        """Return the row about a setting.

        Raises:
            KeyError: there is none.
        """
        for issue in self.settings:
            if issue.id == key:
                return issue
        raise KeyError(key)


@functools.cache
def known_issues() -> KnownIssues:
    """Return the content of the data file."""
    return read_issues(FILE.read_text("utf-8"))


def read_issues(text: str) -> KnownIssues:
    """Read the text of such a file.

    Raises:
        ValueError: it is no such file.
    """
    try:
        return msgspec.yaml.decode(text, type=KnownIssues)
    except msgspec.DecodeError as error:
        raise ValueError(f"{FILE.name}: {error}") from None
