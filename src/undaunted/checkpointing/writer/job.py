"""The job of a writer process, and the file in memory between it and the trainer.

The first page has words of 64 bits: when there was progress last (nanoseconds of the monotonic
clock, which is one for all processes of a machine), how many bytes are written, and whether the
trainer has given the job up. The job follows, and behind it the writer puts its answer before it
ends. Both are MessagePack.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from typing import NamedTuple

import msgspec

from undaunted.base.memory import open_memfd
from undaunted.checkpointing.format.image import Image  # noqa: TC001 - a type of a field


class WriterOptions(msgspec.Struct, frozen=True):
    """Settings of a writer process.

    Attributes:
        threads: that write blocks of a file at the same time.
        bandwidth: bytes per second that are written at most; None = no limit.
        nice: priority for the processors, -20 (first) to 19 (last).
        io_class: priority for the disk: ``best-effort`` (its lowest level), ``idle``, or None = as
            the trainer's. Only some I/O schedulers heed it.
        stall_timeout_s: a writer that has something to write and makes no progress for so long is
            killed, seconds.
    """

    threads: int = 4
    bandwidth: float | None = None
    nice: int = 10
    io_class: str | None = None
    stall_timeout_s: float = 60.0

    def check(self) -> None:
        """Raise ValueError, naming the setting, where one makes no sense."""
        if self.threads < 1:
            raise ValueError(f"threads={self.threads}: give 1 or more")
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise ValueError(
                f"bandwidth={self.bandwidth}: give bytes per second, or None for no limit"
            )
        if not self.stall_timeout_s > 0:
            raise ValueError(f"stall_timeout_s={self.stall_timeout_s}: give seconds, more than 0")
        _check_priority(self.nice, self.io_class)


# By what the kernel calls the machine; others do without.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "s390x": 282, "riscv64": 30}
_WHO_PROCESS = 1
_CLASS_SHIFT = 13
# With "best-effort" the lowest of its eight levels.
IO_CLASSES = {"best-effort": (2 << _CLASS_SHIFT) | 7, "idle": 3 << _CLASS_SHIFT}


def _check_priority(nice: int, io_class: str | None) -> None:
    """Raise ValueError for what :func:`lower_priority` would not understand."""
    if not -20 <= nice <= 19:
        raise ValueError(f"nice={nice}: give a number from -20 to 19")
    if io_class is not None and io_class not in IO_CLASSES:
        raise ValueError(f"io_class={io_class!r}: give one of {', '.join(IO_CLASSES)}, or None")


def lower_priority(nice: int, io_class: str | None) -> None:
    """Set the priorities of this thread and of those it will start.

    Failure is ignored: a container may forbid it, and the files are written all the same.

    Args:
        nice: of the processors, -20 (first) to 19 (last).
        io_class: of the disk: ``best-effort`` (its lowest level), ``idle``, or None = as it is.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    number = _IOPRIO_SET.get(os.uname().machine)
    if io_class is not None and number is not None:
        libc = ctypes.CDLL(None)
        libc.syscall(
            *(ctypes.c_long(word) for word in (number, _WHO_PROCESS, 0, IO_CLASSES[io_class]))
        )


_PAGE_BYTES = 4096
_AT, _BYTES, _GIVEN_UP = range(3)  # words
_ONCE_BYTES = 1 << 20


class Job(msgspec.Struct, frozen=True):
    """Files to be written, all or none.

    Attributes:
        url: the place of all checkpoints, folder or URL.
        options: how to write.
        target: folder (created when missing, 0700) or URL that ends with the attempt's name.
        files: where they lie in the arena.
        block_bytes: for the checksums.
    """

    url: str
    options: WriterOptions
    target: str
    files: list[Image]
    block_bytes: int


class Written(msgspec.Struct, tag=True, frozen=True):
    """All files are written and synced (their folder is not)."""

    crc32: dict[str, str]  # by file name, as in manifest.File
    seconds: float
    bytes: int
    cpu_s: float = 0.0  # of processors, since the process began, in seconds


class NotWritten(msgspec.Struct, tag=True, frozen=True):
    """The job was not done; of its files none is left, where they can be removed."""

    message: str
    errno: int | None = None


class Progress(NamedTuple):
    """The progress of the writer.

    Attributes:
        at_s: when it made progress last, seconds of the monotonic clock; 0 = never.
        bytes: that are written.
    """

    at_s: float
    bytes: int


class JobFile:
    """A mapping of the file, at either end."""

    def __init__(self, fd: int) -> None:
        """Map it; the descriptor belongs to this object from now on."""
        self.fd = fd
        try:
            self._end = os.fstat(fd).st_size
            self._map = mmap.mmap(fd, _PAGE_BYTES)
        except BaseException:
            os.close(fd)
            raise
        self._words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls, job: Job) -> JobFile:
        """Make one, for the trainer; OSError when there is no memory."""
        fd = open_memfd("undaunted-writer")
        try:
            _write(fd, bytes(_PAGE_BYTES) + msgspec.msgpack.encode(job), 0)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def job(self) -> Job:
        """For the writer: what to do."""
        return msgspec.msgpack.decode(_read(self.fd, _PAGE_BYTES), type=Job)

    def show(self, now_ns: int, count: int) -> None:
        """For the writer: there is progress, and so many bytes are written."""
        self._words[_BYTES] = count
        self._words[_AT] = now_ns

    def answer(self, answer: Written | NotWritten) -> None:
        """For the writer, before it ends."""
        _write(self.fd, msgspec.msgpack.encode(answer), self._end)

    @property
    def is_given_up(self) -> bool:
        """For the writer: whether to stop between two blocks."""
        return bool(self._words[_GIVEN_UP])

    def give_up(self) -> None:
        """For the trainer: have the writer stop."""
        self._words[_GIVEN_UP] = 1

    def look(self) -> Progress:
        """For the trainer: how far it is."""
        return Progress(self._words[_AT] / 1e9, self._words[_BYTES])

    def answered(self) -> Written | NotWritten | None:
        """For the trainer, when the writer has ended: its answer; None = there is no whole one."""
        try:
            return msgspec.msgpack.decode(_read(self.fd, self._end), type=Written | NotWritten)
        except msgspec.MsgspecError:
            return None

    def close(self) -> None:
        """Release it."""
        self._words.release()
        self._map.close()
        os.close(self.fd)


def _write(fd: int, content: bytes, at: int) -> None:
    rest = memoryview(content)
    while rest:
        count = os.pwrite(fd, rest, at)
        at, rest = at + count, rest[count:]


def _read(fd: int, at: int) -> bytes:
    parts = []
    while part := os.pread(fd, _ONCE_BYTES, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)
