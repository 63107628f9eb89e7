"""What the tests of the writer process share."""

from __future__ import annotations

import mmap
import os
import select
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from undaunted.base.inotify import Inotify
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.writer.handle import WriterProcess
from undaunted.checkpointing.writer.options import WriterOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 65536
LONG_S = 60.0  # nothing takes so long but on a machine that hangs


class Shared:
    """Shared memory with random content."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.content = os.urandom(size)
        self.fd = os.memfd_create("test-arena", os.MFD_CLOEXEC)
        os.truncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)
        self.map[:] = self.content

    def close(self) -> None:
        self.map.close()
        os.close(self.fd)


@contextmanager
def shared(blocks: int = 4) -> Iterator[Shared]:
    memory = Shared(blocks * BLOCK)
    try:
        yield memory
    finally:
        memory.close()


@contextmanager
def writer(folder: Path, **options: object) -> Iterator[WriterProcess]:
    handle = WriterProcess(str(folder), WriterOptions(**options))
    try:
        yield handle
    finally:
        handle.abort()


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
