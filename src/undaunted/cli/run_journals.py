"""The run that a command is about, and its journals."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from undaunted.base.text import count, one_line
from undaunted.journal.events import EventsLost
from undaunted.journal.job.launches import newest_job
from undaunted.journal.query import every
from undaunted.journal.reader import DEFAULT_RUNS, Journal, find_journals, newest_run, read_journal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from undaunted.base.console import Line


_MOST_FILES = 4096
_NAMED = 3  # runs
_RUNS_BELOW = ("*/journal-*.jsonl", "*/*/journal-*.jsonl")


class NoRunError(Exception):
    """There is nothing to read; the message says why and what to do."""


def find_run(named: Path | None) -> Path:
    """Return the run a user has named, or the newest one here.

    Raises:
        NoRunError: none was named, and there is none.
    """
    run_dir = newest_run() if named is None else named
    if run_dir is None:
        raise NoRunError(f"no run under ./{DEFAULT_RUNS}; name the directory of a run (RUN_DIR)")
    return run_dir


def read_run(run_dir: Path) -> tuple[list[Journal], list[str]]:
    """Return the journals of a run, at least one event in them, and the names of other runs.

    Journals of other jobs in the directory are left out: the newest job counts.

    Args:
        run_dir: its directory, or one journal.

    Raises:
        NoRunError: there is nothing that can be read.
    """
    try:
        paths = [run_dir] if run_dir.is_file() else find_journals(run_dir)
        journals = [read_journal(path) for path in paths]
    except FileNotFoundError:
        raise NoRunError(
            f"{run_dir} does not exist; `undaunted run` prints the directory when a run starts"
        ) from None
    except OSError as error:
        raise NoRunError(
            f"{run_dir} cannot be read: {error.strerror}; name a directory you may read"
        ) from None
    if not journals:
        raise NoRunError(no_journal(run_dir))
    if not any(journal.events for journal in journals):
        if run_dir.is_file() and not is_journal(run_dir):
            raise NoRunError(f"{run_dir} is no journal; {_which_run()}")
        raise NoRunError(
            f"the journal in {run_dir} holds no event that can be read: it is empty, as after a "
            "full disk, or damaged; what the launcher has printed, logs and stack files may still "
            "tell what happened"
        )
    return newest_job(journals)


def is_journal(path: Path) -> bool:
    """Tell whether a file is named as a journal."""
    return path.match("journal-*.jsonl")


def no_journal(run_dir: Path) -> str:
    """Say that there is no journal in a directory, and which runs are near."""
    what = f"{run_dir} holds no journal (journal-NODE.jsonl)"
    if runs := runs_below(run_dir):
        named = ", ".join(map(str, runs[:_NAMED]))
        more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
        return f"{what}; name the directory of a run, not the one above it: {named}{more}"
    return f"{what}; {_which_run()}"


def _which_run() -> str:
    newest = newest_run()
    which = "as `undaunted run` prints it" if newest is None else f"the newest here is {newest}"
    return f"name the directory of a run, {which} (`undaunted explain` reads any logs)"


def runs_below(path: Path) -> list[Path]:
    """Return the run directories in a folder, and in folders of it."""
    found = (file for pattern in _RUNS_BELOW for file in path.glob(pattern) if file.is_file())
    return sorted({file.parent for file in islice(found, _MOST_FILES)})


def damage(journals: Sequence[Journal]) -> list[Line]:
    """Return what the journals lack: lines that cannot be read, events that were not written."""
    lines: list[Line] = []
    for journal in journals:
        if journal.unreadable:
            first = journal.problems[0]
            skipped = count(journal.unreadable, "line")
            text = f"{skipped} could not be read, first line {first.line}: {first.reason}"
            lines.append([(f"{journal.path}: ", "yellow"), (text, "")])
        lost = every(journal.events, EventsLost)
        if lost:
            missing = count(sum(event.count for event in lost), "event")
            text = (
                f"{missing} could not be written ({one_line(lost[-1].reason)}): what follows may "
            )
            text += "miss rounds, restarts and their causes"
            lines.append([(f"{journal.path}: ", "yellow"), (text, "")])
        if journal.unknown:
            text = f"skipped: {count(journal.unknown, 'event')} of a newer version of undaunted"
            lines.append([(f"{journal.path}: ", "yellow"), (text, "")])
    return lines
