"""Writes a file for a trial and removes it; a separate program, since a file system may hang.

    python -I -S disk_program.py DIRECTORY BYTES SECONDS

Prints one line of JSON: ``{"written": ..., "seconds": ..., "direct": ..., "problem": ...}``. The
file has no name while it is written, so that nothing is left, however this ends.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import secrets
import sys
import time

_CHUNK = 4 * 1024 * 1024
_NO_SUCH_FLAG = (errno.EINVAL, errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT)


def open_nameless(directory: str) -> int:
    """Return the descriptor of a new file that has no name (any more).

    Raises:
        OSError: there can be none.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(directory, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in _NO_SUCH_FLAG:
            raise
    path = os.path.join(directory, f".undaunted-doctor-{secrets.token_hex(8)}")  # noqa: PTH118
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.unlink(path)  # noqa: PTH108
    return fd


def try_direct(fd: int) -> bool:
    """Ask for writes around the cache; not every file system has them."""
    import fcntl

    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError:
        return False
    return True


def write(directory: str, most: int, seconds: float) -> dict[str, object]:
    """Write at most so many bytes for at most so many seconds; return how it went."""
    try:
        fd = open_nameless(directory)
    except OSError as error:
        return {"problem": error.strerror or str(error)}
    written = 0
    direct = try_direct(fd)
    try:
        with mmap.mmap(-1, _CHUNK) as chunk:  # at the border of a page, as direct writes want it
            chunk[:] = os.urandom(_CHUNK)  # nothing that a file system could compress
            began = time.monotonic()
            while written < most and time.monotonic() - began < seconds:
                written += os.write(fd, chunk)
            os.fsync(fd)
            took = time.monotonic() - began
    except OSError as error:
        return {"written": written, "problem": error.strerror or str(error)}
    finally:
        os.close(fd)
    return {"written": written, "seconds": took, "direct": direct, "problem": ""}


if __name__ == "__main__":
    print(json.dumps(write(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
