"""Ends this process in the middle of its next large write, as a crash of the machine would.

The kernel does it: a process that writes beyond its limit of file size (RLIMIT_FSIZE) gets SIGXFSZ,
whatever library writes. The write stops at the limit, so that the file is there, in part. Python
ignores that signal, so its default action is put back.

The limit holds for every file, also for logs. It is therefore set so many bytes beyond the longest
log: what the process has open only for writing, and what its standard output and error are. Files
of memory shared by processes are open for reading as well, and do not count.

Programs that the process has started and that write for it get a limit as well. What they have open
for writing may be the checkpoint before, half done: only what they append to is a log. Signals
cannot be set from outside: where they ignore SIGXFSZ, as Python does, the write fails with EFBIG
and the save with an error. Forked children that run no other program, such as those that
load data, are spared: the limit would hit the memory in which they hand over their batches.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import stat
from pathlib import Path

from undaunted.base import process

BYTES = 1 << 16

_STREAMS = (1, 2)


def arm(size: int = BYTES) -> None:
    """Set the limits, for good.

    Args:
        size: bytes of a file that can still be written; of a longer one the rest is missing.
    """
    # signal.signal() is for the main thread only; a program may train in another one.
    ctypes.CDLL(None).signal(int(signal.SIGXFSZ), None)
    for pid in (os.getpid(), *_programs()):
        with contextlib.suppress(OSError):  # it has just ended
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            limit = _longest_log(pid) + size
            if hard != resource.RLIM_INFINITY:
                limit = min(limit, hard)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, hard))


def _programs() -> list[int]:
    """Return the descendants that run another program."""
    own = _command(os.getpid())
    return [pid for pid in process.descendants(os.getpid()) if _command(pid) != own]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _longest_log(pid: int) -> int:
    sizes = [0]
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found = path.stat()
            if stat.S_ISREG(found.st_mode) and _is_log(pid, int(path.name)):
                sizes.append(found.st_size)
    return max(sizes)


def _is_log(pid: int, fd: int) -> bool:
    """Return whether it is one, as far as flags tell: at the worst nothing is torn."""
    if fd in _STREAMS:
        return True
    words = Path(f"/proc/{pid}/fdinfo/{fd}").read_text(encoding="ascii").split()
    flags = int(words[words.index("flags:") + 1], 8)
    only_written = flags & os.O_ACCMODE == os.O_WRONLY
    return only_written and (pid == os.getpid() or bool(flags & os.O_APPEND))
