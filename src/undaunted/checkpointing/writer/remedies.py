"""What to do about an error of the operating system; pure."""

from __future__ import annotations

import errno
import os

_SPACE = "free space there, keep fewer checkpoints, or save to another place"
_NETWORK = "its server or its mount is gone: mount it again, or save to another place"
_DISK = "the disk or its server fails: see the kernel's log (dmesg), and save to another place"

_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: "free space of this user's or raise the quota",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or save to another file system",
    errno.EROFS: "it is mounted read-only, which the kernel also does after errors: see dmesg",
    errno.EACCES: "let the user of the job write there",
    errno.EPERM: "let the user of the job write there",
    errno.EIO: _DISK,
    errno.ENXIO: _DISK,
    errno.ENODEV: _DISK,
    errno.ESTALE: _NETWORK,
    errno.ENOTCONN: _NETWORK,
    errno.ETIMEDOUT: _NETWORK,
    errno.EHOSTDOWN: _NETWORK,
    errno.EHOSTUNREACH: _NETWORK,
    errno.ENOENT: "somebody has removed the folder: leave what begins with a dot there alone",
    errno.ENOTDIR: "a file is where a folder should be: remove it, or save to another place",
    errno.ELOOP: "a symbolic link is where a file should be: remove it",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENOMEM: "free memory on this node or raise the limit of the job's cgroup",
}


def explain(error: OSError) -> str:
    """Return path, the system's words with the name of the errno, and what to do."""
    number = error.errno or 0
    words = error.strerror or os.strerror(number) if number else str(error)
    name = errno.errorcode.get(number)
    path = error.filename if isinstance(error.filename, str) else ""
    text = f"{path}: {words}" if path else words
    if name:
        text += f" [{name}]"
    remedy = _REMEDIES.get(number)
    return f"{text}; {remedy}" if remedy else text
