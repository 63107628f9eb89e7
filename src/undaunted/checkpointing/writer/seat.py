"""The place of a writer process: there is always one, however often it dies."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from undaunted.checkpointing.errors import SaveError, WriterError
from undaunted.checkpointing.writer.handle import WriterProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.checkpointing.format.image import Image
    from undaunted.checkpointing.memory.arena import Arena
    from undaunted.checkpointing.memory.pool import Lease
    from undaunted.checkpointing.writer.messages import Written
    from undaunted.checkpointing.writer.options import WriterOptions


class WriterSeat:
    """Starts a writer ahead of the first save, and a new one after a death.

    One thread writes; any thread may end it.
    """

    def __init__(self, url: str, options: WriterOptions) -> None:
        """Start the first writer; it is not waited for."""
        self._url = url
        self._options = options
        self._shared: dict[int, Arena] = {}
        self._process: WriterProcess | None = WriterProcess(url, options)
        self._over = False
        self._changing = threading.Lock()

    def write(self, lease: Lease, target: str, files: Sequence[Image], timeout_s: float) -> Written:
        """Have the files in the arena written and synced.

        Raises:
            SaveError: they are not; the next call may work, unless the writer was ended.
        """
        process = self._present()
        try:
            self._share(process, lease)
            return process.write(target, lease.index, files, timeout_s)
        except WriterError:
            self._leave(process)
            raise

    def bytes_written(self) -> int:
        """Return how much of the latest write is done, in bytes."""
        process = self._process
        return 0 if process is None else process.bytes_written()

    def _present(self) -> WriterProcess:
        with self._changing:
            if self._over:
                raise SaveError("the writer process was ended: the Checkpointer was aborted")
            if self._process is None:
                self._process = WriterProcess(self._url, self._options)
                self._shared.clear()
            return self._process

    def _share(self, process: WriterProcess, lease: Lease) -> None:
        arena = lease.arena
        if arena is not None and self._shared.get(lease.index) is not arena:
            process.share(lease.index, arena.fd, arena.size)
            self._shared[lease.index] = arena

    def _leave(self, process: WriterProcess) -> None:
        process.abort()
        with self._changing:
            if self._process is process:
                self._process = None

    def close(self, timeout_s: float) -> None:
        """End the writer for good."""
        process = self._end()
        if process is not None:
            process.close(timeout_s)

    def abort(self) -> None:
        """End the writer at once and for good; what it writes is given up."""
        process = self._end()
        if process is not None:
            process.abort()

    def _end(self) -> WriterProcess | None:
        with self._changing:
            self._over = True
            process, self._process = self._process, None
            return process
