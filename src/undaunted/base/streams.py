"""Standard streams: ones that are closed, and copies of what is said on standard error."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed_streams() -> None:
    """Let closed standard streams lead to ``/dev/null``, as ``>&-`` and some services close them.

    What is opened next would otherwise get their numbers, and be written to by every child.
    """
    for fd, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:  # the interpreter found it open
            continue
        null = os.open(os.devnull, os.O_RDWR)
        if null != fd:
            os.dup2(null, fd)
            os.close(null)
        os.set_inheritable(fd, True)
        setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def take_any_text(*, for_programs: bool = False) -> None:
    """Let standard output take any text: what its encoding lacks is written as escapes.

    Args:
        for_programs: it is JSON or the like, which is UTF-8 whatever the locale says.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding = "utf-8" if for_programs else None
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")


def discard_stdout() -> None:
    """Let standard output lead to ``/dev/null``: its reader (a pager) has had enough.

    Otherwise what is still to be flushed at the exit of the interpreter would fail once more.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def copy_stderr(path: str) -> None:
    """Write what this process prints on ``sys.stderr`` into a new file as well, mode 0600.

    Raises:
        OSError: the file cannot be made.
    """
    open_closed_streams()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    copy = open(fd, "w", encoding="utf-8", errors="backslashreplace")  # noqa: PTH123, SIM115
    sys.stderr = _Copied(sys.stderr, copy)


class _Copied(io.TextIOBase):
    """Writes to a stream, and to a file: that one as far as possible."""

    def __init__(self, stream: TextIO, copy: TextIO) -> None:
        self._stream = stream
        self._copy = copy

    def write(self, text: str) -> int:
        try:
            self._copy.write(text)
            self._copy.flush()
        except (OSError, ValueError):
            pass  # a full disk, or a file that is closed at the end of the interpreter
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()
