"""The writer as a child process: its start, its end, and what its end means."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

import undaunted
from undaunted.base import process

_PROGRAM = "undaunted.checkpointing.writer.program"

# Children that were killed and could not be waited for yet, as a hung file system held them.
_left: list[int] = []
_left_lock = threading.Lock()


def start(fd: int) -> Child:
    """Start the program and return at once.

    It is executed, never forked: nothing of the trainer's memory is copied or kept alive.

    Args:
        fd: its end of the socket, 3 or more; it stays the caller's.

    Raises:
        OSError: it cannot be started.
    """
    _reap_left()
    parent = os.getpid()
    words = ["--fd", str(fd), "--parent", str(parent)]
    if threading.current_thread() is threading.main_thread():
        words.append("--thread-stays")
    argv = process.module_command(_PROGRAM, *words, flags=["-S"])
    pid = process.spawn(argv, _environment(), [fd])
    try:
        pidfd = process.open_pidfd(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        _leave(pid)
        raise
    return Child(pid, pidfd if pidfd is not None else -1)


def _environment() -> dict[str, str]:
    """Return an environment in which the program finds the modules that this process finds.

    They are handed over, as looking for them (``site``) would take longer than the rest.
    """
    # The last two are there already, unless something other than the path finds these packages.
    ours = [str(Path(str(m.__file__)).parents[1]) for m in (undaunted, msgspec)]
    path = os.pathsep.join([*filter(None, map(str, sys.path)), *ours])
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    environ.pop("PYTHONINSPECT", None)
    return environ


class Child:
    """A started program.

    Attributes:
        pid: of it.
        pidfd: readable when it has ended; -1 after :meth:`release`.
    """

    def __init__(self, pid: int, pidfd: int) -> None:
        """See :func:`start`."""
        self.pid = pid
        self.pidfd = pidfd
        self._status: int | None = None

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Wait until it has ended; return False after ``timeout_s``."""
        return self.pidfd < 0 or process.wait_pidfd(self.pidfd, timeout_s)

    def kill(self) -> None:
        """Send SIGKILL; a process that waits for a disk ends when the disk answers."""
        with contextlib.suppress(OSError):
            if self.pidfd >= 0:
                process.signal_pidfd(self.pidfd, signal.SIGKILL)

    def doing(self) -> str:
        """Return what it is doing, as far as a letter of /proc tells."""
        match process.state(self.pid):
            case "T" | "t":
                return "it is stopped (SIGSTOP): find out by whom"
            case "D":
                return "it waits for a disk: see whether the file system hangs"
            case _:
                return "see whether the file system hangs"

    def how_it_ended(self) -> str:
        """Say how; only after it has."""
        self._reap()
        status = self._status
        if status is None:
            return "has ended"
        if os.WIFSIGNALED(status):
            name = _signal_name(os.WTERMSIG(status))
            if os.WTERMSIG(status) == signal.SIGKILL:
                return f"was killed ({name}); see dmesg whether the node ran out of memory"
            return f"was ended by {name}"
        code = os.waitstatus_to_exitcode(status)
        return f"has ended with exit code {code}; its standard error may say why"

    def release(self) -> None:
        """Close the descriptor and forget the process, whether it has ended or not."""
        if self.pidfd >= 0:
            if not self._reap():
                _leave(self.pid)
            os.close(self.pidfd)
            self.pidfd = -1

    def forget(self) -> None:
        """In a child that the trainer has forked: it is not ours."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def _reap(self) -> bool:
        """Return whether it has ended and been waited for, here or by somebody else."""
        if self._status is not None:
            return True
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid:
            self._status = status
        return bool(pid)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _leave(pid: int) -> None:
    with _left_lock:
        _left.append(pid)


def _reap_left() -> None:
    with _left_lock:
        _left[:] = [pid for pid in _left if not _is_reaped(pid)]


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
