"""``undaunted report``: what happened in a run, from its journals."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.journal.events import JournalOpened
from undaunted.journal.newest import DEFAULT_RUNS, newest_run
from undaunted.journal.outcome import job_outcome
from undaunted.journal.owner import is_running
from undaunted.journal.query import first
from undaunted.journal.reader import Journal, find_journals, read_journal
from undaunted.journal.render import plain, render_round, render_run
from undaunted.journal.restarts import RunSummary, summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.journal.events import Event
    from undaunted.journal.tables import Line

_SCHEMA = 1
_USAGE_ERROR = 2
_NO_END = 1


class Report(msgspec.Struct, kw_only=True, frozen=True):
    """What ``--json`` prints.

    Attributes:
        schema: goes up when a key changes its meaning; keys may be added without.
        run_dir: the directory that was read.
        unreadable_lines: lines of all journals that could not be read.
        unknown_events: lines with events of a newer build.
        launches: the launches of all nodes; per node, oldest first.
    """

    schema: int = _SCHEMA
    run_dir: str
    unreadable_lines: int
    unknown_events: int
    launches: list[RunSummary]


class _ReportError(Exception):
    """There is nothing to report; the message says why and what to do."""


def main(argv: Sequence[str]) -> int:
    """Print the report of a run.

    Args:
        argv: arguments after ``undaunted report``.

    Returns:
        0, or 2 if there is no journal to read or no such round. With ``--outcome``: the exit code
        of the job, 1 if none is recorded.
    """
    options = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # whatever its encoding
    code = 0
    try:
        run_dir = options.run_dir or _newest_run()
        journals = _read(run_dir)
        if options.outcome:
            code = _print_outcome(journals)
        else:
            _print(run_dir, journals, options)
        sys.stdout.flush()
    except _ReportError as error:
        print(f"undaunted report: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except BrokenPipeError:
        # The reader (a pager) had enough. Nothing may be flushed to it at exit either.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except OSError as error:
        print(f"undaunted report: standard output: {error.strerror}", file=sys.stderr)
        return _USAGE_ERROR
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="undaunted report",
        description="Show the rounds of a run, what ended each, and how long each restart took.",
    )
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        nargs="?",
        type=Path,
        help=f"directory of the run, or one journal; default: the newest under ./{DEFAULT_RUNS}",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument(
        "--outcome",
        action="store_true",
        help="say how the job ended, in one line, and end with its exit code",
    )
    parser.add_argument(
        "--round", type=int, metavar="N", help="show everything about round N, with its traceback"
    )
    return parser


def _newest_run() -> Path:
    run = newest_run()
    if run is None:
        raise _ReportError(
            f"no run under ./{DEFAULT_RUNS}; name the directory of a run: undaunted report RUN_DIR"
        )
    return run


def _read(run_dir: Path) -> list[Journal]:
    try:
        paths = [run_dir] if run_dir.is_file() else find_journals(run_dir)
        journals = [read_journal(path) for path in paths]
    except FileNotFoundError:
        raise _ReportError(
            f"{run_dir} does not exist; `undaunted run` prints the directory when a run starts"
        ) from None
    except OSError as error:
        raise _ReportError(
            f"{run_dir} cannot be read: {error.strerror}; name a directory you may read"
        ) from None
    if not journals:
        raise _ReportError(
            f"{run_dir} holds no journal (journal-NODE.jsonl); name the directory of a run, "
            "not the one above it"
        )
    if not any(journal.events for journal in journals):
        raise _ReportError(
            f"the journal in {run_dir} holds no event that can be read: it is empty or damaged; "
            "logs and stack files beside it may still tell what happened"
        )
    return journals


def _print_outcome(journals: Sequence[Journal]) -> int:
    launches = [summarize(events) for journal in journals for events in journal.launches()]
    ended = job_outcome(launches)
    if ended is None:
        print("no end is recorded: the job still runs, or all of its launchers were killed")
        return _NO_END
    print(f"{ended.outcome} (exit code {ended.exit_code}): {ended.reason}")
    return ended.exit_code


def _print(run_dir: Path, journals: Sequence[Journal], options: argparse.Namespace) -> None:
    report = Report(
        run_dir=os.fsencode(run_dir).decode("utf-8", "backslashreplace"),
        unreadable_lines=sum(journal.unreadable for journal in journals),
        unknown_events=sum(journal.unknown for journal in journals),
        launches=[
            summarize(events, running=_runs(events))
            for journal in journals
            for events in journal.launches()
        ],
    )
    if options.json:
        text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
        print(text)
        return
    _show(_damage(journals) + _body(report, options.round))


def _runs(events: Sequence[Event]) -> bool | None:
    opened = first(events, JournalOpened)
    return None if opened is None else is_running(opened)


def _body(report: Report, number: int | None) -> list[Line]:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines: list[Line] = []
    for launch in report.launches:
        if number is None:
            part = render_run(launch, width=width)
        else:
            part = render_round(launch, number, width=width)
        if lines and part:
            lines.append([])
        lines.extend(part)
    if number is not None and not lines:
        known = sorted({one.round for launch in report.launches for one in launch.rounds})
        span = f"rounds {known[0]} to {known[-1]}" if known else "no round"
        raise _ReportError(f"there is no round {number}; the journal has {span}")
    return lines


def _damage(journals: Sequence[Journal]) -> list[Line]:
    lines: list[Line] = []
    for journal in journals:
        if journal.unreadable:
            first = journal.problems[0]
            count = "1 line" if journal.unreadable == 1 else f"{journal.unreadable} lines"
            text = f"{count} could not be read, first line {first.line}: {first.reason}"
            lines.append([(f"{journal.path}: ", "yellow"), (text, "")])
        if journal.unknown:
            text = f"{journal.unknown} events are of a newer version of undaunted and were skipped"
            lines.append([(f"{journal.path}: ", "yellow"), (text, "")])
    return lines


def _show(lines: Sequence[Line]) -> None:
    if not sys.stdout.isatty():
        sys.stdout.write(plain(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for line in lines:
        # The terminal breaks what is too long; rich would break it inside of paths.
        console.print(Text.assemble(*line), soft_wrap=True)
