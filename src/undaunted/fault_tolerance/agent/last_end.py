"""How the last job in a run directory has ended, as its journals say."""

from __future__ import annotations

from pathlib import Path

from undaunted.base.deadline import within
from undaunted.journal.launch import LaunchState
from undaunted.journal.reader import find_journals, read_journal
from undaunted.journal.summary import JobOutcome, job_outcome, summarize

_LAST_END_S = 2.0


def last_end(run_dir: str) -> str:
    """Return a line about the last end that is recorded there, "" = there is none. Reads files."""
    nothing: JobOutcome | None = None
    found = within(_LAST_END_S, lambda: _last_outcome(run_dir), nothing)
    if found is None:
        return ""
    return (
        f"the last job in {run_dir} has ended, {found.outcome} with exit code {found.exit_code}: "
        f"{found.reason}. Launchers wait for a new one; end them if there is none"
    )


def _last_outcome(run_dir: str) -> JobOutcome | None:
    journals = map(read_journal, find_journals(Path(run_dir)))
    states = (LaunchState.of(events) for journal in journals for events in journal.launches())
    return job_outcome(summarize(state) for state in states if _tells_of_job(state))


def _tells_of_job(state: LaunchState) -> bool:
    """Whether this launcher was in a round, or its job has ended before there was one.

    Who is refused knows nothing of the job.
    """
    return bool(state.rounds) or (state.ended is not None and not state.ended.alone)
