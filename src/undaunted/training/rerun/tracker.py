"""The file of odd results, a line each, and which iterations it says to leave out."""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.deadline import in_time
from undaunted.training.rerun.table import RerunValidationStatus

if TYPE_CHECKING:
    from undaunted.training.rerun.slot import Slot

_DISK_S = 10.0
_LOG = logging.getLogger("undaunted")
_LINE = re.compile(
    r"ts=.+ node=.+ device=.+ jobID=(?P<job>.+) rank=(?P<rank>\d+) iteration=(?P<iteration>\d+) "
    r"status=(?P<status>\S+) result=.+ message='.*'"
)
# An error that did not come again says nothing of the iteration.
_COUNT = {
    RerunValidationStatus.RERUN_DISABLED.value,
    RerunValidationStatus.FIRST_RERUN_REPRODUCIBLE.value,
    RerunValidationStatus.SECOND_RERUN_REPRODUCIBLE.value,
}


class Tracker:
    """Appends to the file.

    Args:
        path: None = there is none.

    Raises:
        RuntimeError: nothing can be appended to it.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else Path(path)
        if self._path is not None:
            try:
                self._append("")
            except OSError as error:
                raise RuntimeError(
                    f"odd results cannot be noted in {self._path}: {error.strerror}; give another "
                    "file (Rerun(tracker=...), or result_rejected_tracker_filename), or None"
                ) from error

    def add(
        self,
        slot: Slot,
        rank: int,
        iteration: int,
        status: RerunValidationStatus,
        result: object,
        message: str,
    ) -> None:
        """Add a line. An error is logged once."""
        if self._path is None:
            return
        line = (
            f"ts={datetime.now()} node={slot.node} device={slot.device} "
            f"jobID={os.environ.get('SLURM_JOBID', 'N/A')} rank={rank} iteration={iteration} "
            f"status={status.value} result={result} message='{message}'"
        )
        try:
            self._append(" ".join(line.splitlines()) + "\n")
        except OSError as error:
            _LOG.warning("odd results are noted in %s no more: %s", self._path, error.strerror)
            self._path = None

    def _append(self, text: str) -> None:
        path = self._path

        def append() -> None:
            if path is not None:
                with path.open("a") as file:
                    file.write(text)

        in_time(_DISK_S, append)


def get_skipped_iterations_from_tracker_file(tracker_file_name: str) -> list[int]:
    """Return the iterations that a file of odd results says to leave out, in order.

    It is one that was found odd twice or more by the same rank, and not by several ranks in the
    same job, which then is not a matter of its data. Lines that are none are passed over.

    Args:
        tracker_file_name: may not be there.
    """
    times: defaultdict[tuple[int, int], int] = defaultdict(int)
    ranks: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    try:
        lines = in_time(_DISK_S, lambda: _lines(Path(tracker_file_name)))
    except OSError as error:
        _LOG.warning("no iterations are left out: %s: %s", tracker_file_name, error.strerror)
        return []
    for line in lines:
        found = _LINE.match(line)
        if found is None or found["status"] not in _COUNT:
            continue
        rank, iteration = int(found["rank"]), int(found["iteration"])
        times[rank, iteration] += 1
        ranks[found["job"], iteration].add(rank)
    of_many = {iteration for (_, iteration), some in ranks.items() if len(some) > 1}
    return sorted({one for (_, one), count in times.items() if count >= 2} - of_many)


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8", errors="replace").splitlines()
