"""A limit for what one run may write to the disk of its checkpoints.

The run is in a control group of its own; while the disk is slow, the kernel lets through only so
many bytes and operations per second of what the group writes to that device. Where version 1 of
control groups has the disks, that is what the group itself writes, directly or by fsync, and not
what the kernel writes for it later.
"""

from __future__ import annotations

import os
from pathlib import Path

from undaunted.base.child import Program, run
from undaunted.chaos.nemesis import control_groups, stage
from undaunted.chaos.nemesis.helper import NotPossibleError

# Without memory, the kernel does not know whose the pages are that it writes later.
_CONTROLLERS = ("io", "memory")
_CONTROLLER_1 = "blkio"  # of version 1
_OPERATIONS_PER_S = 50
_TRY_S = 30.0


class SlowDisk:
    """A disk that can be made slow for a run. The owner calls `close`."""

    def __init__(self, place: Path, bytes_per_s: int, root: Path = Path("/")) -> None:
        """Make a control group.

        Args:
            place: a directory on the disk; need not exist yet.
            bytes_per_s: how much is let through while it is slow.
            root: of the file system; another one in tests.

        Raises:
            NotPossibleError: the machine does not allow it.
        """
        device = device_of(place, root)
        parent = control_groups.find_parent_of_version_1(_CONTROLLER_1, root)
        if parent is None:
            parent = control_groups.find_parent(_CONTROLLERS, root)
            self._slow = {"io.max": f"{device} wbps={bytes_per_s} wiops={_OPERATIONS_PER_S}"}
            self._lift = {"io.max": f"{device} wbps=max wiops=max"}
        else:
            bps, iops = (f"blkio.throttle.write_{what}_device" for what in ("bps", "iops"))
            self._slow = {bps: f"{device} {bytes_per_s}", iops: f"{device} {_OPERATIONS_PER_S}"}
            self._lift = {bps: f"{device} 0", iops: f"{device} 0"}
        self._group = control_groups.Group(parent)

    @property
    def group(self) -> Path:
        """Directory of the control group that the run is to join."""
        return self._group.path

    def slow(self) -> str:
        """Make it slow; return in words how.

        Raises:
            NotPossibleError: the kernel refused.
        """
        self._set(self._slow)
        limits = ", ".join(f"{name}: {text}" for name, text in self._slow.items())
        return f"{self._group.path.name}: {limits}"

    def lift(self) -> None:
        """Let everything through again.

        Raises:
            NotPossibleError: the kernel refused.
        """
        self._set(self._lift)

    def close(self) -> None:
        """Remove the control group; nothing of the run is to be left by now."""
        self._group.close()

    def _set(self, limits: dict[str, str]) -> None:
        for name, text in limits.items():
            self._group.write(name, text)


def not_possible(place: Path) -> str:
    """Say why the disk of this directory cannot be made slow for a run, "" if it can."""
    try:
        disk = SlowDisk(place, 1 << 20)
    except NotPossibleError as error:
        return str(error)
    try:
        disk.slow()
        disk.lift()
        return _not_joined(disk.group)
    except NotPossibleError as error:
        return str(error)
    finally:
        disk.close()


def device_of(place: Path, root: Path = Path("/")) -> str:
    """Return the disk below a directory, as ``MAJOR:MINOR``; of a partition the whole disk.

    Args:
        place: need not exist yet.
        root: of the file system; another one in tests.

    Raises:
        NotPossibleError: its file system is on no disk that the kernel knows of.
    """
    existing = next(path for path in (place, *place.absolute().parents) if path.exists())
    number = existing.stat().st_dev
    block = root / "sys/dev/block" / f"{os.major(number)}:{os.minor(number)}"
    disk = block.resolve()
    if (block / "partition").exists():
        disk = disk.parent
    try:
        return (disk / "dev").read_text(encoding="ascii").strip()
    except OSError:
        raise NotPossibleError(
            f"{existing} is on no disk of this machine: there is no {block}, as for file systems "
            "in memory, in a container's layers, or on the network"
        ) from None


def _not_joined(group: Path) -> str:
    words = stage.command(os.getpid(), (), ["/bin/true"], group)
    end = run(Program(words, _TRY_S))
    if end.code is None:
        return f"a process that joins {group} does not end"
    if end.code == 0:
        return ""
    why = end.errors.decode(errors="replace").strip()
    return f"{group / control_groups.PROCESSES}: a process cannot join: {why}"
