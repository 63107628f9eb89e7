"""What the machine can do: copying memory, and reading and writing a file past the page cache."""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 4 << 20
THREADS = 2


class Raw:
    """A warm buffer as large as the state, copied to, written and read."""

    def __init__(self, tensors: list[torch.Tensor], path: Path) -> None:
        self._tensors = tensors
        self._path = path
        size = sum(tensor.nbytes for tensor in tensors)
        self._size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, self._size)
        whole = torch.frombuffer(self._memory, dtype=torch.uint8)
        whole.zero_()
        if tensors[0].is_cuda:  # as fast as the bus: pinned, which ends with this process
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(whole.data_ptr(), size, 0))
        self._views = []
        at = 0
        for tensor in tensors:
            self._views.append(whole[at : at + tensor.nbytes].view(tensor.dtype))
            at += tensor.nbytes

    def copy(self) -> float:
        """Return the seconds of a copy into memory that is there already."""
        began = time.perf_counter()
        for view, tensor in zip(self._views, self._tensors, strict=True):
            view.copy_(tensor.reshape(-1))
        return time.perf_counter() - began

    def write(self) -> float:
        """Return the seconds of writing the buffer to a new file, synced."""
        self._path.unlink(missing_ok=True)
        began = time.perf_counter()
        fd = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
        os.posix_fallocate(fd, 0, self._size)
        view = memoryview(self._memory)
        self._in_blocks(lambda at, end: os.pwrite(fd, view[at:end], at))
        os.fsync(fd)
        os.close(fd)
        return time.perf_counter() - began

    def read(self) -> float:
        """Return the seconds of reading the file back, from the disk."""
        began = time.perf_counter()
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECT)
        view = memoryview(self._memory)
        self._in_blocks(lambda at, end: os.preadv(fd, [view[at:end]], at))
        os.close(fd)
        return time.perf_counter() - began

    def read_warm(self) -> float:
        """Return the seconds of one read of the whole file from the page cache."""
        view = memoryview(self._memory)
        with self._path.open("rb", buffering=0) as file:
            for _ in range(2):  # the first one fills the page cache
                file.seek(0)
                began, done = time.perf_counter(), 0
                while done < self._size:  # the system takes 2 GiB in one call
                    done += file.readinto(view[done:])
        return time.perf_counter() - began

    def _in_blocks(self, do: object) -> None:
        starts = range(0, self._size, BLOCK)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda at: do(at, min(at + BLOCK, self._size)), starts))  # type: ignore[operator]
