"""How the last job in a run directory has ended, as its journals say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.deadline import within
from undaunted.journal.job.launches import attempts_of, launches_of, newest_job
from undaunted.journal.job.summary import job_outcome, summarize
from undaunted.journal.owner import is_running
from undaunted.journal.reader import find_journals, read_journal

if TYPE_CHECKING:
    from undaunted.journal.job.values import LaunchSummary
    from undaunted.journal.launch import LaunchState

_LAST_END_S = 2.0


def last_end(run_dir: str) -> str:
    """Return a line about the last end that is recorded there, "" = there is none. Reads files."""
    nothing: LaunchSummary | None = None
    found = within(_LAST_END_S, lambda: _last_outcome(run_dir), nothing)
    if found is None:
        return ""
    return (
        f"the last job in {run_dir} has ended, {found.outcome} with exit code {found.exit_code}: "
        f"{found.reason}. Launchers wait for a new one; end them if there is none"
    )


def _last_outcome(run_dir: str) -> LaunchSummary | None:
    journals = [read_journal(path) for path in find_journals(Path(run_dir))]
    told = [one for one in launches_of(newest_job(journals)[0]) if _tells_of_job(one.state)]
    attempts, _ = attempts_of([replace(one, index=index) for index, one in enumerate(told)])
    last = attempts[-1].launches if attempts else []
    return job_outcome(summarize(one.state, running=_may_run(one.state)) for one in last)


def _may_run(state: LaunchState) -> bool:
    """Whether a launcher that has not said how it ended may be at work, perhaps elsewhere."""
    return state.opened is None or is_running(state.opened) is not False


def _tells_of_job(state: LaunchState) -> bool:
    """Whether this launcher was in a round, or its job has ended before there was one.

    Who is refused knows nothing of the job.
    """
    return bool(state.rounds) or (state.ended is not None and not state.ended.alone)
