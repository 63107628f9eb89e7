"""Namespaces of Linux: making one of mounts or of the network, entering it, setting it up.

Root needs that namespace only. Others make a user namespace first, in which they may do what root
may, where the kernel allows that.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_MS_NOSUID_NODEV = 0x2 | 0x4
_MS_REC_PRIVATE = 0x4000 | 0x40000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_SIOCSIFMTU = 0x8922
_IFF_UP = 0x1
_LOOPBACK = b"lo"
_CAP_VERSION = 0x20080522
_CAP_NET_ADMIN = 12
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2


def make_mount_namespace() -> None:
    """Move this process, which must have one thread, into a new mount namespace.

    Raises:
        OSError: the kernel does not allow it; the message says what.
    """
    _unshare(_CLONE_NEWNS)
    # What is mounted from now on is not seen outside.
    _call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None)


def make_network_namespace(mtu: int) -> None:
    """Move this process, which must have one thread, into a network namespace with a loopback only.

    Args:
        mtu: largest packet of the loopback, bytes.

    Raises:
        OSError: the kernel does not allow it; the message says what.
    """
    _unshare(_CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        fd = any_socket.fileno()
        fcntl.ioctl(fd, _SIOCSIFMTU, struct.pack("16si", _LOOPBACK, mtu))
        request = fcntl.ioctl(fd, _SIOCGIFFLAGS, struct.pack("16sH", _LOOPBACK, 0))
        (flags,) = struct.unpack_from("16xH", request)
        fcntl.ioctl(fd, _SIOCSIFFLAGS, struct.pack("16sH", _LOOPBACK, flags | _IFF_UP))


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


def keep_network_rights() -> None:
    """Let what this process becomes set up the network of its namespace, and nothing else.

    Without that, only root keeps the rights of a namespace when it becomes another program.

    Raises:
        OSError: this process has no such right.
    """
    only = 1 << _CAP_NET_ADMIN
    sets = struct.pack("6I", only, only, only, 0, 0, 0)  # effective, permitted, inheritable
    _call("capset", struct.pack("Ii", _CAP_VERSION, 0), sets)
    no = ctypes.c_ulong(0)
    number, raised = ctypes.c_ulong(_CAP_NET_ADMIN), ctypes.c_ulong(_PR_CAP_AMBIENT_RAISE)
    _call("prctl", _PR_CAP_AMBIENT, raised, number, no, no)


def _unshare(flag: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call("unshare", flag)
    except PermissionError:
        _call("unshare", _CLONE_NEWUSER | flag)
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
