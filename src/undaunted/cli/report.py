"""``undaunted report``: what happened in a run, from its journals."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from undaunted.base import values
from undaunted.base.console import Line, columns, labelled, show
from undaunted.base.garbage import collection_paused
from undaunted.base.options import Kind, Opt
from undaunted.base.streams import take_any_text
from undaunted.base.text import one_line
from undaunted.base.values import Flag, OptionalFile, Text
from undaunted.cli.command import Command, Parsed
from undaunted.cli.messages import UsageError, complain, json_text, printing
from undaunted.cli.run_journals import NoRunError, damage, find_run, read_run
from undaunted.journal.job.launches import Launch, launches_of
from undaunted.journal.job.rank_time import Price, parse_price
from undaunted.journal.job.render import render_job, render_launch, render_round, still_runs, utc
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.job.values import JobSummary, LaunchSummary
from undaunted.journal.reader import DEFAULT_RUNS, Journal
from undaunted.journal.words import outcome_in_words
from undaunted.services.slurm.steps import is_running

_SCHEMA = 2
# Keys of a part in the rounds of the job, and those that are only there.
_OF_JOB = ("node", "launch", "began_ns", "stopped_ns")
_OF_ALL = (*_OF_JOB, "ranks", "times")
_FAILED = 1
_NO_END = 3  # no exit code of `undaunted run`
# By whether a launcher still runs, None = that cannot be known here.
_NO_END_TEXT = {
    True: "the job still runs",
    None: "no end is recorded: the job still runs, or its launchers on other machines were killed",
    False: "no end is recorded, and no launcher runs any more: all of them were killed",
}
_END_LOST = (
    "no end is recorded, and no launcher runs any more: how the job ended is not known, since the "
    "journal lacks events, as after a full disk; see the launcher's last line"
)
_CHECK_MOVED = (
    "--check is part of the simulator now, which runs from a checkout of "
    "undaunted: python -m simulator --check RUN_DIR"
)
# With more launches, only those of the nodes that are asked for are shown in full.
_LAUNCHES = 8


class ReportOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted report`."""

    json: Annotated[Flag, Opt("Print the summary as JSON", "Options")] = False
    html: Annotated[OptionalFile, Opt("Write a page that needs no network")] = None
    trace: Annotated[
        OptionalFile, Opt("Write Chrome trace events, which ui.perfetto.dev opens")
    ] = None
    prometheus: Annotated[Flag, Opt("Print metrics as Prometheus reads them")] = False
    outcome: Annotated[
        Flag, Opt("Say how the job ended, in one line, and end with its exit code")
    ] = False
    round: Annotated[
        int | None,
        Kind(values.whole(), "N"),
        Opt("Show everything about round N, with its traceback"),
    ] = None
    times: Annotated[
        Flag, Opt("Show where the time went, and how long each part of the restarts took")
    ] = False
    all: Annotated[Flag, Opt("Show every round, also those that are like others")] = False
    node: Annotated[Text, Opt("Show the launches of this node", metavar="NAME")] = ""
    price: Annotated[
        Price | None,
        Kind(parse_price, "AMOUNT"),
        Opt(
            "Of one rank for an hour, with a currency if you like ('2.5 EUR'): show what the time "
            "cost"
        ),
    ] = None


REPORT = Command(
    "report",
    ReportOptions,
    "[OPTIONS] [RUN_DIR]",
    f"""\
Says how long a run was down and why, and shows its rounds and what ended each.
Answers: what happened, and what did it cost? (`undaunted explain`: whose fault
was it? `undaunted top`: what happens now?)

RUN_DIR is the directory of the run, or one journal; without it, the newest run
under ./{DEFAULT_RUNS}. --json, --html, --trace, --prometheus, --outcome and
--round exclude one another.
""",
    operand="RUN_DIR",
)


def main(argv: Sequence[str]) -> int:
    """Print the report of a run.

    Args:
        argv: arguments after ``undaunted report``.

    Returns:
        0, or 2 if there is no journal to read, no such round or node. With ``--outcome``: the exit
        code of the job, 1 if all its launchers were killed, 3 if it still runs or nobody knows, as
        where the journal lacks events.
    """
    if "--check" in argv:
        return complain(REPORT.name, _CHECK_MOVED)
    return REPORT.run(argv, _print_report)


def _print_report(parsed: Parsed[ReportOptions]) -> int:
    parsed.refuse_several("json", "html", "trace", "prometheus", "outcome", "round")
    options = parsed.options
    take_any_text(for_programs=options.json or options.prometheus)
    code = 0
    try:
        # The collector would look at a million events again and again, none of them garbage.
        with collection_paused(), printing():
            run_dir = find_run(Path(parsed.target) if parsed.target else None)
            code = _report(run_dir, *read_run(run_dir), options)
    except NoRunError as error:
        raise UsageError(str(error)) from None
    return code


