"""What the trainer has of its writer process.

No thread reads here: whoever waits for a job listens for all of them. Handing a job over never
blocks, whatever state the writer is in.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import threading
import time
from typing import TYPE_CHECKING

from undaunted.checkpointing.errors import SaveError, WriterError
from undaunted.checkpointing.format.manifest import BLOCK_BYTES
from undaunted.checkpointing.writer import child, page
from undaunted.checkpointing.writer.connection import Connection
from undaunted.checkpointing.writer.messages import (
    Arena,
    Begin,
    Cancel,
    Failed,
    FromWriter,
    Write,
    Written,
)
from undaunted.checkpointing.writer.options import WriterOptions
from undaunted.checkpointing.writer.standstill import Standstill

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import msgspec

    from undaunted.checkpointing.format.image import Image

# What is killed ends within milliseconds, unless it waits for a disk. Seconds.
_DYING_S = 1.0
# That may wait for their turn, also those that were given up but not answered yet.
_MOST_JOBS = 64

DEFAULTS = WriterOptions()


class Job:
    """Files that are being written.

    Attributes:
        number: of the job.
        target: folder or URL they go to.
    """

    def __init__(self, writer: WriterProcess, number: int, target: str) -> None:
        """See `WriterProcess.write`."""
        self.number = number
        self.target = target
        self._writer = writer
        self._answer: Written | SaveError | None = None

    def wait(self, timeout_s: float) -> Written:
        """Wait until all files are written and synced.

        Args:
            timeout_s: when to give the job up: it is cancelled then.

        Raises:
            WriterError: the writer process has died or stopped; nothing can be written with it.
            SaveError: an error of the operating system, with its errno; ETIMEDOUT after
                ``timeout_s``. The writer can be used again.
        """
        self._writer._serve_until(self, time.monotonic() + timeout_s)  # noqa: SLF001 - one unit
        if self._answer is None:
            self.cancel()
            raise SaveError(
                f"{self.target}: not written within {timeout_s:g} s; allow more time, or find out "
                "what slows the file system down",
                errno=errno.ETIMEDOUT,
            )
        if isinstance(self._answer, SaveError):
            raise self._answer
        return self._answer

    def done(self) -> bool:
        """Return whether :meth:`wait` would return, or raise, at once. Does not block."""
        if self._answer is None:
            self._writer._look()  # noqa: SLF001 - one unit
        return self._answer is not None

    def cancel(self) -> None:
        """Give the job up between two blocks; :meth:`wait` then raises SaveError."""
        if self._answer is None:
            self._writer._send(Cancel(self.number))  # noqa: SLF001 - one unit

    def bytes_written(self) -> int:
        """Return how many bytes are written so far, for those who watch; 0 when not known."""
        if isinstance(self._answer, Written):
            return self._answer.bytes
        return self._writer._bytes_of(self.number)  # noqa: SLF001 - one unit


class WriterProcess:
    """A writer process. All methods may be called by any thread.

    Attributes:
        pid: of the process.
    """

    def __init__(self, url: str, options: WriterOptions = DEFAULTS) -> None:
        """Start it, and return at once.

        A process that was started by the main thread also ends when it is stopped (SIGSTOP) while
        the trainer dies; others only once they go on.

        Args:
            url: the place of all checkpoints: a folder or a URL.
            options: how to write.

        Raises:
            WriterError: it cannot be started.
            ValueError: an option makes no sense.
        """
        options.check()
        self._options = options
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._jobs: dict[int, Job] = {}  # not answered yet
        self._numbers = 0
        self._standstill = Standstill(options.stall_timeout_s)
        self._listening = False  # a thread listens for all
        self._users = 0  # threads that use descriptors without the lock
        self._reason = ""  # why nothing can be written any more
        self._released = True
        with contextlib.ExitStack() as undo:
            try:
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
                with theirs:
                    # Standard streams take the numbers below, where they are free.
                    fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)
                    try:
                        self._child = child.start(fd)
                    finally:
                        os.close(fd)
                undo.callback(self._child.release)
                undo.callback(self._child.kill)
                ours.setblocking(False)
                self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                undo.callback(os.close, self._wake)
                shown = page.create()
                self._connection = Connection(ours, FromWriter)
                self._send(Begin(url, options), shown)
                self._page = page.Page(shown)
            except OSError as error:
                raise WriterError(
                    f"the writer process cannot be started: {error}", errno=error.errno
                ) from error
            undo.pop_all()
        self._released = False
        self.pid = self._child.pid

    @property
    def alive(self) -> bool:
        """Whether jobs can be given to it, as far as is known. Does not block."""
        self._look()
        return not self._reason

    def share(self, slot: int, fd: int, size: int) -> None:
        """Give it the memory of a slot, in place of the former; jobs keep what they began with.

        Args:
            slot: number of the arena.
            fd: of shared memory; it stays the caller's.
            size: bytes.
        """
        self._send(Arena(slot, size), fd)

    def write(
        self, target: str, slot: int, files: Sequence[Image], block_bytes: int = BLOCK_BYTES
    ) -> Job:
        """Have files written; several jobs are done one after the other. Does not block.

        Args:
            target: folder, made (0700) when missing, or URL of the attempt.
            slot: arena in which they lie; nothing may be changed there until the job is over.
            files: where in the arena.
            block_bytes: for the checksums.
        """
        with self._changed:
            self._numbers += 1
            job = Job(self, self._numbers, target)
            if len(self._jobs) >= _MOST_JOBS:
                text = (
                    f"{target}: {_MOST_JOBS} jobs wait for the writer: wait for one of them first"
                )
                job._answer = SaveError(text, errno=errno.EAGAIN)  # noqa: SLF001 - one unit
                return job
            self._send(Write(job.number, slot, target, list(files), block_bytes))
            if not self._jobs:
                self._standstill.begin(time.monotonic())
            self._jobs[job.number] = job
            if self._reason:
                self._settle()
        return job

    def close(self, timeout_s: float) -> None:
        """Wait until all jobs are done, and end the process; after ``timeout_s`` kill it."""
        if os.getpid() != self._owner:
            return
        deadline = time.monotonic() + timeout_s
        with self._changed:
            jobs = list(self._jobs.values())
        for job in jobs:
            self._serve_until(job, deadline)
        self._finish("was closed", max(0.0, deadline - time.monotonic()))

    def abort(self) -> None:
        """Kill the process and release everything; jobs fail. Takes a second at most."""
        if os.getpid() == self._owner:
            self._finish("was aborted", 0.0)

    # --- for jobs -------------------------------------------------------------------------------

    def _send(self, message: msgspec.Struct, fd: int = -1) -> None:
        with self._changed:
            if self._reason:
                return
            # That it is gone is told when what it said before has been read.
            with contextlib.suppress(OSError):
                self._connection.send(message, fd)
            if self._connection.waits_to_send:
                os.eventfd_write(self._wake, 1)

    def _bytes_of(self, number: int) -> int:
        with self._changed:
            if self._released:
                return 0
            progress = self._page.look()
        return progress.bytes if progress.job == number else 0

    def _look(self) -> None:
        with self._changed:
            if not self._reason:
                self._take_in()

    def _serve_until(self, job: Job, deadline: float) -> None:
        """Listen, or wait for another thread that does, until the job is answered."""
        with self._changed:
            while job.number in self._jobs and (left_s := deadline - time.monotonic()) > 0:
                if self._listening:
                    self._changed.wait(left_s)
                    continue
                self._listening = True
                try:
                    self._listen(left_s)
                finally:
                    self._listening = False
                    self._changed.notify_all()

    # --- with the lock held ---------------------------------------------------------------------

    def _listen(self, timeout_s: float) -> None:
        """Take in what comes next, or see whether it stands still."""
        poll = self._poll()
        judge_s = self._standstill.patience_s(time.monotonic(), self._page.look().at_s)
        with self._unlocked():
            poll.poll(min(timeout_s, judge_s) * 1000)
        if not self._reason:
            self._take_in()

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Give the lock away, and keep the descriptors meanwhile."""
        self._users += 1
        self._changed.release()
        try:
            yield
        finally:
            self._changed.acquire()
            self._users -= 1
            self._release_if_over()

    def _poll(self) -> select.poll:
        poll = select.poll()
        sending = select.POLLOUT if self._connection.waits_to_send else 0
        poll.register(self._connection.fileno(), select.POLLIN | sending)
        poll.register(self._child.pidfd, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        return poll

    def _take_in(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        ended = self._child.ended()  # asked first: what it said before it ended counts
        problem = self._receive()
        if ended:
            self._die(f"the writer process (pid {self.pid}) {self._child.how_it_ended()}")
        elif problem:
            # Either it is ending, and how it does stands already, or it is of no use.
            self._child.kill()
            if self._child.ended(_DYING_S):
                problem = self._child.how_it_ended()
            self._die(f"the writer process (pid {self.pid}) {problem}")
        elif self._jobs:
            self._judge(time.monotonic())

    def _receive(self) -> str:
        """Take in all there is; return what is wrong with the connection."""
        try:
            while True:
                messages = self._connection.receive()
                if messages is None:
                    return "has closed its connection"
                if not messages:
                    self._connection.flush()
                    return ""
                for message in messages:
                    self._answered(message)
        except OSError as error:
            return f"cannot be reached: {error}"
        except ValueError as error:
            return f"has said what is no message: {error}"

    def _answered(self, message: Written | Failed) -> None:
        job = self._jobs.pop(message.job, None)
        self._standstill.answered()
        if job is not None:
            job._answer = (  # noqa: SLF001 - one unit
                message
                if isinstance(message, Written)
                else SaveError(message.message, errno=message.errno)
            )
            self._tell_all()

    def _judge(self, now_s: float) -> None:
        silent_s = self._standstill.judge(now_s, self._page.look().at_s)
        if silent_s is not None:
            doing = self._child.doing()
            self._child.kill()
            self._die(
                f"the writer process (pid {self.pid}) has made no progress for {silent_s:.0f} s "
                f"(stall_timeout_s={self._options.stall_timeout_s:g}) and was killed; {doing}"
            )

    def _die(self, reason: str) -> None:
        self._reason = reason
        self._settle()
        self._release_if_over()

    def _settle(self) -> None:
        for job in self._jobs.values():
            job._answer = WriterError(f"{job.target}: {self._reason}")  # noqa: SLF001 - one unit
        self._jobs.clear()
        self._tell_all()

    def _tell_all(self) -> None:
        """Answers are there: for who waits, and for who listens, as it may be another's call."""
        self._changed.notify_all()
        if self._listening:
            os.eventfd_write(self._wake, 1)

    def _release_if_over(self) -> None:
        if self._reason and not self._users and not self._released:
            self._released = True
            self._connection.close()
            self._child.release()
            os.close(self._wake)
            self._page.close()

    # --- its end --------------------------------------------------------------------------------

    def _finish(self, how: str, patience_s: float) -> None:
        """End it: kindly for so long, then not."""
        with self._changed:
            if self._reason:
                return
            self._reason = f"the writer process (pid {self.pid}) {how}"
            self._settle()
            self._connection.shut_down()
            with self._unlocked():
                if not (patience_s and self._child.ended(patience_s)):
                    self._child.kill()
                    self._child.ended(_DYING_S)

    def __del__(self) -> None:
        """End it without waiting: the end of the connection is its end."""
        if not getattr(self, "_released", True):
            if os.getpid() == self._owner:
                self.abort()
            else:
                self._child.forget()
                self._connection.close()
                os.close(self._wake)
                self._page.close()
