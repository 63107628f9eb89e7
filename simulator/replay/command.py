"""`python -m simulator --check`: what must never happen, looked for in the journals of a job."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from simulator.replay.check import check
from simulator.replay.values import EXPECTED
from undaunted.base.console import plain
from undaunted.base.streams import take_any_text
from undaunted.base.text import one_line, printable
from undaunted.cli.run_journals import NoRunError, damage, find_run, read_run
from undaunted.journal.lines import MAX_LINE, decode
from undaunted.journal.reader import DEFAULT_RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulator.replay.values import Findings, Violation
    from undaunted.base.console import Line
    from undaunted.journal.events import Event

# How many violations of one rule are shown; those that follow are mostly of the same cause.
_SHOWN = 5
_VIOLATED = 1
_USAGE_ERROR = 2


def main(argv: Sequence[str]) -> int:
    """Check the run that the arguments after ``python -m simulator --check`` name.

    Returns:
        1 if an invariant does not hold, 2 if there is no journal to read.
    """
    options = _parser().parse_args(argv)
    take_any_text()
    try:
        journals, _ = read_run(find_run(options.run_dir))
    except NoRunError as error:
        print(f"python -m simulator --check: {error}", file=sys.stderr)
        return _USAGE_ERROR
    findings = check(journals)
    print(plain([*damage(journals), *_lines(findings)]), end="")
    return _VIOLATED if findings.violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulator --check",
        description="Look for what must never happen in the journals of a job.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        nargs="?",
        type=Path,
        help=f"directory of the run, or one journal; default: the newest under ./{DEFAULT_RUNS}",
    )
    return parser


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


def line_of(path: Path, event: Event) -> int | None:
    """Return the number of the line that holds an event, from 1; None if it is not there any more.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
            if _event_of(line) == event:
                return number
    return None


def _event_of(line: bytes) -> Event | None:
    try:
        return decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
