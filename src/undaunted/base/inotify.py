"""Wake-ups when a file grows: a small binding of Linux inotify.

It only answers "something changed", which is all a reader needs that looks at every file anyway;
so a queue that overflowed means nothing special.
"""

from __future__ import annotations

import ctypes
import os

# A file was written to; in a directory, also: a file was made, or moved there.
_IN_GROWTH = 0x2 | 0x100 | 0x80
_DRAIN_BYTES = 65536


class Inotify:
    """Watches files for growth. Owned by one thread, which closes it."""

    def __init__(self) -> None:
        """Open an instance.

        Raises:
            OSError: the system has none, or the user's limit of instances is reached.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        self._add_watch = libc.inotify_add_watch
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _last_error("inotify_init1")

    def watch(self, path: str) -> None:
        """Report growth of ``path``, a file or a directory with its files, from now on.

        Raises:
            OSError: the file is missing or the user's limit of watches is reached.
        """
        if self._add_watch(self._fd, os.fsencode(path), _IN_GROWTH) < 0:
            raise _last_error(path)

    def fileno(self) -> int:
        """Descriptor that becomes readable when a watched file grew."""
        return self._fd

    def drain(self) -> None:
        """Forget every change reported so far. Never blocks."""
        try:
            while len(os.read(self._fd, _DRAIN_BYTES)) > _DRAIN_BYTES // 2:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Release the descriptor; calling it again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _last_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)
