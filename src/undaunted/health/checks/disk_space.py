"""Room on the disks that the job writes to: with less, checkpoints and logs will fail."""

from __future__ import annotations

import os
from typing import Any

from undaunted.health.check import Check, Finding, Settings, reason

_MIB = 1 << 20


class DiskSpace(Check):
    """The file system of one path."""

    name = "disk space"
    periodic = False

    def __init__(self, path: str, least: int) -> None:
        """Check that ``least`` bytes are free where ``path`` is."""
        self.subject = path
        self._least = least

    def run(self, seen: dict[str, Any]) -> Finding | None:  # noqa: ARG002 - nothing to keep
        """See `Check`."""
        try:
            disk = os.statvfs(self.subject)
        except OSError as error:
            return Finding(reason(error))
        free = disk.f_bavail * disk.f_frsize
        if free >= self._least:
            return None
        return Finding(f"{free // _MIB} MiB are free, {self._least // _MIB} are wanted")


def checks(settings: Settings) -> list[Check]:
    """Return a check per path, if that was asked for."""
    if not settings.disk_bytes:
        return []
    return [DiskSpace(path, settings.disk_bytes) for path in dict.fromkeys(settings.disk_paths)]
