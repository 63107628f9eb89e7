"""What the tests of the writer process share."""

from __future__ import annotations

import os
import select
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from undaunted.base.inotify import Inotify
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.memory.pool import Pool
from undaunted.checkpointing.writer.job import WriterOptions
from undaunted.checkpointing.writer.process import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from undaunted.checkpointing.memory.pool import Lease

BLOCK = 65536
LONG_S = 60.0  # nothing takes so long but on a machine that hangs


class Shared:
    """A lease of an arena with random content."""

    def __init__(self, lease: Lease, size: int) -> None:
        self.lease = lease
        self.size = size
        self.content = os.urandom(size)
        assert lease.arena is not None
        lease.arena.memory[:size] = self.content


@contextmanager
def shared(blocks: int = 4) -> Iterator[Shared]:
    pool = Pool(1, "test", "wait")
    lease = pool.lease(blocks * BLOCK, LONG_S)
    try:
        yield Shared(lease, blocks * BLOCK)
    finally:
        lease.release()
        pool.close()


@contextmanager
def writer(folder: Path, **options: object) -> Iterator[Writer]:
    one = Writer(str(folder), WriterOptions(**options))
    try:
        yield one
    finally:
        one.abort()


def whole(memory: Shared, name: str = "file") -> list[Image]:
    return [Image(name, 0, memory.size)]


class Watch:
    """Waits until something is written in a folder, from the moment it is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.inotify = Inotify()
        self.inotify.watch(str(folder))

    def wait(self) -> None:
        try:
            poll = select.poll()
            poll.register(self.inotify.fileno(), select.POLLIN)
            assert poll.poll(LONG_S * 1000), "nothing was written"
        finally:
            self.inotify.close()


@contextmanager
def takes_at_most(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds
