"""All checks of one node, in the order in which they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from undaunted.base.text import one_line
from undaunted.doctor.checks import (
    environment,
    gpu,
    limits,
    memory,
    network,
    scheduler,
    shared_memory,
    software,
    storage,
    temporary,
    threads,
    tracing,
    unanswered,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.doctor.facts import Asked, Facts
    from undaunted.doctor.finding import Finding
    from undaunted.doctor.known_issues import KnownIssues


class Check(Protocol):
    """What a module with a check has."""

    SUBJECT: str

    def check(self, facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
        """Return what is worth saying about these facts."""


CHECKS: tuple[Check, ...] = (
    software,
    environment,
    gpu,
    shared_memory,
    memory,
    limits,
    threads,
    tracing,
    temporary,
    storage,
    network,
    scheduler,
    unanswered,
)


def judge(
    facts: Facts, asked: Asked, issues: KnownIssues, checks: Sequence[Check] = CHECKS
) -> list[Finding]:
    """Return what all checks find. One that breaks says so, and stops no other."""
    return [finding for one in checks for finding in _made(one, facts, asked, issues)]


def absent(facts: Facts) -> list[str]:
    """Return the subjects that this node does not have, or nobody has asked for."""
    there = {
        gpu.SUBJECT: facts.gpus.present,
        storage.SUBJECT: bool(facts.trials),
        scheduler.SUBJECT: not facts.environ.keys().isdisjoint(scheduler.MARKS),
        unanswered.SUBJECT: False,
    }
    return [subject for subject, is_there in there.items() if not is_there]


def _made(one: Check, facts: Facts, asked: Asked, issues: KnownIssues) -> list[Finding]:
    try:
        return one.check(facts, asked, issues)
    except Exception as error:  # noqa: BLE001 - a bug of ours must not hide other findings
        why = f"this check is broken ({one_line(repr(error), longest=200)}); please report it"
        return [issues.setting("D01").finding(one.SUBJECT, why)]