def _report(
    run_dir: Path, journals: Sequence[Journal], left_out: Sequence[str], options: ReportOptions
) -> int:
    launches = launches_of(journals)
    job = summarize_job(launches, price=options.price, left_out=left_out, is_running=is_running)
    if options.outcome:
        return _print_outcome(job, whole=not damage(journals))
    if options.json:
        sys.stdout.write(json_text(_json(run_dir, journals, job)))
    elif options.prometheus:
        return _print_metrics(job, launches)
    elif options.html is not None:
        return _write_page(run_dir, job, launches, journals, options.html)
    elif options.trace is not None:
        return _write_trace(job, launches, options.trace)
    else:
        show(damage(journals) + _body(job, options))
    return 0


def _print_outcome(job: JobSummary, *, whole: bool) -> int:
    if job.exit_code is None:
        runs = still_runs(job)
        unknown = runs is not False or not whole
        print(_END_LOST if runs is False and unknown else _NO_END_TEXT[runs])
        return _NO_END if unknown else _FAILED
    print(f"{outcome_in_words(job.outcome, job.reason)} (exit code {job.exit_code}): {job.reason}")
    return job.exit_code


def _print_metrics(job: JobSummary, launches: Sequence[Launch]) -> int:
    from undaunted.journal.metrics import exposition
    from undaunted.journal.metrics.families import render_prometheus

    if not exposition.is_possible():
        raise UsageError(f"--prometheus {exposition.REMEDY}")
    print(render_prometheus(job, launches), end="")
    return 0


def _write_page(
    run_dir: Path,
    job: JobSummary,
    launches: Sequence[Launch],
    journals: Sequence[Journal],
    file: Path,
) -> int:
    from undaunted.cli.explain import run_in_words
    from undaunted.journal.page.write import write_page

    try:
        explained = run_in_words(run_dir, job, launches, journals)
    except OSError as error:
        explained = f"a file of the run cannot be read: {error}"
    with _writing(file):
        write_page(job, launches, journals, file, explained)
    return 0


def _write_trace(job: JobSummary, launches: Sequence[Launch], file: Path) -> int:
    from undaunted.journal.trace import write_trace

    with _writing(file):
        write_trace(job, launches, file)
    return 0


@contextlib.contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Say that a file was written; a file that cannot be is the user's error."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    if file.is_file():  # not to be seen behind what is in /dev/stdout
        print(f"written: {file}")


def _json(run_dir: Path, journals: Sequence[Journal], job: JobSummary) -> dict[str, Any]:
    """Return what ``--json`` prints; docs/report.md describes it."""
    about = msgspec.to_builtins(job, str_keys=True)
    launches = about.pop("launches")
    del about["lanes"]  # for pages
    for one in about["rounds"]:  # the launches have the rest
        one["parts"] = [{key: part[key] for key in _OF_ALL} for part in one["parts"]]
    for part in (part for launch in launches for part in launch["rounds"]):
        for key in _OF_JOB:
            del part[key]
    return {
        "schema": _SCHEMA,
        "run_dir": os.fsencode(run_dir).decode("utf-8", "backslashreplace"),
        "unreadable_lines": sum(journal.unreadable for journal in journals),
        "unknown_events": sum(journal.unknown for journal in journals),
        "job": about,
        "launches": launches,
    }


def _body(job: JobSummary, options: ReportOptions) -> list[Line]:
    """Return the report of the job, where it is not one launch alone, and of its launches."""
    number, node = options.round, options.node or None
    times, everything = options.times, options.all
    width = columns()
    launches = [run for run in job.launches if node in (None, run.node)]
    if not launches:
        raise NoRunError(f"there is no journal of node {node!r}; nodes: {', '.join(job.nodes)}")
    parts: list[list[Line]] = []
    if number is not None:
        found = [(launch, render_round(launch, number, width=width)) for launch in launches]
        parts = [
            [_whose(launch), *lines] if len(launches) > 1 else lines
            for launch, lines in found
            if lines
        ]
        if not parts:
            raise NoRunError(_no_round(number, launches))
    else:
        if len(job.launches) > 1 and node is None:
            parts.append(render_job(job, width=width, times=times, everything=everything))
        if len(launches) <= _LAUNCHES or node is not None:
            cost = job.cost if len(job.launches) == 1 else None
            parts += [
                render_launch(launch, width=width, times=times, everything=everything, cost=cost)
                for launch in launches
            ]
        else:
            text = f"{len(launches)} launches on {len(job.nodes)} nodes; one in full: --node NAME"
            parts.append([[(text, "dim")]])
        if len(job.launches) == 1:
            for note in job.notes:  # with more launches they are below the job
                parts[-1].extend(labelled("note: ", one_line(note), width, style="yellow"))
    lines: list[Line] = []
    for part in parts:
        if lines and part:
            lines.append([])
        lines.extend(part)
    return lines


def _whose(run: LaunchSummary) -> Line:
    when = "" if run.started_wall is None else f", started {utc(run.started_wall)}"
    name = f"run {one_line(run.run_id)}" if run.run_id else "run of unknown name"
    return [(name, "bold"), (f" on {one_line(run.node)}{when}", "")]


def _no_round(number: int, launches: Sequence[LaunchSummary]) -> str:
    known = sorted({one.round for launch in launches for one in launch.rounds})
    span = "no round"
    if known:
        span = f"rounds {known[0]} to {known[-1]}" if len(known) > 1 else f"only round {known[0]}"
    return f"there is no round {number}; the journal has {span}"
