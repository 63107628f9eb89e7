"""Namespaces of Linux: making one of mounts, entering it, mounting in it.

Root needs a mount namespace only. Others make a user namespace first, in which they may mount,
where the kernel allows that.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_NOSUID_NODEV = 0x2 | 0x4
_MS_REC_PRIVATE = 0x4000 | 0x40000


def make_mount_namespace() -> None:
    """Move this process, which must have one thread, into a mount namespace of its own.

    Raises:
        OSError: the kernel does not allow it; the message says what.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call("unshare", _CLONE_NEWNS)
    except PermissionError:
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
    # What is mounted from now on is not seen outside.
    _call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None)


def mount_tmpfs(directory: Path, size_bytes: int) -> None:
    """Mount an empty file system of this size on a directory.

    Raises:
        OSError: the kernel refused.
    """
    options = f"size={size_bytes},mode=0700,uid={os.geteuid()},gid={os.getegid()}"
    _call(
        "mount",
        b"tmpfs",
        os.fsencode(directory),
        b"tmpfs",
        ctypes.c_ulong(_MS_NOSUID_NODEV),
        options.encode(),
    )


def enter(fd: int) -> None:
    """Move this process, which must have one thread, into the namespace behind ``fd``.

    Raises:
        OSError: the kernel refused.
    """
    _call("setns", fd, 0)


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
