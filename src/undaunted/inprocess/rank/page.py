"""The rank's side of its page; `undaunted.inprocess.core.reading` describes the page."""

from __future__ import annotations

import mmap
import os
import time
from typing import TYPE_CHECKING

from undaunted.base.memory import create_memfd
from undaunted.inprocess.core import reading
from undaunted.inprocess.rank.forks import forget_in_children

if TYPE_CHECKING:
    from undaunted.inprocess.core.reading import Phase

_NAME = "undaunted-inprocess"


class Page:
    """One per process. Written by the rank only, each word by a single store.

    Attributes:
        words: of the page, in native order.
        fd: the memfd, for the guard.
    """

    def __init__(self) -> None:
        self.fd = create_memfd(_NAME, reading.PAGE_BYTES)
        self._memory: mmap.mmap | bytearray = mmap.mmap(self.fd, reading.PAGE_BYTES)
        self.words: memoryview[int] = memoryview(self._memory).cast("q")
        empty = reading.encode(reading.Reading(auto_ns=time.monotonic_ns()))
        memoryview(self._memory)[: len(empty)] = empty
        forget_in_children(self)

    # --- progress ---------------------------------------------------------------------------------

    def turned(self) -> None:
        """The main thread's interpreter turns."""
        self.words[reading.AUTO_NS] = time.monotonic_ns()

    def ping(self) -> None:
        """The function makes progress. After the first call in an epoch, more must follow."""
        words = self.words
        words[reading.PINGS] += 1
        words[reading.PING_NS] = time.monotonic_ns()

    @property
    def progress_ns(self) -> tuple[int, int]:
        """The times of the last `turned` and `ping`; 0 = not called in this epoch."""
        return self.words[reading.AUTO_NS], self.words[reading.PING_NS]

    @property
    def pings(self) -> int:
        """The number of calls of `ping` by the process."""
        return self.words[reading.PINGS]

    # --- where it is ------------------------------------------------------------------------------

    def enter_call(self, call: int) -> None:
        """A wrapped function is called."""
        self.words[reading.CALL] = call
        self.words[reading.EPOCH] = self.words[reading.RANK] = -1

    def enter_epoch(self, epoch: int) -> None:
        """A record was taken up."""
        self.words[reading.EPOCH] = epoch
        self.words[reading.RANK] = -1

    def assigned(self, rank: int) -> None:
        """Show the rank that was assigned for the epoch."""
        self.words[reading.RANK] = rank

    def set_phase(self, phase: Phase) -> None:
        """Show the new phase of the main thread; limits run anew."""
        words = self.words
        words[reading.AUTO_NS] = time.monotonic_ns()
        words[reading.PING_NS] = 0
        words[reading.PHASE] = phase

    @property
    def phase(self) -> Phase:
        """The phase that was set last."""
        return reading.Phase(self.words[reading.PHASE])

    def set_atomic(self, depth: int) -> None:
        """Show how deep in atomic sections the user's code is."""
        words = self.words
        if depth and not words[reading.ATOMIC]:
            words[reading.ATOMIC_SINCE_NS] = time.monotonic_ns()
        words[reading.ATOMIC] = depth

    @property
    def unguarded(self) -> int:
        """In how many sections without hang protection the code is."""
        return self.words[reading.UNGUARDED]

    def set_unguarded(self, depth: int) -> None:
        """Show in how many sections without hang protection the code is; limits run anew."""
        words = self.words
        now = time.monotonic_ns()
        words[reading.AUTO_NS] = now
        if words[reading.PING_NS]:
            words[reading.PING_NS] = now
        words[reading.UNGUARDED] = depth

    # --- its end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the memory back; later writes have no effect."""
        self.words.release()
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()
        self._forget()

    def after_fork(self) -> None:
        """In a child: its writes must not reach its parent's guard."""
        self._forget()

    def _forget(self) -> None:
        self._memory = bytearray(reading.PAGE_BYTES)
        self.words = memoryview(self._memory).cast("q")
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
