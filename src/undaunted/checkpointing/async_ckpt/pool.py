"""The arenas of this process for asynchronous saves, each with a writer process beside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.slots import Slot
from undaunted.checkpointing.writer.options import WriterOptions
from undaunted.checkpointing.writer.seat import WriterSeat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.checkpointing.format.image import Image
    from undaunted.checkpointing.writer.messages import Written

PLACES = 2  # one may be copied to while the other is written
CLOSE_S = 30.0

_IO_CLASSES = {2: "best-effort", 3: "idle"}

_lock = threading.Lock()
_options = WriterOptions()
_pool: Pool | None = None


class Place:
    """Room for one snapshot, and who writes it. Used by one save at a time.

    Attributes:
        slot: the arena.
    """

    def __init__(self, index: int, options: WriterOptions) -> None:
        self.slot = Slot(index)
        self._options = options
        self._seat: WriterSeat | None = None
        self._aborted = False
        self._changing = threading.Lock()

    def renew(self) -> None:
        """Be ready for another save, which nobody has aborted."""
        with self._changing:
            self._aborted = False

    def warm_up(self) -> WriterSeat:
        """Start the writer process; it is not waited for.

        Raises:
            SaveError: the save was aborted.
        """
        with self._changing:
            if self._aborted:
                raise SaveError("the save was aborted before it was written")
            self._seat = self._seat or WriterSeat("/", self._options)
            return self._seat

    def write(self, folder: str, files: Sequence[Image], timeout_s: float) -> Written:
        """Have files of the arena written to a folder and synced.

        Raises:
            SaveError: they are not; the next call may work.
        """
        return self.warm_up().write(self.slot, folder, files, timeout_s)

    def abort(self) -> None:
        """End the writer process at once, by any thread; `write` raises, also if it comes later."""
        with self._changing:
            self._aborted = True
            seat, self._seat = self._seat, None
        if seat is not None:
            seat.abort()

    def close(self) -> None:
        """Give the memory back and end the writer process."""
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.close(CLOSE_S)
        self.slot.close()


class Pool:
    """All places; they are made when they are needed, and used again."""

    def __init__(self, options: WriterOptions) -> None:
        self._free = [Place(index, options) for index in range(PLACES)]
        self._used: list[Place] = []
        self._closed = False
        self._changed = threading.Condition()

    def warm_up(self) -> None:
        """Start the writer process of the place that is taken next."""
        with self._changed:
            if self._free:
                self._free[-1].warm_up()

    def take(self, timeout_s: float) -> Place:
        """Return a place that nobody uses, the one that was used last if possible.

        Raises:
            SaveError: none has become free in time, or they are closed.
        """
        with self._changed:
            ready = self._changed.wait_for(lambda: self._free or self._closed, timeout_s)
            if self._closed:
                raise SaveError("asynchronous saves were aborted or closed during this one")
            if not ready:
                raise SaveError(
                    f"{PLACES} saves are still being written after {timeout_s:g} s, and there is no"
                    " memory for another one: save less often, finalize what was scheduled, or look"
                    " at the speed of the storage"
                )
            place = self._free.pop()
            self._used.append(place)
            return place

    def give_back(self, place: Place) -> None:
        """Say that the content is no longer needed; again and again without harm."""
        with self._changed:
            if place not in self._used:
                return
            self._used.remove(place)
            place.renew()
            if not self._closed:
                self._free.append(place)
                self._changed.notify_all()
        if self._closed:
            place.close()

    def close(self, abort: bool) -> None:
        """Give everything back; what is in use follows when it is given back.

        Args:
            abort: end writer processes at once, also those that write.
        """
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
            used = list(self._used)
            self._changed.notify_all()
        for place in used if abort else ():
            place.abort()
        for place in free:
            if abort:
                place.abort()
            place.close()


def the_pool() -> Pool:
    """Return the pool of this process."""
    global _pool  # noqa: PLW0603 - there is one per process
    with _lock:
        if _pool is None:
            _pool = Pool(_options)
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
