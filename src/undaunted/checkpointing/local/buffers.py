"""Flat memory for shards: allocated once, used again, never more than a given number."""

from __future__ import annotations

import logging
import mmap
import threading
import time
from typing import Any

import torch

from undaunted.base.memory import check_room
from undaunted.checkpointing.local.pages import map_at_once

_log = logging.getLogger("undaunted")
_PAGE = 4096


class Buffer:
    """Memory of whole pages, which devices copy into directly where there is one.

    Attributes:
        size: bytes, a multiple of 4096.
    """

    def __init__(self, size: int) -> None:
        """Allocate it.

        Raises:
            OSError: there is not enough memory.
        """
        self.size = max(-(-size // _PAGE), 1) * _PAGE
        check_room("local checkpoint", self.size)
        self._map: mmap.mmap | None = mmap.mmap(
            -1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        self.tensor: Any = torch.frombuffer(self._map, dtype=torch.uint8)
        map_at_once(self.tensor.data_ptr(), self.size)
        self.memory = memoryview(self._map)
        self._registered = _register(self.tensor)

    def close(self) -> None:
        """Give the memory back: it goes with the last tensor that lies over it."""
        if self._registered:
            torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())
            self._registered = False
        self.tensor = self._map = None
        self.memory = memoryview(b"")


class Lease:
    """A buffer that one shard has for itself, until it is released or forgotten."""

    def __init__(self, pool: Buffers, buffer: Buffer) -> None:
        self.buffer = buffer
        self._pool: Buffers | None = pool

    def release(self) -> None:
        """Give it back; again and again without harm."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.give_back(self.buffer)

    def __del__(self) -> None:
        try:  # noqa: SIM105 - the module that has it may be gone
            self.release()
        except Exception:  # noqa: BLE001, S110 - at the end of the interpreter modules are gone
            pass


class Buffers:
    """At most ``count`` buffers; who wants one more waits."""

    def __init__(self, count: int = 2) -> None:
        self._count = count
        self._free: list[Buffer] = []
        self._lent = 0
        self._closed = False
        # Reentrant: a lease may be collected, and so given back, while the lock is held.
        self._changed = threading.Condition(threading.RLock())

    def take(self, size: int, timeout_s: float) -> Lease:
        """Return a buffer of at least this size.

        Raises:
            TimeoutError: none became free in time.
            OSError: there is not enough memory.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._lent >= self._count:
                if not self._changed.wait(max(deadline - time.monotonic(), 0)):
                    raise TimeoutError(
                        f"no buffer became free within {timeout_s:g} s: the saves before this one "
                        "are not done yet"
                    )
            self._lent += 1
            found = self._free.pop() if self._free else None
        try:
            if found is not None and found.size < size:
                found.close()
                found = None
            return Lease(self, found or Buffer(size))
        except BaseException:
            with self._changed:
                self._lent -= 1
                self._changed.notify()
            raise

    def warm_up(self, size: int, timeout_s: float) -> None:
        """Allocate all buffers, so that nobody waits for memory later; waits for those lent.

        Raises:
            TimeoutError: one did not become free in time.
            OSError: there is not enough memory.
        """
        leases = []
        try:
            for _ in range(self._count):
                leases.append(self.take(size, timeout_s))  # noqa: PERF401 - given back if one fails
        finally:
            for lease in leases:
                lease.release()

    def give_back(self, buffer: Buffer) -> None:
        """Take a buffer back; what leases do."""
        with self._changed:
            self._lent -= 1
            if self._closed:
                buffer.close()
            else:
                self._free.append(buffer)
            self._changed.notify()

    def close(self) -> None:
        """Free all memory: that which is lent, as soon as it comes back."""
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
        for buffer in free:
            buffer.close()


def _register(tensor: Any) -> bool:
    """Make memory one that devices copy into directly; returns whether it is."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return False
    error = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel(), 0)
    if int(error) == 0:
        return True
    _log.warning("Memory for local checkpoints cannot be pinned (CUDA error %s)", int(error))
    return False
