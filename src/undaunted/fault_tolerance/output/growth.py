"""Waiting for files to grow: by inotify, or by the clock where that is not to be had."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING

from undaunted.base.inotify import Inotify

if TYPE_CHECKING:
    from collections.abc import Iterable

_POLL_S = 0.5  # without inotify


class Growth:
    """Tells one thread when to look at its files again. Others call `wake` and `close` only."""

    def __init__(self) -> None:
        """Open what is needed.

        Raises:
            OSError: out of descriptors.
        """
        self._closing = threading.Lock()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._inotify: Inotify | None
        try:
            self._inotify = Inotify()
        except OSError:
            self._inotify = None

    def watch(self, path: str) -> None:
        """Have `wait` return when this file grows."""
        if self._inotify is None:
            return
        try:
            self._inotify.watch(path)
        except OSError:  # out of watches: look at the clock instead, for all files
            self._inotify.close()
            self._inotify = None

    def wake(self) -> None:
        """Have the present and all further calls of `wait` return at once."""
        with self._closing:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def wait(
        self,
        not_before: float,
        not_after: float | None = None,
        writable: Iterable[int] = (),
    ) -> None:
        """Wait until a file grew, but at least until ``not_before``; less when woken.

        Args:
            not_before: time.monotonic() before which growth is not worth a look.
            not_after: time.monotonic() at which to return in any case; None = never.
            writable: descriptors whose becoming writable ends the wait as well.
        """
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        pause_s = not_before - time.monotonic()
        if pause_s > 0 and poller.poll(pause_s * 1000):
            return
        for fd in writable:
            poller.register(fd, select.POLLOUT)
        limit_s = None if not_after is None else max(0.0, not_after - time.monotonic())
        if self._inotify is not None:
            poller.register(self._inotify, select.POLLIN)
        else:
            limit_s = _POLL_S if limit_s is None else min(limit_s, _POLL_S)
        poller.poll(None if limit_s is None else limit_s * 1000)
        if self._inotify is not None:
            self._inotify.drain()

    def wait_for_writer(self, fd: int, seconds: float, *, until_woken: bool) -> None:
        """Wait until ``fd`` may be writable, ``seconds`` at most."""
        poller = select.poll()
        poller.register(fd, select.POLLOUT)
        if until_woken:
            poller.register(self._wake_fd, select.POLLIN)
        poller.poll(seconds * 1000)

    def stop_watching(self) -> None:
        """Release the watches; called by the thread that waits."""
        if self._inotify is not None:
            self._inotify.close()

    def close(self) -> None:
        """Release everything; called by the thread that waits, or once it has ended."""
        with self._closing:
            wake_fd, self._wake_fd = self._wake_fd, -1
        if wake_fd >= 0:
            self.stop_watching()
            os.close(wake_fd)
