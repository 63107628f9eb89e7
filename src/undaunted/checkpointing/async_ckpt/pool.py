"""The memory of this process for asynchronous saves, and how it is written out."""

from __future__ import annotations

import threading

from undaunted.checkpointing.memory.pool import Pool
from undaunted.checkpointing.writer.options import WriterOptions
from undaunted.checkpointing.writer.seat import WriterSeat

ARENAS = 2  # one may be copied to while the other is written

_IO_CLASSES = {2: "best-effort", 3: "idle"}

_lock = threading.Lock()
_options = WriterOptions()
_pool: Pool | None = None


def the_pool() -> Pool:
    """Return the arenas of this process."""
    global _pool  # noqa: PLW0603 - there is one per process
    with _lock:
        if _pool is None:
            _pool = Pool(ARENAS, "undaunted-async", "finalize what was scheduled")
        return _pool


def close() -> None:
    """Give memory back, that of leases with them; the next save allocates anew."""
    global _pool
    with _lock:
        pool, _pool = _pool, None
    if pool is not None:
        pool.close()


def new_writer() -> WriterSeat:
    """Return a writer for one save, so that one save is ended without another one."""
    return WriterSeat("/", _options)


def configure(cpu_priority: int, io_priority: int | None) -> None:
    """Say how writers behave from now on.

    Args:
        cpu_priority: niceness.
        io_priority: 2 best effort, 3 idle, anything else: as the trainer's.
    """
    global _options  # noqa: PLW0603 - likewise
    io_class = _IO_CLASSES.get(io_priority or 0)
    _options = WriterOptions(nice=cpu_priority, io_class=io_class)
