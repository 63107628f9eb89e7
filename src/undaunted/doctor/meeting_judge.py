"""Nodes side by side: their differences, those of their clocks, and who reaches whom. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.sizes import size
from undaunted.base.text import format_duration, one_line
from undaunted.doctor.checks import NAMES
from undaunted.doctor.meeting_messages import Clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.doctor.advice import Advice, Severity
    from undaunted.doctor.facts import Facts, Limit
    from undaunted.doctor.known_issues import KnownIssues
    from undaunted.doctor.meeting_messages import Pong, Unreached


# --- differences of clocks, from four timestamps as in NTP ----------------------------------------


PINGS = 8


def estimate(pong: Pong, back_ns: int) -> Clock:
    """Return how far the other clock is ahead; ``back_ns``: when the answer came, by one's own.

    The error is half of the time on the way: all of it may have been spent in one direction.
    """
    ahead_ns = ((pong.got_ns - pong.sent_ns) + (pong.answered_ns - back_ns)) // 2
    way_ns = (back_ns - pong.sent_ns) - (pong.answered_ns - pong.got_ns)
    return Clock(ahead_ns, max(0, (way_ns + 1) // 2))


def best(estimates: Sequence[Clock]) -> Clock:
    """Return the estimate with the least error: the one that met the least traffic."""
    return min(estimates, key=lambda clock: clock.error_ns)


# --- nodes laid beside each other: what differs between them, and who does not reach whom ---------


SUBJECT = "nodes of the job"
_SKEW_NS = 1_000_000_000
# Ranks with different ones do not understand each other.
_MUST_AGREE = frozenset({"torch", "nccl", "undaunted", "cuda"})
_MAY_DIFFER = frozenset({"linux", "etcd"})
_IN_BYTES = frozenset({"memlock", "stack", "core"})
# Of the scheduler's variables each node has its own.
_OWN = ("SLURM_", "KUBERNETES_")
_SHOWN_NODES = 4
_SHOWN_VALUES = 4


class Member(msgspec.Struct, kw_only=True):
    """A node of the meeting.

    Attributes:
        facts: about it.
        clock: None = it was not compared.
        unreached: peers, by their place among the members, that it could not reach.
    """

    facts: Facts
    clock: Clock | None = None
    unreached: list[Unreached] = []


def compare(members: Sequence[Member], expected: int, issues: KnownIssues) -> list[Advice]:
    """Return what is wrong with these nodes together.

    Args:
        members: those that came.
        expected: how many should have come.
        issues: what is known.
    """
    return [
        *_missing(members, expected, issues),
        *_unreached(members, issues),
        *_differences(members, issues),
        *_skew(members, issues),
    ]


def _missing(members: Sequence[Member], expected: int, issues: KnownIssues) -> list[Advice]:
    if len(members) >= expected:
        return []
    there = _nodes([member.facts.node for member in members])
    found = f"only {len(members)} of {expected} nodes came to the meeting: {there}"
    issue = issues.setting("N01")
    return [issue.finding(SUBJECT, found, wanted=f"undaunted doctor on all {expected} nodes")]


def _unreached(members: Sequence[Member], issues: KnownIssues) -> list[Advice]:
    """One finding per node that is not reached and reason, with all that have tried."""
    by_problem: defaultdict[tuple[int, str, bool], list[str]] = defaultdict(list)
    for member in members:
        for one in member.unreached:
            if 0 <= one.peer < len(members):
                key = (one.peer, one_line(one.problem, longest=200), one.name_only)
                by_problem[key].append(member.facts.node)
    findings = []
    for (peer, problem, name_only), nodes in by_problem.items():
        found = f"{one_line(members[peer].facts.node)} from {_nodes(nodes)}: {problem}"
        severity: Severity = "warn" if name_only else "fail"
        findings.append(issues.setting("N01").finding(SUBJECT, found, severity))
    return findings


def _differences(members: Sequence[Member], issues: KnownIssues) -> list[Advice]:
    findings = []
    for severity, what, values in _values(members):
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for node, value in values:
            groups[value].append(node)
        if len(groups) < 2:
            continue
        largest_first = sorted(groups.items(), key=lambda pair: -len(pair[1]))
        parts = [
            f"{one_line(value, longest=80)} on {_nodes(nodes)}"
            for value, nodes in largest_first[:_SHOWN_VALUES]
        ]
        more = len(groups) - _SHOWN_VALUES
        found = f"{what}: {'; '.join(parts)}{f' and {more} more' if more > 0 else ''}"
        findings.append(issues.setting("N02").finding(SUBJECT, found, severity))
    return findings


def _values(
    members: Sequence[Member],
) -> list[tuple[Severity, str, list[tuple[str, str]]]]:
    """Return what should be the same: how bad a difference is, its name, nodes with values."""
    facts = [member.facts for member in members]
    rows: list[tuple[Severity, str, list[tuple[str, str]]]] = []
    for name in _keys([one.versions for one in facts]):
        severity: Severity = "fail" if name in _MUST_AGREE else "warn"
        if name in _MAY_DIFFER:
            severity = "info"
        found = [(one.node, one.versions.get(name, "none")) for one in facts]
        rows.append((severity, NAMES.get(name, name), found))
    for name in _keys([one.environ for one in facts]):
        if not name.startswith(_OWN):
            found = [(one.node, one.environ.get(name, "not set")) for one in facts]
            rows.append(("warn", name, found))
    for name in _keys([one.limits for one in facts]):
        told = [(one.node, one.limits[name]) for one in facts if name in one.limits]
        found = [(node, _limit(name, limit)) for node, limit in told]
        rows.append(("warn", f"limit {name}", found))
    rows += [
        ("warn", "architecture", [(one.node, one.arch) for one in facts if one.arch]),
        ("warn", "CPUs", [(one.node, str(one.cpus)) for one in facts if one.cpus is not None]),
        ("warn", "GPUs", [(one.node, str(one.gpus.count or 0)) for one in facts]),
    ]
    for name in _keys([one.settings for one in facts]):
        found = [
            (one.node, " ".join(one.settings[name].split()))
            for one in facts
            if name in one.settings
        ]
        rows.append(("info", name, found))
    return rows


def _keys(tables: Sequence[Mapping[str, object]]) -> list[str]:
    return sorted({name for table in tables for name in table})


def _limit(name: str, limit: Limit) -> str:
    if limit.soft is None:
        return "unlimited"
    return size(limit.soft) if name in _IN_BYTES else str(limit.soft)


def _skew(members: Sequence[Member], issues: KnownIssues) -> list[Advice]:
    """Find the clocks that are furthest apart, for certain."""
    known = [(member.clock, member.facts.node) for member in members if member.clock is not None]
    if len(known) < 2:
        return []
    (early, first), (late, last) = (
        min(known, key=lambda pair: pair[0].ahead_ns),
        max(known, key=lambda pair: pair[0].ahead_ns),
    )
    apart_ns = late.ahead_ns - early.ahead_ns
    error_ns = late.error_ns + early.error_ns
    if apart_ns - error_ns <= _SKEW_NS:
        return []
    # The host is more ahead of the slower clock.
    found = (
        f"the clock of {one_line(first)} is {format_duration(apart_ns / 1e9)} ahead of that of "
        f"{one_line(last)} (error at most {format_duration(error_ns / 1e9)})"
    )
    return [issues.setting("L17").finding(SUBJECT, found, wanted="less than 1 s")]


def _nodes(nodes: Sequence[str]) -> str:
    if not nodes:
        return "none"
    shown = ", ".join(one_line(node, longest=80) for node in nodes[:_SHOWN_NODES])
    more = len(nodes) - _SHOWN_NODES
    return f"{shown} and {more} more" if more > 0 else shown
