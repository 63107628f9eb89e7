"""The writer process: writes files from an arena, answers, and ends. Started by `process.Writer`.

Without torch and with few imports, so that it is there in hundredths of a second.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.base.directories import make_private
from undaunted.checkpointing.files.blocks import WriteOptions, write_image
from undaunted.checkpointing.files.direct import follows_umask
from undaunted.checkpointing.writer.job import Job, JobFile, NotWritten, Written, lower_priority

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.checkpointing.format.image import Image

# A scheduler sends these to everything; the trainer decides what they mean.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Who waits for the rate limit shows that often that it is alive, seconds.
_SIGN_OF_LIFE_S = 0.5


def main(argv: list[str]) -> None:
    """Do one job.

    Args:
        argv: the descriptors of its file and of the arena, and the trainer's pid.
    """
    _leave_streams()  # first: what is opened would get the numbers of those that are closed
    fd, arena, parent = map(int, argv)
    process.name_process("ckpt-writer")
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # The kernel ends this process with the thread that waits for it, also in the middle of a write.
    if process.die_with_parent(parent):
        if not follows_umask():
            os.umask(0o077)
        file = JobFile(fd)
        job = file.job()
        lower_priority(job.options.nice, job.options.io_class)
        file.answer(do(job, _map(arena), file))
    os._exit(0)  # clients of object stores leave threads


def _leave_streams() -> None:
    """Standard error stays, unless it is closed: an error of this program goes there."""
    null = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1) if sys.stderr else (0, 1, 2):
        os.dup2(null, target)
    if null > 2:
        os.close(null)


def _map(arena: int) -> memoryview:
    return memoryview(mmap.mmap(arena, 0, prot=mmap.PROT_READ))


class CancelledError(Exception):
    """The trainer has given the job up."""


def do(job: Job, memory: memoryview, file: JobFile) -> Written | NotWritten:
    """Do a job; whatever goes wrong, the trainer is told.

    Args:
        job: what to write.
        memory: the arena.
        file: where progress is shown.
    """
    pace = _Pace(job.options.bandwidth, file)
    began = time.monotonic()
    try:
        pace.wrote(0)
        for image in job.files:
            _check(image, memory)
        write = _write_objects if "://" in job.target else _write_files
        crc32 = write(job, memory, pace.wrote)
    except CancelledError:
        return NotWritten(f"{job.target}: cancelled")
    except OSError as error:
        return NotWritten(explain(error), error.errno)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return NotWritten(f"{job.target}: {type(error).__name__}: {error}")
    return Written(crc32, time.monotonic() - began, pace.total, time.process_time())


def _write_files(job: Job, memory: memoryview, wrote: Callable[[int], None]) -> dict[str, str]:
    folder = Path(job.target)
    if follows_umask():
        folder.mkdir(parents=True, exist_ok=True)
    else:
        make_private(folder)
    options = WriteOptions(threads=job.options.threads)
    crc32: dict[str, str] = {}
    try:
        for image in job.files:
            path = str(folder / image.name)
            crc32[image.name] = write_image(path, memory, image, job.block_bytes, wrote, options)
            wrote(0)
    except BaseException:
        # Space may be what was missing.
        for name in crc32:
            with contextlib.suppress(OSError):
                (folder / name).unlink()
        raise
    return crc32


def _write_objects(job: Job, memory: memoryview, wrote: Callable[[int], None]) -> dict[str, str]:
    from undaunted.checkpointing.files.places import open_storage

    storage = open_storage(job.url, WriteOptions(job.options.threads))
    wrote(0)  # imports of clients may take long
    return {image.name: storage.write(job.target, image, memory, wrote) for image in job.files}


def _check(image: Image, memory: memoryview) -> None:
    if image.offset < 0 or image.size < 0 or image.offset + image.size > len(memory):
        raise ValueError(f"{image.name} does not lie in its arena of {len(memory)} bytes")
    if "/" in image.name or image.name in ("", ".", ".."):
        raise ValueError(f"{image.name!r} is no name of a file")


class _Pace:
    """Shows progress, keeps the rate, and ends the job when it is given up."""

    def __init__(self, bandwidth: float | None, file: JobFile) -> None:
        self.total = 0
        self._file = file
        self._lock = threading.Lock()
        self._bucket = Bucket(bandwidth, 0.0, time.monotonic()) if bandwidth else None

    def wrote(self, count: int) -> None:
        """Called after each block, by any thread."""
        with self._lock:
            self.total += count
            delay_s = self._bucket.take(count, time.monotonic()) if self._bucket else 0.0
        until = time.monotonic() + delay_s
        while not self._file.is_given_up:
            with self._lock:
                self._file.show(time.monotonic_ns(), self.total)
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, _SIGN_OF_LIFE_S))
        raise CancelledError


class Bucket:
    """Tells how long to wait after so many bytes. Knows no clock."""

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        """Begin with a full bucket.

        Args:
            rate: bytes per second, more than 0.
            burst: how many bytes may go at once after a pause.
            now_s: of the clock that is given to :meth:`take`, seconds.
        """
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at_s = now_s

    def take(self, count: int, now_s: float) -> float:
        """Take ``count`` bytes; return how many seconds to wait before the next ones.

        Several may wait at once: what one took is counted for all that come later.
        """
        if now_s > self._at_s:
            self._level = min(self._burst, self._level + (now_s - self._at_s) * self._rate)
            self._at_s = now_s
        self._level -= count
        return max(0.0, -self._level / self._rate)


_SPACE = "free space there, keep fewer checkpoints, or save to another place"
_NETWORK = "its server or its mount is gone: mount it again, or save to another place"
_DISK = "the disk or its server fails: see the kernel's log (dmesg), and save to another place"

_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: "free space of this user's or raise the quota",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or save to another file system",
    errno.EROFS: "it is mounted read-only, which the kernel also does after errors: see dmesg",
    errno.EACCES: "let the user of the job write there",
    errno.EPERM: "let the user of the job write there",
    errno.EIO: _DISK,
    errno.ENXIO: _DISK,
    errno.ENODEV: _DISK,
    errno.ESTALE: _NETWORK,
    errno.ENOTCONN: _NETWORK,
    errno.ETIMEDOUT: _NETWORK,
    errno.EHOSTDOWN: _NETWORK,
    errno.EHOSTUNREACH: _NETWORK,
    errno.ENOENT: "somebody has removed the folder: leave what begins with a dot there alone",
    errno.ENOTDIR: "a file is where a folder should be: remove it, or save to another place",
    errno.ELOOP: "a symbolic link is where a file should be: remove it",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENOMEM: "free memory on this node or raise the limit of the job's cgroup",
}


def explain(error: OSError) -> str:
    """Return path, the system's words with the name of the errno, and what to do."""
    number = error.errno or 0
    words = error.strerror or os.strerror(number) if number else str(error)
    name = errno.errorcode.get(number)
    path = error.filename if isinstance(error.filename, str) else ""
    text = f"{path}: {words}" if path else words
    if name:
        text += f" [{name}]"
    remedy = _REMEDIES.get(number)
    return f"{text}; {remedy}" if remedy else text


if __name__ == "__main__":
    main(sys.argv[1:])
