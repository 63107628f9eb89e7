"""The system calls of the I/O engine, past the page cache where the file system allows it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALIGNMENT = 4096  # what O_DIRECT asks of memory, offset and length

# Linux: wait for what is being written, write what is dirty, wait for it.
_WRITE_OUT = 7
_CACHESTAT = 451  # of Linux 6.5, without a name in the C library; cheaper than mincore
_MOST_BUFFERS = 512  # in one call; Linux takes 1,024
_MAP_FAILED = ctypes.c_void_p(-1).value
_RESIDENT = bytes(range(1, 256, 2))  # the lowest bit of what mincore says of a page
UMASK_VARIABLE = "UNDAUNTED_CHECKPOINT_UMASK"
# File systems answer these to what they do not offer.
NOT_OFFERED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY})


def follows_umask() -> bool:
    """Return whether the user wants others to read checkpoints, as far as the umask lets them."""
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
        libc.syscall.restype = ctypes.c_long
        self._has_cachestat = True

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

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill buffers from an offset; return how many bytes there were."""
        return os.preadv(fd, buffers, offset)

    def ask_for(self, fd: int, offset: int, count: int) -> None:
        """Have the kernel begin to read a range into the page cache."""
        with contextlib.suppress(OSError):  # it only makes things faster
            os.posix_fadvise(fd, offset, count, os.POSIX_FADV_WILLNEED)

    def cached(self, fd: int, offset: int, count: int) -> bool:
        """Return whether a range is in the page cache, as far as the kernel tells this user.

        A read that must not wait (RWF_NOWAIT) would tell as well, but it makes the kernel read
        ahead: much would be read from the disk twice.

        Args:
            fd: of the file.
            offset: anywhere.
            count: more than 0.
        """
        start = offset - offset % mmap.PAGESIZE
        count += offset - start
        pages = self._cached_pages(fd, start, count)
        if pages is not None:
            return pages >= -(-count // mmap.PAGESIZE)
        address = self._libc.mmap(None, count, mmap.PROT_READ, mmap.MAP_SHARED, fd, start)
        if address == _MAP_FAILED:
            return False
        try:
            said = ctypes.create_string_buffer(-(-count // mmap.PAGESIZE))
            if self._libc.mincore(address, count, said) != 0:
                return False
            return not said.raw.translate(None, _RESIDENT)
        finally:
            self._libc.munmap(address, count)

    def _cached_pages(self, fd: int, offset: int, count: int) -> int | None:
        """Return how many pages of a range are in the page cache; None = the kernel is too old."""
        if not self._has_cachestat:
            return None
        wanted = (ctypes.c_uint64 * 2)(offset, count)
        found = (ctypes.c_uint64 * 5)()  # the first is the number in the cache
        number, no_flags = ctypes.c_long(_CACHESTAT), ctypes.c_uint(0)
        if self._libc.syscall(number, ctypes.c_int(fd), wanted, found, no_flags) != 0:
            self._has_cachestat = ctypes.get_errno() != errno.ENOSYS
            return None
        return int(found[0])

    def _call(self, name: str, fd: int, *arguments: object) -> None:
        function = getattr(self._libc, name)
        while function(fd, *arguments) != 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number))


FILES = Files()


class DirectReader:
    """An open file: what is in the page cache comes from there, the rest past it.

    Implements `storage.FileReader`. Used by one thread at a time. Errors of the system name the
    path.
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
        self._shared = shared
        self._fd = files.open(path, os.O_RDONLY)
        self._direct: int | None = None  # opened when needed; -1: not offered

    def uses_cache(self, offset: int, count: int) -> bool:
        """Return whether a range is to be read through the page cache, by `fill`.

        It is there, or other processes want it from there, or there is no way past it.
        """
        if not count or offset % ALIGNMENT or count < ALIGNMENT:
            return True
        with self._naming():
            if self._shared:
                self._files.ask_for(self._fd, offset, count)
                return True
            return self._files.cached(self._fd, offset, count) or self._direct_fd() < 0

    def fill(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill buffers, any number of any size, from ``offset`` on, through the page cache.

        Raises:
            EOFError: the file ends before.
        """
        left = [buffer for buffer in buffers if buffer]
        with self._naming():
            while left:
                count = self._files.read(self._fd, left[:_MOST_BUFFERS], offset)
                if count == 0:
                    raise EOFError(f"{self._path}: ends at byte {offset}")
                offset += count
                while left and count >= len(left[0]):
                    count -= len(left.pop(0))
                if count:
                    left[0] = left[0][count:]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See `FileReader`: whole pages of aligned memory are read past the page cache."""
        done = 0
        if not self.uses_cache(offset, len(buffer)):
            with self._naming():
                done = self._read_direct(offset, buffer[: len(buffer) - len(buffer) % ALIGNMENT])
        self.fill(offset + done, [buffer[done:]])

    def close(self) -> None:
        """See `FileReader`."""
        for fd in (self._fd, self._direct):
            if fd is not None and fd >= 0:
                self._files.close(fd)
        self._fd = self._direct = -1

    def _read_direct(self, offset: int, buffer: memoryview) -> int:
        """Return how much was read: all or, where O_DIRECT is not offered, nothing."""
        done = 0
        try:
            while done < len(buffer):
                count = self._files.read(self._direct_fd(), [buffer[done:]], offset + done)
                if count == 0:
                    raise EOFError(f"{self._path}: ends at byte {offset + done}")
                done += count
        except OSError as error:
            if error.errno not in NOT_OFFERED:
                raise
            self._files.close(self._direct_fd())
            self._direct = -1
            return 0
        return done

    def _direct_fd(self) -> int:
        """Return the descriptor that passes the page cache by; -1: not offered."""
        if self._direct is None:
            try:
                self._direct = self._files.open(self._path, os.O_RDONLY | os.O_DIRECT)
            except OSError as error:
                if error.errno not in NOT_OFFERED:
                    raise
                self._direct = -1
        return self._direct

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error

    def __del__(self) -> None:
        """Close what was left open."""
        try:  # noqa: SIM105 - the module that has it may be gone
            self.close()
        except Exception:  # noqa: BLE001, S110 - at the end of the interpreter modules are gone
            pass
