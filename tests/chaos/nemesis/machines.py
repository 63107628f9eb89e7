"""Files in which Linux tells of control groups and disks, built for tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MOUNT = "30 23 0:26 {inside} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNT_1 = "38 31 0:35 {inside} /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio\n"


def machine(
    root: Path,
    *,
    own: str = "/user.slice/session",
    inside: str = "/",
    has: str = "cpu io memory pids",
    **enabled: str,
) -> Path:
    """Build the files of a machine; ``enabled`` is by group, ``top`` and names with _ for /."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(
        "23 1 254:0 / / rw - ext4 /dev/vda rw\n" + MOUNT.format(inside=inside)
    )
    (root / "proc/self/cgroup").write_text(f"4:memory:/x\n0::{own}\n")
    top = root / "sys/fs/cgroup"
    (top / own.strip("/")).mkdir(parents=True)
    (top / "cgroup.controllers").write_text(f"{has}\n")
    for name, text in enabled.items():
        group = top if name == "top" else top / name.replace("_", "/")
        group.mkdir(parents=True, exist_ok=True)
        (group / "cgroup.subtree_control").write_text(f"{text}\n")
    return top


def machine_of_version_1(root: Path, *, own: str = "/job", inside: str = "/") -> Path:
    """Build the files of a machine whose disks belong to version 1; return where they are."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(
        MOUNT_1.format(inside=inside) + MOUNT.format(inside="/")
    )
    (root / "proc/self/cgroup").write_text(f"7:cpu,blkio:{own}\n4:memory:/x\n0::/\n")
    top = root / "sys/fs/cgroup/blkio"
    (top / own.removeprefix(inside).strip("/")).mkdir(parents=True)
    return top


def disk(root: Path, place: Path, *, partition: bool) -> None:
    """Build what sysfs says of the disk below a directory: 259:0, or its partition."""
    device = root / "sys/devices/pci/nvme0n1"
    own = device / "nvme0n1p2" if partition else device
    own.mkdir(parents=True)
    (device / "dev").write_text("259:0\n")
    if partition:
        (own / "dev").write_text("259:2\n")
        (own / "partition").write_text("2\n")
    number = place.stat().st_dev
    block = root / "sys/dev/block" / f"{os.major(number)}:{os.minor(number)}"
    block.parent.mkdir(parents=True)
    block.symlink_to(own)
