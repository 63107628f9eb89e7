"""`undaunted explain`: what happened, who it was, why, and what to do next, on one page."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from undaunted.attribution.explain.files import NoFilesError, page_of_folder, page_of_run
from undaunted.attribution.explain.page import Page, as_json, lines_of, was_asked_for
from undaunted.base.console import Line, columns, plain, show
from undaunted.base.options import Opt
from undaunted.base.streams import take_any_text
from undaunted.base.text import MOST_COLUMNS, folded
from undaunted.base.values import Flag
from undaunted.cli.command import Command, Parsed
from undaunted.cli.messages import UsageError, printing
from undaunted.cli.run_journals import (
    NoRunError,
    damage,
    find_run,
    is_journal,
    no_journal,
    read_run,
    runs_below,
)
from undaunted.journal.job.launches import Launch, launches_of
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.job.values import JobSummary
from undaunted.journal.reader import DEFAULT_RUNS, Journal, find_journals
from undaunted.services.slurm.steps import is_running

_STYLES = {"advice": "bold", "not known": "dim", "slow rank": "yellow"}


class ExplainOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted explain`."""

    json: Annotated[Flag, Opt("Print everything as JSON", "Options")] = False
    all: Annotated[Flag, Opt("Show every failure, also those that are like others")] = False


EXPLAIN = Command(
    "explain",
    ExplainOptions,
    "[OPTIONS] [RUN_DIR]",
    f"""\
Says on one page what happened in a run, which rank or node it was, and why. It
quotes logs with their places, says what undaunted did and what it would advise,
and where to look next.

RUN_DIR is the directory of a run; without it, the newest run under
./{DEFAULT_RUNS}. It may be any file or folder of logs and of dumps of torch's
Flight Recorder, too: a job need not have run under undaunted.
""",
    operand="RUN_DIR",
)


def main(argv: Sequence[str]) -> int:
    """Print what happened.

    Args:
        argv: arguments after ``undaunted explain``.

    Returns:
        0, whatever was found, or 2 if there is nothing to read.
    """
    return EXPLAIN.run(argv, _print)


def _print(parsed: Parsed[ExplainOptions]) -> int:
    take_any_text(for_programs=parsed.options.json)
    try:
        path = find_run(Path(parsed.target) if parsed.target else None)
        page = _page(path)
    except (NoRunError, NoFilesError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    with printing():
        if parsed.options.json:
            text = json.dumps(as_json(page), indent=2, ensure_ascii=False)
            print(text.encode(errors="replace").decode())  # names of files need not be UTF-8
        else:
            show(_styled(page, lines_of(page, everything=parsed.options.all), columns()))
    return 0


def _styled(page: Page, lines: Iterable[str], width: int | None) -> Iterator[Line]:
    """Yield lines as a terminal shows them: folded as those of a launcher, and with styles."""
    styles = {**_STYLES, "conclusion": _style(page)}
    for text in lines:
        style = styles.get(text.strip().partition(":")[0], "")
        if text.startswith(("    ", "  look at ")):
            style = "dim"
        elif text.startswith(("round ", "launch ")):
            style = "bold"
        for part in [text] if width is None else folded(text, min(width, MOST_COLUMNS)):
            yield [(part, style)]


def _style(page: Page) -> str:
    """Return the style of the conclusion: red only where a failure has ended the job."""
    if not page.rounds:
        return "green"
    if was_asked_for(page.rounds[-1]):
        return ""
    return "yellow" if page.job is not None and page.job.outcome == "finished" else "red"


def _page(path: Path) -> Page:
    if not _has_journals(path):
        if runs_below(path):
            raise NoRunError(no_journal(path))
        return page_of_folder(path)
    try:
        journals, left_out = read_run(path)
    except NoRunError as error:
        return _beside(path, error)
    launches = launches_of(journals)
    job = summarize_job(launches, left_out=left_out, is_running=is_running)
    return page_of_run(path, job, launches, _problems(journals))


def _beside(path: Path, error: NoRunError) -> Page:
    """Explain a run from its logs, as its journal cannot be read."""
    if not path.is_dir():
        raise error
    try:
        page = page_of_folder(path)
    except NoFilesError:
        raise error from None
    stacks = "".join(f"; stacks of all ranks: {each}" for each in sorted(path.glob("stacks-*.txt")))
    said = f"{error}; this is what the files say{stacks}"
    return replace(page, problems=[said, *page.problems])


def run_in_words(
    path: Path, job: JobSummary, launches: Sequence[Launch], journals: Sequence[Journal]
) -> str:
    """Return what `undaunted explain` prints about a run.

    Args:
        path: directory of the run, or one journal.
        job: its summary.
        launches: of the job.
        journals: where the launches are from.

    Raises:
        OSError: a file of the run cannot be read.
    """
    page = page_of_run(path, job, launches, _problems(journals))
    return "\n".join(lines_of(page))


def _has_journals(path: Path) -> bool:
    if path.is_dir():
        return bool(find_journals(path))
    return is_journal(path)


def _problems(journals: Sequence[Journal]) -> list[str]:
    return plain(damage(journals)).splitlines()
