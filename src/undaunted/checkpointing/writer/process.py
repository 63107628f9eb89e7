"""The writer as a command: one process for each save, whose end is its answer.

It is executed, never forked: nothing of the trainer's memory is copied or kept alive. The thread
that has files written waits until the process has ended, and the kernel ends the process with that
thread, also while it is stopped. To kill it is to cancel.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

import undaunted
from undaunted.base import process
from undaunted.checkpointing.errors import SaveError, WriterError
from undaunted.checkpointing.format.manifest import BLOCK_BYTES
from undaunted.checkpointing.writer.job import Job, JobFile, Written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.checkpointing.format.image import Image
    from undaunted.checkpointing.memory.pool import Lease
    from undaunted.checkpointing.writer.job import WriterOptions

_PROGRAM = "undaunted.checkpointing.writer.program"
# What is given up or killed ends within milliseconds, unless it waits for a disk. Seconds.
_DYING_S = 1.0
# What seems to stand still gets so long again: perhaps it was all of the job that was stopped, and
# the trainer runs first. Seconds.
CONFIRM_S = 1.0


class Writer:
    """Has files of one place written. One thread writes; any thread may look on, or end it."""

    def __init__(self, url: str, options: WriterOptions) -> None:
        """Nothing is started yet.

        Args:
            url: the place of all checkpoints: a folder or a URL.
            options: how to write.

        Raises:
            ValueError: an option makes no sense.
            WriterError: this interpreter does not know how it is started.
        """
        options.check()
        try:  # not after hours, at the first save
            process.module_command(_PROGRAM)
        except OSError as error:
            raise _not_started(error) from error
        self._url = url
        self._options = options
        self._owner = os.getpid()
        self._over = ""  # why nothing is written any more
        self._child: Child | None = None
        self._changed = threading.Condition()

    def write(
        self,
        lease: Lease,
        target: str,
        files: Sequence[Image],
        timeout_s: float,
        block_bytes: int = BLOCK_BYTES,
    ) -> Written:
        """Have the files in an arena written and synced, and wait for it.

        Args:
            lease: the arena.
            target: folder, made (0700) when missing, or URL of the attempt.
            files: where in the arena.
            timeout_s: when to give them up: the writer stops between two blocks then.
            block_bytes: for the checksums.

        Raises:
            WriterError: the process died, stopped, was ended, or could not be started.
            SaveError: an error of the operating system, with its errno; ETIMEDOUT after
                ``timeout_s``. Either way the next call may work, unless the writer was ended.
        """
        arena = lease.arena
        if arena is None:
            raise SaveError(f"{target}: the memory of this save was given back")
        job = Job(self._url, self._options, target, list(files), block_bytes)
        with self._changed:
            if self._over:
                raise SaveError("the writer process was ended: the Checkpointer was aborted")
            try:
                child = self._child = Child.start(JobFile.create(job), arena.fd)
            except OSError as error:
                raise _not_started(error) from error
        try:
            return self._wait(child, target, timeout_s)
        finally:
            try:
                child.kill()
                child.ended(_DYING_S)
            finally:  # another exception may come meanwhile
                with self._changed:
                    self._child = None
                    child.release()
                    self._changed.notify_all()

    def bytes_written(self) -> int:
        """Return how much of what is being written is done, for those who watch."""
        with self._changed:
            return 0 if self._child is None else self._child.file.look().bytes

    def close(self, timeout_s: float) -> None:
        """End it for good; what is being written is waited for, at most so long."""
        self._end("was closed", timeout_s)

    def abort(self) -> None:
        """End it at once and for good; what is being written is given up."""
        self._end("was aborted", 0.0)

    def _end(self, how: str, patience_s: float) -> None:
        if os.getpid() != self._owner:
            return  # of a fork the process is no child
        with self._changed:
            self._over = self._over or how
            if not self._changed.wait_for(lambda: self._child is None, patience_s):
                assert self._child is not None
                self._child.kill()

    def _wait(self, child: Child, target: str, timeout_s: float) -> Written:
        deadline = time.monotonic() + timeout_s
        standstill = Standstill(self._options.stall_timeout_s, time.monotonic())
        while True:
            judge_s = standstill.patience_s(time.monotonic(), child.file.look().at_s)
            if child.ended(max(0.0, min(deadline - time.monotonic(), judge_s))):
                return self._answer(child, target)
            now = time.monotonic()
            silent_s = standstill.judge(now, child.file.look().at_s)
            if silent_s is not None:
                raise WriterError(
                    f"{target}: the writer process (pid {child.pid}) has made no progress for "
                    f"{silent_s:.0f} s (stall_timeout_s={self._options.stall_timeout_s:g}) and was "
                    f"killed; {child.doing()}"
                )
            if now >= deadline:
                child.file.give_up()
                child.ended(_DYING_S)
                raise SaveError(
                    f"{target}: not written within {timeout_s:g} s; allow more time, or find out "
                    "what slows the file system down",
                    errno=errno.ETIMEDOUT,
                )

    def _answer(self, child: Child, target: str) -> Written:
        answer = child.file.answered()
        if answer is None:
            how = self._over or child.how_it_ended()
            raise WriterError(f"{target}: the writer process (pid {child.pid}) {how}")
        if isinstance(answer, Written):
            return answer
        raise SaveError(answer.message, errno=answer.errno)


def _not_started(error: OSError) -> WriterError:
    return WriterError(f"the writer process cannot be started: {error}", errno=error.errno)


class Child:
    """A started program.

    Attributes:
        pid: of it.
        file: see `job`.
    """

    # Children that were killed and could not be waited for yet, as a hung file system held them.
    left: ClassVar[list[int]] = []
    _left_lock = threading.Lock()

    def __init__(self, pid: int, file: JobFile) -> None:
        """Take over what was started; raises an OSError, and kills it, without descriptors."""
        self.pid = pid
        self.file = file
        self._status: int | None = None
        try:
            pidfd = process.open_pidfd(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            self._leave()
            raise
        self._pidfd = -1 if pidfd is None else pidfd

    @classmethod
    def start(cls, file: JobFile, arena: int) -> Child:
        """Start the program and return at once.

        Args:
            file: of its job; it belongs to the child from now on.
            arena: descriptor, which stays the caller's.

        Raises:
            OSError: it cannot be started.
        """
        cls._reap_left()
        fds: list[int] = []
        try:
            # Standard streams take the numbers below, where they are free.
            fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (file.fd, arena)]
            argv = process.module_command(_PROGRAM, *map(str, (*fds, os.getpid())), flags=["-S"])
            return cls(process.spawn(argv, _environment(), fds), file)
        except BaseException:
            file.close()
            raise
        finally:
            for fd in fds:
                os.close(fd)

    def ended(self, timeout_s: float) -> bool:
        """Wait until it has ended; return False after ``timeout_s``."""
        return self._pidfd < 0 or process.wait_pidfd(self._pidfd, timeout_s)

    def kill(self) -> None:
        """Send SIGKILL; a process that waits for a disk ends when the disk answers."""
        with contextlib.suppress(OSError):
            if self._pidfd >= 0:
                process.signal_pidfd(self._pidfd, signal.SIGKILL)

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
            number = os.WTERMSIG(status)
            name = signal.Signals(number).name if number in list(signal.Signals) else str(number)
            if number == signal.SIGKILL:
                return f"was killed ({name}); see dmesg whether the node ran out of memory"
            return f"was ended by {name}"
        code = os.waitstatus_to_exitcode(status)
        return f"has ended with exit code {code}; its standard error may say why"

    def release(self) -> None:
        """Close descriptors and forget the process, whether it has ended or not."""
        if not self._reap():
            self._leave()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self.file.close()

    def _reap(self) -> bool:
        """Return whether it has ended and been waited for, here or by somebody else."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return True
            if not pid:
                return False
            self._status = status
        return True

    def _leave(self) -> None:
        with Child._left_lock:
            Child.left.append(self.pid)

    @classmethod
    def _reap_left(cls) -> None:
        with cls._left_lock:
            cls.left[:] = [pid for pid in cls.left if not _is_reaped(pid)]


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


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


class Standstill:
    """Judges by when there was progress last. All times are seconds of one clock."""

    def __init__(self, timeout_s: float, now_s: float) -> None:
        """Begin now.

        Args:
            timeout_s: how long a writer may make no progress.
            now_s: the time.
        """
        self._timeout_s = timeout_s
        self._since_s = now_s
        self._suspect_s: float | None = None  # when it seemed to stand still

    def patience_s(self, now_s: float, progress_s: float) -> float:
        """Return in how many seconds to judge."""
        if self._suspect_s is not None:
            return max(0.0, self._suspect_s + CONFIRM_S - now_s)
        return max(0.0, max(self._since_s, progress_s) + self._timeout_s - now_s)

    def judge(self, now_s: float, progress_s: float) -> float | None:
        """Return for how long there was no progress if it stands still, None if it may go on.

        Args:
            now_s: the time.
            progress_s: when there was progress last, as the writer says.
        """
        silent_s = now_s - max(self._since_s, progress_s)
        if silent_s < self._timeout_s:
            self._suspect_s = None
        elif self._suspect_s is None:
            self._suspect_s = now_s
        elif now_s - self._suspect_s >= CONFIRM_S:
            return silent_s
        return None
