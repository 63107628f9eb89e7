"""A bounded number of arenas: who has one now, and who waits for one."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.memory.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Callable


class Lease:
    """An arena that one save has to itself until it is released, or forgotten.

    Attributes:
        index: which arena of the pool it is, from 0.
        arena: the memory; None until it is asked for, and after `release`.
    """

    def __init__(self, pool: Pool, index: int, arena: Arena | None) -> None:
        """See `Pool.lease`."""
        self.index = index
        self.arena = arena
        self._pool: Pool | None = pool

    def at_least(self, size: int) -> Arena:
        """Return an arena of ``size`` bytes or more: the present one, or a new one in its place.

        Raises:
            OSError: there is not enough memory.
            SaveError: it was released.
        """
        pool = self._pool
        if pool is None:
            raise SaveError("the memory of this save was given back")
        if self.arena is not None and self.arena.size < size:
            arena, self.arena = self.arena, None
            arena.close()
        if self.arena is None:
            self.arena = pool.create(self.index, size)
        return self.arena

    def release(self) -> None:
        """Give it back; again and again without harm."""
        pool, self._pool = self._pool, None
        arena, self.arena = self.arena, None
        if pool is not None:
            pool.take_back(self.index, arena)

    def __del__(self) -> None:
        """Give back what was forgotten, as when an exception came from another thread."""
        try:
            if self._pool is not None and self._pool.is_own():
                self.release()
        except Exception:  # noqa: BLE001, S110 - at the end of the interpreter modules are gone
            pass


class Pool:
    """Arenas that are made when they are needed and used again. Any thread may call it.

    Attributes:
        count: how many there are at most.
    """

    def __init__(
        self, count: int, name: str, remedy: str, ready: Callable[[Arena], object] | None = None
    ) -> None:
        """Make a pool without memory.

        Args:
            count: how many arenas there are at most.
            name: what ``/proc/PID/fd`` shows of them, for people.
            remedy: what who waits in vain may do besides saving less often.
            ready: called with each new arena, as to have its pages mapped.
        """
        self.count = count
        self._name = name
        self._remedy = remedy
        self._ready = ready
        self._free: list[tuple[int, Arena | None]] = [(index, None) for index in range(count)]
        self._closed = False
        self._pid = os.getpid()
        # Reentrant: a lease may be collected, and so released, while the lock is held.
        self._changed = threading.Condition(threading.RLock())

    def lease(self, size: int, timeout_s: float) -> Lease:
        """Return an arena that nobody uses, the one used last if possible; wait for one if need be.

        Args:
            size: bytes that it has at least, its header among them; 0 = as it is, see
                `Lease.at_least`.
            timeout_s: how long to wait.

        Raises:
            SaveError: none has become free in time, or the pool is closed.
            OSError: there is not enough memory.
        """
        with self._changed:
            ready = self._changed.wait_for(lambda: self._free or self._closed, timeout_s)
            if self._closed:
                raise SaveError("what saves was aborted or closed during this save")
            if not ready:
                raise SaveError(
                    f"the saves before this one are still being written after {timeout_s:g} s, and "
                    f"there is no memory for another one: save less often, {self._remedy}, or look "
                    "at the speed of the storage"
                )
            lease = Lease(self, *self._free.pop())
        if size:
            try:
                lease.at_least(size)
            except BaseException:
                lease.release()
                raise
        return lease

    def warm_up(self, size: int, timeout_s: float) -> None:
        """Allocate all arenas, so that nobody waits for memory later; waits for those in use.

        Raises:
            SaveError: one did not become free in time, or the pool is closed.
            OSError: there is not enough memory.
        """
        leases = []
        try:
            for _ in range(self.count):
                leases.append(self.lease(size, timeout_s))  # noqa: PERF401 - released if one fails
        finally:
            for lease in leases:
                lease.release()

    def close(self) -> None:
        """Give all memory back; that of a lease follows when it is released."""
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
            self._changed.notify_all()
        for _, arena in free:
            if arena is not None:
                arena.close()

    # --- for leases -----------------------------------------------------------------------------

    def create(self, index: int, size: int) -> Arena:
        """Allocate an arena; raises `OSError` where there is not enough memory."""
        arena = Arena.create(f"{self._name}-{index}", size)
        if self._ready is not None:
            self._ready(arena)
        return arena

    def take_back(self, index: int, arena: Arena | None) -> None:
        """Let the next one have it."""
        with self._changed:
            if not self._closed:
                self._free.append((index, arena))
                self._changed.notify()
                return
        if arena is not None:
            arena.close()

    def is_own(self) -> bool:
        """Return whether this process made it, and is no fork, where a thread may hold the lock."""
        return os.getpid() == self._pid
