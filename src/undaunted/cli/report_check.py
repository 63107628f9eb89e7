"""``undaunted report --check``: what must never happen, looked for in the journals of a job."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from undaunted.base.text import one_line, printable
from undaunted.chaos.replay.check import check
from undaunted.chaos.replay.values import EXPECTED
from undaunted.chaos.replay.where import line_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.chaos.replay.values import Findings, Violation
    from undaunted.journal.reader import Journal
    from undaunted.journal.tables import Line

# How many violations of one rule are shown; those that follow are mostly of the same cause.
_SHOWN = 5
_VIOLATED = 1


def check_run(journals: Sequence[Journal]) -> tuple[list[Line], int]:
    """Return what ``--check`` shows, and the exit code: 1 if an invariant does not hold."""
    findings = check(journals)
    return list(_lines(findings)), _VIOLATED if findings.violations else 0


def _lines(findings: Findings) -> Iterator[Line]:
    count = len(findings.violations)
    found = "1 violation" if count == 1 else f"{count or 'no'} violations"
    rounds, launches = findings.rounds, findings.launches
    looked = f"{rounds} round{'s' * (rounds != 1)}, {launches} launch{'es' * (launches != 1)}"
    yield [("checked:  ", "dim"), (f"{looked}: ", ""), (found, "red" if count else "green")]
    by_rule: Counter[str] = Counter()
    for violation in findings.violations:
        by_rule[violation.rule] += 1
        if by_rule[violation.rule] <= _SHOWN:
            yield from _violation(violation)
    for rule, number in by_rule.items():
        if number > _SHOWN:
            yield [(f"... {number - _SHOWN} more of: {rule}", "dim")]
    for text in findings.unchecked:
        yield [("not checked: ", "yellow"), (one_line(text, longest=500), "")]


def _violation(violation: Violation) -> Iterator[Line]:
    yield [(violation.rule, "bold red"), (f": {one_line(violation.text, longest=1000)}", "")]
    for launch, event in violation.seen:
        line = line_of(launch.path, event)
        place = printable(str(launch.path)) + ("" if line is None else f":{line}")
        kind = event.__struct_config__.tag
        yield [(f"  {place}: ", ""), (f"{kind}, round {event.round}", "dim")]
    if violation.rule in EXPECTED:
        yield [("  expected: ", "dim"), (EXPECTED[violation.rule], "")]
