"""In the writer process: the jobs, one after the other."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.directories import make_private
from undaunted.checkpointing.files.blocks import WriteOptions, write_image
from undaunted.checkpointing.files.direct import follows_umask
from undaunted.checkpointing.files.rate import Bucket
from undaunted.checkpointing.writer.connection import Connection
from undaunted.checkpointing.writer.messages import Failed, ToWriter, Write, Written
from undaunted.checkpointing.writer.remedies import explain

if TYPE_CHECKING:
    import queue
    import socket

    from undaunted.checkpointing.files.storage import Storage
    from undaunted.checkpointing.format.image import Image
    from undaunted.checkpointing.writer.options import WriterOptions
    from undaunted.checkpointing.writer.page import Page

# Who waits for the rate limit shows that often that it is alive, seconds.
_SIGN_OF_LIFE_S = 1.0


class CancelledError(Exception):
    """The trainer has given the job up."""


class Work:
    """A job.

    Attributes:
        write: what to do.
        memory: the arena as it is when the job comes, None: there is none.
        cancelled: set when the trainer gives it up.
    """

    def __init__(self, write: Write, memory: memoryview | None) -> None:
        self.write = write
        self.memory = memory
        self.cancelled = threading.Event()


class Worker:
    """Does them."""

    def __init__(self, url: str, options: WriterOptions, page: Page, sock: socket.socket) -> None:
        """Nothing is done before :meth:`run`.

        Args:
            url: the place of all checkpoints.
            options: how to write.
            page: where progress is shown.
            sock: where answers go; blocking.
        """
        self._url = url
        self._options = options
        self._page = page
        self._answers = Connection(sock, ToWriter)
        self._storage: Storage | None = None  # of objects; folders need none

    def run(self, works: queue.SimpleQueue[Work]) -> None:
        """Do the jobs that come, until the process ends."""
        while True:
            work = works.get()
            answer = self._do(work)
            work.memory = None
            try:
                self._answers.send(answer)
            except OSError:
                return  # the trainer has ended, and soon so does this process

    def _do(self, work: Work) -> Written | Failed:
        pace = _Pace(work, self._options.bandwidth, self._page)
        began, cpu_began = time.monotonic(), time.process_time()
        try:
            pace.wrote(0)
            crc32 = self._write(work, pace)
        except CancelledError:
            return Failed(f"{work.write.target}: cancelled")
        except OSError as error:
            return Failed(explain(error), error.errno)
        except Exception as error:  # noqa: BLE001 - whatever it is, the trainer is told
            return Failed(f"{work.write.target}: {type(error).__name__}: {error}")
        cpu_s = time.process_time() - cpu_began
        return Written(crc32, time.monotonic() - began, pace.total, cpu_s)

    def _write(self, work: Work, pace: _Pace) -> dict[str, str]:
        write, memory = work.write, work.memory
        if memory is None:
            raise ValueError(f"there is no arena in slot {write.slot}")
        for image in write.files:
            _check(image, memory)
        if "://" in write.target:
            return self._write_objects(write, memory, pace)
        return self._write_files(write, memory, pace)

    def _write_files(self, write: Write, memory: memoryview, pace: _Pace) -> dict[str, str]:
        folder = Path(write.target)
        if follows_umask():
            folder.mkdir(parents=True, exist_ok=True)
        else:
            make_private(folder)
        options = WriteOptions(threads=self._options.threads)
        crc32: dict[str, str] = {}
        try:
            for image in write.files:
                crc32[image.name] = write_image(
                    str(folder / image.name), memory, image, write.block_bytes, pace.wrote, options
                )
                pace.wrote(0)
        except BaseException:
            # Space may be what was missing.
            for name in crc32:
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
            raise
        return crc32

    def _write_objects(self, write: Write, memory: memoryview, pace: _Pace) -> dict[str, str]:
        if self._storage is None:
            from undaunted.checkpointing.files.places import open_storage

            self._storage = open_storage(self._url, WriteOptions(self._options.threads))
            pace.wrote(0)  # imports of clients may take long
        storage = self._storage
        return {
            image.name: storage.write(write.target, image, memory, pace.wrote)
            for image in write.files
        }


def _check(image: Image, memory: memoryview) -> None:
    if image.offset < 0 or image.size < 0 or image.offset + image.size > len(memory):
        raise ValueError(f"{image.name} does not lie in its arena of {len(memory)} bytes")
    if "/" in image.name or image.name in ("", ".", ".."):
        raise ValueError(f"{image.name!r} is no name of a file")


class _Pace:
    """Shows progress, keeps the rate, and ends the job when it is cancelled."""

    def __init__(self, work: Work, bandwidth: float | None, page: Page) -> None:
        self.total = 0
        self._work = work
        self._page = page
        self._lock = threading.Lock()
        self._bucket = Bucket(bandwidth, 0.0, time.monotonic()) if bandwidth else None

    def wrote(self, count: int) -> None:
        """Called after each block, by any thread."""
        with self._lock:
            self.total += count
            delay_s = self._bucket.take(count, time.monotonic()) if self._bucket else 0.0
            self._show()
        until = time.monotonic() + delay_s
        while not self._work.cancelled.is_set():
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            self._work.cancelled.wait(min(left_s, _SIGN_OF_LIFE_S))
            with self._lock:
                self._show()
        raise CancelledError

    def _show(self) -> None:
        self._page.show(time.monotonic_ns(), self._work.write.job, self.total)
