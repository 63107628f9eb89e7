"""The link of a process to its guard, with its page and its name in the job; outlives calls.

Also the end of this process, or of its guard, where the guard is gone or was stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from undaunted.coordinator.wire import frames
from undaunted.inprocess.core.messages import MAX_MESSAGE_BYTES, FromRank, ToRank
from undaunted.inprocess.core.reading import Phase
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.guard.start import VARIABLE
from undaunted.inprocess.monitor_process import MonitorProcess
from undaunted.inprocess.rank.forks import forget_in_children
from undaunted.inprocess.rank.page import Page

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.guard.start import Guard

# Variables that name the job and the rank. The wrapper itself writes the last two.
_NAMES = (
    VARIABLE,
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "RANK",
    "WORLD_SIZE",
)
_READ_BYTES = 64 * 1024
# A guard reads at once; if it has not read for this long, it has failed.
_SEND_S = 30.0
_FIRST = 1  # process of a container: no signal from within it ends this one

_ENCODER = msgspec.msgpack.Encoder()


class GuardLinkError(InternalError):
    """The guard cannot be reached any more; the message has the reason."""


class GuardLink:
    """Owns the socket and the page. Any thread may send; one thread receives.

    Attributes:
        job_rank: ``RANK`` as the launcher has set it.
        job_size: ``WORLD_SIZE`` as the launcher has set it.
        rank: as assigned last.
        world_size: as assigned last.
        calls: how many calls have begun.
        guard: the process at the other end.
        own: the guard serves this rank alone, and ends with it.
        page: shows the guard the state of this process.
    """

    def __init__(self, guard: Guard, job_rank: int, job_size: int) -> None:
        self.guard = MonitorProcess(guard.pid)
        self.own = guard.own
        self.page = Page()
        self.job_rank = self.rank = job_rank
        self.job_size = self.world_size = job_size
        self.calls = 0
        guard.sock.settimeout(_SEND_S)
        self._socket = guard.sock
        self._lock = threading.Lock()
        self._frames = frames.FrameDecoder(MAX_MESSAGE_BYTES)
        self._decoder: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)
        self._pid = os.getpid()
        self._identity = _identity()
        forget_in_children(self)

    # --- messages ---------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor, which becomes readable when a message has come."""
        return self._socket.fileno()

    def send(self, message: FromRank, fd: int | None = None) -> None:
        """Send a message to the guard, with a descriptor beside it.

        Raises:
            GuardLinkError: the guard is gone, or does not read.
        """
        frame = frames.encode(_ENCODER.encode(message))
        try:
            with self._lock:
                sent = 0 if fd is None else socket.send_fds(self._socket, [frame], [fd])
                self._socket.sendall(frame[sent:])
        except OSError as error:
            raise GuardLinkError(f"the guard cannot be told anything: {error}") from error

    def receive(self) -> list[ToRank]:
        """Return the messages that have come, once the socket is readable.

        Raises:
            GuardLinkError: the guard is gone, or has sent something that is no message.
        """
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise GuardLinkError(f"the connection to the guard has broken: {error}") from error
        if not data:
            raise GuardLinkError("the guard is gone")
        self._frames.feed(data)
        found = []
        try:
            while (content := self._frames.next()) is not None:
                found.append(self._decoder.decode(content))
        except (frames.FrameError, msgspec.MsgspecError) as error:
            raise GuardLinkError(f"what the guard has sent is no message: {error}") from error
        return found

    # --- its name in the job ----------------------------------------------------------------------

    @property
    def is_ours(self) -> bool:
        """Return whether this process has made it; False in a process that was forked later."""
        return self._pid == os.getpid()

    @property
    def usable(self) -> bool:
        """Return whether it is of this process, and the environment still names the same job."""
        return self.is_ours and self._identity == _identity()

    def keep(self, rank: int, world_size: int) -> None:
        """Keep the rank and world size that were assigned and written into the environment."""
        self.rank, self.world_size = rank, world_size
        self._identity = _identity()

    # --- its end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the link: for the guard, this is the end of the rank."""
        self._socket.close()
        self.page.close()

    def after_fork(self) -> None:
        """In a child: let go of the link, which is the parent's. The page has its own method."""
        self._pid = -1
        self._socket.close()


_current: list[GuardLink] = []  # at most one


def current() -> GuardLink | None:
    """Return this process's link, None = there is none yet, or it belongs to another job."""
    return next((link for link in _current if link.usable), None)


def replace(make: Callable[[], GuardLink]) -> GuardLink:
    """Close the link that there may be, and make a new one."""
    close()
    _current.append(make())
    if os.getpid() == _FIRST:
        _say(
            "this rank is the first process of its container: no other one there can end it when "
            "it hangs. Start it with undaunted run, or below an init (docker run --init)"
        )
    return _current[0]


def close() -> None:
    """End the link, if there is one of this process."""
    while _current:
        old = _current.pop()
        if old.is_ours:
            old.close()


def _identity() -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in _NAMES)


atexit.register(close)


# --- without a guard ------------------------------------------------------------------------------


class LostGuard:
    """Kills this process if it stays in the call for too long after its guard has ended.

    Used in the watcher's thread, which needs the GIL: it cannot end a rank that holds the GIL.
    """

    def __init__(self, page: Page, limit_s: float) -> None:
        """Nothing is limited before `begin`.

        Args:
            page: shows whether the rank has left the call.
            limit_s: how long that may take, seconds.
        """
        self._page = page
        self._limit_s = limit_s
        self._end_at = 0.0

    def begin(self) -> None:
        """The guard is gone."""
        self._end_at = self._end_at or time.monotonic() + self._limit_s

    def end_if_due(self) -> None:
        """End this process if its time is over and it is still in the call."""
        if not self._end_at or time.monotonic() < self._end_at:
            return
        if self._page.phase is not Phase.OUTSIDE:
            text = f"has not left the call {self._limit_s:g} s after its guard has ended"
            _say(f"process {os.getpid()} {text}: it is killed")
            if os.getpid() == _FIRST:
                os._exit(128 + signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class StoppedGuard:
    """Kills a guard that was stopped (SIGSTOP): the rank would hear nothing, and wait for ever.

    Then the rank leaves, as after the death of any guard. It counts looks, not time: when a whole
    job was stopped and is continued, the rank may wake before its guard.
    """

    def __init__(self, guard: MonitorProcess | None, looks: int) -> None:
        """Begin to look.

        Args:
            guard: of this rank alone; None = it serves others too, and must not be killed.
            looks: how often in a row the guard may be seen stopped.
        """
        self._guard = guard
        self._looks = looks
        self._seen = 0

    def look(self) -> None:
        """Look at the guard; called at regular intervals."""
        if self._guard is None:
            return
        self._seen = self._seen + 1 if self._guard.is_stopped() else 0
        if self._seen > self._looks:
            text = f"its guard (process {self._guard.pid}) was stopped and is killed: it leaves"
            _say(f"process {os.getpid()}: {text}")
            with contextlib.suppress(OSError):
                os.kill(self._guard.pid, signal.SIGKILL)
            self._guard = None


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # not by way of logging: its lock may be held
        os.write(2, f"[undaunted] {text}\n".encode())
