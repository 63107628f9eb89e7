"""Distributed file systems: Lustre says itself whether it is healthy; every mount must answer."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from undaunted.health.check import (
    Check,
    Finding,
    Settings,
    close_quietly,
    is_gone,
    read_text,
    reason,
    skipped,
)

_KINDS = frozenset({"lustre", "nfs", "nfs4"})
_HEALTH_FILES = ("sys/fs/lustre/health_check", "proc/fs/lustre/health_check")
_ESCAPE = re.compile(r"\\([0-7]{3})")
_MOST_BYTES = 4 * 1024 * 1024
MOST_MOUNTS = 64  # each check has a thread
# These are answers: the mount is alive, but not for this user.
_ALIVE = (PermissionError,)


class Mount(NamedTuple):
    """A mounted file system."""

    point: str
    kind: str
    device: str


class LustreHealth(Check):
    """The state of the Lustre client, as it says."""

    name = "Lustre health"

    def __init__(self, root: str) -> None:
        """Look below ``root``."""
        self._root = root

    def run(self, seen: dict[str, Any]) -> Finding | None:  # noqa: ARG002 - nothing to keep
        """See `Check`."""
        for file in _HEALTH_FILES:
            try:
                text = read_text(Path(self._root, file))
            except OSError as error:
                if is_gone(error):
                    continue
                return skipped(f"/{file}: {reason(error)}")
            return None if text == "healthy" else Finding(f"/{file} says {text[:80]!r}")
        return None


class MountAnswers(Check):
    """One mount."""

    def __init__(self, mount: Mount) -> None:
        """Check ``mount``."""
        self.name = f"{mount.kind} mount"
        self.subject = mount.point

    def run(self, seen: dict[str, Any]) -> Finding | None:  # noqa: ARG002 - nothing to keep
        """See `Check`."""
        try:
            os.statvfs(self.subject)  # asks the server, whatever is cached
            fd = os.open(self.subject, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            close_quietly(fd)
        except _ALIVE:
            return None
        except OSError as error:
            return Finding(reason(error))
        return None


class NoMounts(Check):
    """Says why nothing, or not everything, is checked."""

    name = "distributed storage"

    def __init__(self, why: str) -> None:
        """Say ``why``."""
        self._why = why

    def run(self, seen: dict[str, Any]) -> Finding | None:  # noqa: ARG002 - nothing to keep
        """See `Check`."""
        return skipped(self._why)


def parse_mountinfo(text: str) -> list[Mount]:
    """Return the distributed file systems in ``/proc/self/mountinfo``, each once.

    Lines that are not understood are left out.
    """
    found: dict[str, Mount] = {}
    for line in text.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, after = head.split(" "), tail.split(" ")
        if not separator or len(fields) < 6 or after[0] not in _KINDS:  # see proc(5)
            continue
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8) & 0xFF), fields[4])
        found.setdefault(fields[2], Mount(point, after[0], fields[2]))
    return list(found.values())


def checks(settings: Settings) -> list[Check]:
    """Return a check per mount, if they are to be checked."""
    if not settings.mounts:
        return []
    path = Path(settings.root, "proc/self/mountinfo")
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            mounts = parse_mountinfo(file.read(_MOST_BYTES))
    except OSError as error:
        return [NoMounts(f"{path}: {reason(error)}")]
    found: list[Check] = [LustreHealth(settings.root)]
    found += [MountAnswers(mount) for mount in mounts[:MOST_MOUNTS]]
    if not mounts:
        found.append(NoMounts("no Lustre or NFS is mounted here"))
    if len(mounts) > MOST_MOUNTS:
        found.append(NoMounts(f"only {MOST_MOUNTS} of {len(mounts)} mounts are checked"))
    return found
