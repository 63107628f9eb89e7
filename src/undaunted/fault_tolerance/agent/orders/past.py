"""How the job ended that was in the run directory before."""

from __future__ import annotations

from pathlib import Path

from undaunted.base.deadline import within
from undaunted.journal.outcome import JobOutcome, job_outcome
from undaunted.journal.reader import find_journals, read_journal
from undaunted.journal.restarts import summarize

_DEADLINE_S = 2.0


def last_end(run_dir: str) -> str:
    """Return a line about the last end that is recorded there, "" = there is none. Reads files."""
    nothing: JobOutcome | None = None
    found = within(_DEADLINE_S, lambda: _outcome(run_dir), nothing)
    if found is None:
        return ""
    return (
        f"the last job in {run_dir} has ended, {found.outcome} with exit code {found.exit_code}: "
        f"{found.reason}. Launchers wait for a new one; end them if there is none"
    )


def _outcome(run_dir: str) -> JobOutcome | None:
    journals = map(read_journal, find_journals(Path(run_dir)))
    launches = (summarize(events) for journal in journals for events in journal.launches())
    return job_outcome(launch for launch in launches if launch.exit_code is not None)
