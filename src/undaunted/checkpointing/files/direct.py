"""The system calls of the I/O engine, past the page cache where the file system allows it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIGNMENT = 4096  # what O_DIRECT asks of memory, offset and length

# Linux: wait for what is being written, write what is dirty, wait for it.
_WRITE_OUT = 7
_MAP_FAILED = ctypes.c_void_p(-1).value
_RESIDENT = bytes(range(1, 256, 2))  # the lowest bit of what mincore says of a page
UMASK_VARIABLE = "UNDAUNTED_CHECKPOINT_UMASK"
# File systems answer these to what they do not offer.
NOT_OFFERED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY})


def follows_umask() -> bool:
    """Whether the user wants others to read checkpoints, as far as the umask lets them."""
    return os.environ.get(UMASK_VARIABLE) == "1"


def file_mode() -> int:
    """Return the mode of files that are made: for this user alone, unless the umask decides."""
    return 0o666 if follows_umask() else 0o600


def folder_mode() -> int:
    """Return that of folders."""
    return 0o777 if follows_umask() else 0o700


class Files:
    """Everything the engine asks of the system; every method may raise OSError.

    Tests derive from it to make faults.
    """

    def __init__(self) -> None:
        """Bind the calls that Python has no names for."""
        self._libc = libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
        libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)

    def open(self, path: str, flags: int) -> int:
        """Open a file that is not a symbolic link."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, file_mode())

    def close(self, fd: int) -> None:
        """Close it."""
        os.close(fd)

    def remove(self, path: str) -> None:
        """Remove a file."""
        Path(path).unlink()

    def allocate(self, fd: int, size: int) -> None:
        """Reserve the blocks of ``size`` bytes and make the file that long.

        The C library's ``posix_fallocate`` would touch every block where this is not offered.
        """
        self._call("fallocate", fd, 0, ctypes.c_int64(0), ctypes.c_int64(size))

    def set_direct(self, fd: int, *, on: bool) -> None:
        """Pass the page cache by, or no longer."""
        import fcntl

        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        """Write at an offset; return how many bytes were taken."""
        return os.pwrite(fd, data, offset)

    def write_out(self, fd: int, offset: int, count: int) -> None:
        """Wait until a range is on the disk; that it can be found there takes :meth:`sync`."""
        self._call("sync_file_range", fd, ctypes.c_int64(offset), ctypes.c_int64(count), _WRITE_OUT)

    def cut(self, fd: int, size: int) -> None:
        """Set the length."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Make content and length durable."""
        os.fsync(fd)

    def free_bytes(self, fd: int) -> int:
        """Return how much this user can still write on the file's file system."""
        stat = os.fstatvfs(fd)
        return stat.f_bavail * stat.f_frsize

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        """Fill buffers from an offset; return how many bytes there were."""
        return os.preadv(fd, buffers, offset, flags)

    def cached(self, fd: int, offset: int, count: int) -> bool:
        """Return whether a range is in the page cache, as far as the kernel tells this user.

        A read that must not wait (RWF_NOWAIT) would tell as well, but it makes the kernel read
        ahead: much would be read from the disk twice.

        Args:
            fd: of the file.
            offset: a multiple of the page size.
            count: more than 0.
        """
        address = self._libc.mmap(None, count, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
        if address == _MAP_FAILED:
            return False
        try:
            pages = ctypes.create_string_buffer(-(-count // mmap.PAGESIZE))
            if self._libc.mincore(address, count, pages) != 0:
                return False
            return not pages.raw.translate(None, _RESIDENT)
        finally:
            self._libc.munmap(address, count)

    def _call(self, name: str, fd: int, *arguments: object) -> None:
        function = getattr(self._libc, name)
        while function(fd, *arguments) != 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number))


FILES = Files()


class DirectReader:
    """An open file: what is in the page cache comes from there, the rest past it.

    Implements `storage.FileReader`. Used by one thread at a time.
    """

    def __init__(self, path: str, files: Files = FILES, *, shared: bool = False) -> None:
        """Open the file.

        Args:
            path: of the file.
            files: the system calls.
            shared: other processes of this machine read the same: it is left in the page cache for
                them, instead of being read past it by each.

        Raises:
            OSError: it cannot be opened.
        """
        self._path = path
        self._files = files
        self._fd = files.open(path, os.O_RDONLY)
        # Opened when needed; -1: not offered, or not wanted.
        self._direct: int | None = -1 if shared else None
        self._nowait = getattr(os, "RWF_NOWAIT", 0)

    def read_cached(self, offset: int, buffers: Sequence[memoryview]) -> bool:
        """Fill buffers with what lies at ``offset`` if all of it is in the page cache.

        Otherwise return False; what is in the buffers is then of no meaning.
        """
        wanted = sum(len(buffer) for buffer in buffers)
        if not (wanted and self._nowait and self._is_cached(offset, wanted)):
            return False
        try:
            count = self._files.read(self._fd, buffers, offset, self._nowait)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in NOT_OFFERED:
                raise OSError(error.errno, error.strerror, self._path) from error
            self._nowait = 0
            return False
        return count == wanted

    def _is_cached(self, offset: int, count: int) -> bool:
        start = offset - offset % mmap.PAGESIZE
        return self._files.cached(self._fd, start, offset + count - start)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See `FileReader`: whole blocks of aligned memory are read past the page cache."""
        if self.read_cached(offset, [buffer]):
            return
        whole = len(buffer) - len(buffer) % ALIGNMENT if offset % ALIGNMENT == 0 else 0
        try:
            done = self._read_direct(offset, buffer[:whole]) if whole else 0
            self._read(self._fd, offset + done, buffer[done:])
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error

    def close(self) -> None:
        """See `FileReader`."""
        for fd in (self._fd, self._direct):
            if fd is not None and fd >= 0:
                self._files.close(fd)
        self._fd = self._direct = -1

    def _read_direct(self, offset: int, buffer: memoryview) -> int:
        """Return how much was read: all or, where O_DIRECT is not offered, nothing."""
        try:
            if self._direct is None:
                self._direct = self._files.open(self._path, os.O_RDONLY | os.O_DIRECT)
            if self._direct >= 0:
                self._read(self._direct, offset, buffer)
                return len(buffer)
        except OSError as error:
            if error.errno not in NOT_OFFERED:
                raise
            if self._direct is not None:
                self._files.close(self._direct)
            self._direct = -1
        return 0

    def _read(self, fd: int, offset: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            count = self._files.read(fd, [buffer[done:]], offset + done)
            if count == 0:
                raise EOFError(f"{self._path}: ends at byte {offset + done}")
            done += count

    def __del__(self) -> None:
        """Close what was left open."""
        try:  # noqa: SIM105 - the module that has it may be gone
            self.close()
        except Exception:  # noqa: BLE001, S110 - at the end of the interpreter modules are gone
            pass
