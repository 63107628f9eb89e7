"""Where the files about the rounds of a job are, and what they are called."""

from __future__ import annotations

from pathlib import Path

import msgspec

from undaunted.base.ids import file_name

VARIABLE = "NVRX_CURRENT_CYCLE_INFO"


class CycleInfoPlace(msgspec.Struct, kw_only=True, frozen=True):
    """Where the files are and what they are named after.

    Attributes:
        directory: absolute path.
        job_id: of the job, the same on all its nodes.
        attempt: how often the scheduler has started the job again.
        log_prefix: of the logs per round, "" = there are none.
    """

    directory: str
    job_id: str
    attempt: int = 0
    log_prefix: str = ""

    @property
    def current(self) -> str:
        """Path of the link to the file about the newest round."""
        return self._path("current")

    def path(self, number: int) -> str:
        """Path of the file about a round."""
        return self._path(f"{self.attempt}.{number}")

    def _path(self, what: str) -> str:
        return str(Path(self.directory, f"cycle_info.{file_name(self.job_id)}.{what}"))
