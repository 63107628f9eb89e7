"""Finds the run that was written to last, for commands that are given none."""

from __future__ import annotations

from pathlib import Path

from undaunted.journal.reader import find_journals

DEFAULT_RUNS = Path("undaunted-runs")


def newest_run(runs: Path = DEFAULT_RUNS) -> Path | None:
    """Return the directory below ``runs`` whose journal was written last, None if there is none."""
    newest: tuple[int, Path] | None = None
    for run in _directories(runs):
        for written_ns in _times(run):
            if newest is None or written_ns > newest[0]:
                newest = (written_ns, run)
    return None if newest is None else newest[1]


def _directories(runs: Path) -> list[Path]:
    try:
        return [run for run in runs.iterdir() if run.is_dir() and not run.is_symlink()]
    except OSError:
        return []


def _times(run: Path) -> list[int]:
    try:
        return [journal.stat().st_mtime_ns for journal in find_journals(run)]
    except OSError:
        return []  # of somebody else, or just removed
