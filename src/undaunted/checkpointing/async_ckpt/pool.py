"""The arenas of this process for asynchronous saves, each with a writer process beside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.memory.pool import Pool
from undaunted.checkpointing.writer.options import WriterOptions
from undaunted.checkpointing.writer.seat import WriterSeat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.checkpointing.format.image import Image
    from undaunted.checkpointing.memory.pool import Lease
    from undaunted.checkpointing.writer.messages import Written

PLACES = 2  # one may be copied to while the other is written
CLOSE_S = 30.0

_IO_CLASSES = {2: "best-effort", 3: "idle"}

_lock = threading.Lock()
_options = WriterOptions()
_pool: Places | None = None


class Place:
    """Room for one snapshot, and who writes it. Used by one save.

    Attributes:
        lease: the arena.
    """

    def __init__(self, of: Places, lease: Lease) -> None:
        self.lease = lease
        self._of = of
        self._seat: WriterSeat | None = None
        self._aborted = False
        self._changing = threading.Lock()

    def warm_up(self) -> WriterSeat:
        """Start the writer process; it is not waited for.

        Raises:
            SaveError: the save was aborted.
        """
        with self._changing:
            if self._aborted:
                raise SaveError("the save was aborted before it was written")
            self._seat = self._seat or self._of.seat(self.lease.index)
            return self._seat

    def write(self, folder: str, files: Sequence[Image], timeout_s: float) -> Written:
        """Have files of the arena written to a folder and synced.

        Raises:
            SaveError: they are not; the next save may work.
        """
        return self.warm_up().write(self.lease, folder, files, timeout_s)

    def abort(self) -> None:
        """End the writer process at once, by any thread; `write` raises, also if it comes later."""
        with self._changing:
            self._aborted = True
            seat, self._seat = self._seat, None
        if seat is not None:
            seat.abort()

    def release(self) -> None:
        """Say that the content is no longer needed; again and again without harm."""
        with self._changing:
            seat, self._seat = self._seat, None
        self._of.take_back(self, seat)
        self.lease.release()


class Places:
    """All places; memory and writer processes are made when they are needed, and used again."""

    def __init__(self, options: WriterOptions) -> None:
        self._options = options
        self._pool = Pool(PLACES, "undaunted-async", "finalize what was scheduled")
        self._seats: dict[int, WriterSeat] = {}  # that nobody uses, by arena
        self._used: set[Place] = set()
        self._closed = False
        # Reentrant: a place may be collected, and so released, while the lock is held.
        self._changing = threading.RLock()

    def warm_up(self) -> None:
        """Start the writer process of the place that is taken next, if one is free."""
        try:
            place = self.take(0)
        except SaveError:
            return
        try:
            place.warm_up()
        finally:
            place.release()

    def take(self, timeout_s: float) -> Place:
        """Return a place that nobody uses, the one that was used last if possible.

        Raises:
            SaveError: none has become free in time, or they are closed.
        """
        place = Place(self, self._pool.lease(0, timeout_s))
        with self._changing:
            self._used.add(place)
        return place

    def seat(self, index: int) -> WriterSeat:
        """Return a writer for an arena."""
        with self._changing:
            return self._seats.pop(index, None) or WriterSeat("/", self._options)

    def take_back(self, place: Place, seat: WriterSeat | None) -> None:
        """Keep a writer for the next one who has this arena."""
        with self._changing:
            self._used.discard(place)
            if seat is not None and not self._closed:
                self._seats[place.lease.index] = seat
                return
        if seat is not None:
            seat.close(CLOSE_S)

    def close(self, abort: bool) -> None:
        """Give everything back; what is in use follows when it is released.

        Args:
            abort: end writer processes at once, also those that write.
        """
        with self._changing:
            self._closed = True
            seats, self._seats = list(self._seats.values()), {}
            used = list(self._used)
        self._pool.close()
        for place in used if abort else ():
            place.abort()
        for seat in seats:
            if abort:
                seat.abort()
            else:
                seat.close(CLOSE_S)


def the_pool() -> Places:
    """Return the pool of this process."""
    global _pool  # noqa: PLW0603 - there is one per process
    with _lock:
        if _pool is None:
            _pool = Places(_options)
        return _pool


def configure(cpu_priority: int, io_priority: int | None) -> None:
    """Say how the writer processes that are started from now on are to behave.

    Args:
        cpu_priority: niceness.
        io_priority: 2 best effort, 3 idle, anything else: as the trainer's.
    """
    global _options  # noqa: PLW0603 - likewise
    io_class = _IO_CLASSES.get(io_priority or 0)
    _options = WriterOptions(nice=cpu_priority, io_class=io_class)


def close(abort: bool = False) -> None:
    """Close the pool of this process, if there is one; the next save makes a new one."""
    global _pool
    with _lock:
        pool, _pool = _pool, None
    if pool is not None:
        pool.close(abort)
