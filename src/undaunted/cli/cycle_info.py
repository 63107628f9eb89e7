"""Where files about the rounds go, and what they are named after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.cli.ft_options import option_name
from undaunted.cli.parse import Parsed, UsageError
from undaunted.fault_tolerance.cycle_info_place import CycleInfoPlace

if TYPE_CHECKING:
    from collections.abc import Mapping

_DIRECTORY = option_name("cycle_info_dir")
_JOB_ID = "ft-cycle-info-job-id"
_ATTEMPT = "SLURM_RESTART_COUNT"


def cycle_info(
    parsed: Parsed, environ: Mapping[str, str], cwd: str, run_id: str, log_prefix: str
) -> CycleInfoPlace | None:
    """Return the place of the files, None = they are not asked for.

    Args:
        parsed: the command line.
        environ: of the launcher.
        cwd: what a relative directory is relative to.
        run_id: name of the run.
        log_prefix: of the logs per round, "" = there are none.

    Raises:
        UsageError: a name is given for files that are not asked for.
    """
    directory: str = parsed.values[_DIRECTORY] or ""
    job_id: str = parsed.values[_JOB_ID]
    if not directory:
        if job_id:
            raise UsageError(f"{parsed.sources[_JOB_ID]} {job_id} needs --{_DIRECTORY}; add it")
        return None
    scheduled = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    attempt = environ.get(_ATTEMPT, "")
    return CycleInfoPlace(
        directory=str(Path(cwd, directory)),
        job_id=job_id or scheduled or run_id,
        attempt=int(attempt) if attempt.isascii() and attempt.isdigit() else 0,
        log_prefix=log_prefix,
    )
