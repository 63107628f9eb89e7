"""What the trainer has of its writer process.

No thread reads here: who has files written listens until they are. Handing a job over never blocks,
whatever state the writer is in.
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

DEFAULTS = WriterOptions()


class WriterProcess:
    """A writer process. One thread has files written; any thread may look on, or end it.

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
        self._turn = threading.Lock()  # who has files written
        self._lock = threading.RLock()
        self._job = 0  # number of the latest one
        self._answer: Written | Failed | None = None
        self._at_work = False  # the latest job is not answered yet
        self._standstill = Standstill(options.stall_timeout_s)
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

    def share(self, slot: int, fd: int, size: int) -> None:
        """Give it the memory of a slot, in place of the former. Does not block.

        Args:
            slot: number of the arena.
            fd: of shared memory; it stays the caller's.
            size: bytes.
        """
        with self._lock:
            self._send(Arena(slot, size), fd)

    def write(
        self,
        target: str,
        slot: int,
        files: Sequence[Image],
        timeout_s: float,
        block_bytes: int = BLOCK_BYTES,
    ) -> Written:
        """Have files written and synced, and wait for it.

        Args:
            target: folder, made (0700) when missing, or URL of the attempt.
            slot: arena in which they lie.
            files: where in the arena.
            timeout_s: when to give them up: the writer stops between two blocks then.
            block_bytes: for the checksums.

        Raises:
            WriterError: the writer process has died or stopped; nothing can be written with it.
            SaveError: an error of the operating system, with its errno; ETIMEDOUT after
                ``timeout_s``. The writer can be used again.
        """
        deadline = time.monotonic() + timeout_s
        with self._turn, self._lock:
            self._listen_until(deadline)  # what was given up before comes to its end first
            if not self._at_work:
                self._job += 1
                self._at_work = True
                self._standstill.begin(time.monotonic())
                self._send(Write(self._job, slot, target, list(files), block_bytes))
                self._listen_until(deadline)
            if not self._at_work:
                answer = self._answer
                if isinstance(answer, Written):
                    return answer
                assert answer is not None
                raise SaveError(answer.message, errno=answer.errno)
            if self._reason:
                raise WriterError(f"{target}: {self._reason}")
            self._send(Cancel())
            raise SaveError(
                f"{target}: not written within {timeout_s:g} s; allow more time, or find out "
                "what slows the file system down",
                errno=errno.ETIMEDOUT,
            )

    def bytes_written(self) -> int:
        """Return how much of the latest job is done, for those who watch; 0 when not known."""
        with self._lock:
            if self._released:
                return 0
            progress = self._page.look()
        return progress.bytes if progress.job == self._job else 0

    def close(self, timeout_s: float) -> None:
        """Wait until nothing is written, and end the process; after ``timeout_s`` kill it."""
        if os.getpid() != self._owner:
            return
        deadline = time.monotonic() + timeout_s
        if self._turn.acquire(timeout=timeout_s):
            try:
                with self._lock:
                    self._listen_until(deadline)
            finally:
                self._turn.release()
        self._finish("was closed", max(0.0, deadline - time.monotonic()))

    def abort(self) -> None:
        """Kill the process and release everything; who waits is told. Takes a second at most."""
        if os.getpid() == self._owner:
            self._finish("was aborted", 0.0)

    # --- with the lock held ---------------------------------------------------------------------

    def _send(self, message: msgspec.Struct, fd: int = -1) -> None:
        if self._reason:
            return
        # That it is gone is told when what it said before has been read.
        with contextlib.suppress(OSError):
            self._connection.send(message, fd)

    def _listen_until(self, deadline: float) -> None:
        """Take in what it says until it has nothing to do, or nothing can be expected of it."""
        while self._at_work and not self._reason:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            self._listen(left_s)

    def _listen(self, timeout_s: float) -> None:
        """Take in what comes next, or see whether it stands still."""
        poll = select.poll()
        sending = select.POLLOUT if self._connection.waits_to_send else 0
        poll.register(self._connection.fileno(), select.POLLIN | sending)
        poll.register(self._child.pidfd, select.POLLIN)
        judge_s = self._standstill.patience_s(time.monotonic(), self._page.look().at_s)
        with self._unlocked():
            poll.poll(min(timeout_s, judge_s) * 1000)
        if not self._reason:
            self._take_in()

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Give the lock away, and keep the descriptors meanwhile."""
        self._users += 1
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._users -= 1
            self._release_if_over()

    def _take_in(self) -> None:
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
        elif self._at_work:
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
                self._answer = messages[-1]
                self._at_work = False
                self._standstill.answered()
        except OSError as error:
            return f"cannot be reached: {error}"
        except ValueError as error:
            return f"has said what is no message: {error}"

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
        self._release_if_over()

    def _release_if_over(self) -> None:
        if self._reason and not self._users and not self._released:
            self._released = True
            self._connection.close()
            self._child.release()
            self._page.close()

    # --- its end --------------------------------------------------------------------------------

    def _finish(self, how: str, patience_s: float) -> None:
        """End it: kindly for so long, then not."""
        with self._lock:
            if self._reason:
                return
            self._reason = f"the writer process (pid {self.pid}) {how}"
            self._connection.shut_down()  # who listens sees it
            with self._unlocked():
                if not (patience_s and self._child.ended(patience_s)):
                    self._child.kill()
                    self._child.ended(_DYING_S)

    def __del__(self) -> None:
        """End it without waiting: the end of the connection is its end."""
        try:
            if not getattr(self, "_released", True):
                if os.getpid() == self._owner:
                    self.abort()
                else:
                    self._child.forget()
                    self._connection.close()
                    self._page.close()
        except Exception:  # noqa: BLE001, S110 - at the end of the interpreter modules are gone
            pass
