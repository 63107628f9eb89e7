"""A file by which others say that this part of a job of Slurm must not be used any more.

The contract is NVRx's: a file per task of an array, or per job, that is not empty excludes it. Who
writes it, and what, is theirs: what is in it is shown, and no more.
"""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import Any

from undaunted.health.check import Check, Finding, Settings, is_gone, read_text, reason, skipped


class Segment(Check):
    """The file of this part. A shared directory that does not answer excludes nobody."""

    name = "segment"
    must_answer = False

    def __init__(self, path: str) -> None:
        """Look at ``path``."""
        self.subject = path

    def run(self, seen: dict[str, Any]) -> Finding | None:  # noqa: ARG002 - nothing to keep
        """See `Check`."""
        path = Path(self.subject)
        try:
            status = path.stat()
        except OSError as error:
            return None if is_gone(error) else skipped(reason(error))
        if not stat.S_ISREG(status.st_mode):
            return skipped("it is no file; outside of a job of Slurm there is none")
        if not status.st_size:
            return None
        text = ""
        with contextlib.suppress(OSError):
            text = " ".join(read_text(path).split())
        return Finding("this part of the job is excluded" + (f": {text}" if text else ""))


def checks(settings: Settings) -> list[Check]:
    """Return the check if there may be such a file."""
    return [Segment(settings.segment_file)] if settings.segment_file else []
