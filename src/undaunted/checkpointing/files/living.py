"""The sessions that are alive: each holds a lock on its file, which ends with its process.

The lock is that of an open file (OFD): a POSIX lock would end when the process reads the file by
another descriptor, as a copy of the folder does. Forks close theirs. NFS has such locks too. Where
a file system has none, every session counts as alive.
"""
# pathlib would double the start of the writer:
# ruff: noqa: PTH104, PTH108, PTH118, PTH119

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple

from undaunted.checkpointing.format import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_RUN_BYTES = 256
_MAX_FILE_BYTES = 1024
_F_OFD_GETLK, _F_OFD_SETLK = 36, 37  # not every build of Python has the names
_LOCK = "hhqqi4x"
_WHOLE_FILE = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
# Paths of the sessions of this process, and of the one that it is a fork of.
_held_here: set[str] = set()
_begun: weakref.WeakSet[Living] = weakref.WeakSet()


class Session(NamedTuple):
    """A session that has a file here.

    Attributes:
        name: of it.
        run: the name of its run, "" without a launcher.
        alive: whether a process holds its lock; None = this cannot be known.
    """

    name: str
    run: str
    alive: bool | None


class Saver(NamedTuple):
    """A session that saves.

    Attributes:
        run: the name of its run, "" without a launcher.
        pid, host: its process.
    """

    run: str
    pid: int
    host: str


class Living:
    """The sessions of one folder."""

    def __init__(self, folder: str) -> None:
        """Args: the folder of checkpoints."""
        self._folder = folder
        self._path: str | None = None
        self._fd = -1
        self._locked = False
        self._saves_since = 0

    def begin(self, session: str, run: str = "") -> None:
        """Let others see that this session is alive, until `end` or the end of the process.

        Args:
            session: its name.
            run: name of the run it belongs to.
        """
        path = os.path.join(self._folder, names.session_file(session))
        if path in (self._path, *_held_here):
            return
        self.end()
        # Locked first and named then: nobody sees it without a lock.
        unnamed = f"{path}.new"
        self._open(unnamed, run)
        try:
            os.rename(unnamed, path)
        except OSError:  # mounted buckets do not rename a file that is open, and have no locks
            os.close(self._fd)
            os.unlink(unnamed)
            self._open(path, run)
        _held_here.add(path)
        _begun.add(self)
        self._path = path

    def _open(self, path: str, run: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with contextlib.suppress(OSError):  # there are no locks: see above
                _lock(fd)
                self._locked = True
            os.truncate(fd, 0)
            os.write(fd, _shortened(run))
        except OSError as error:
            os.close(fd)
            os.unlink(path)
            raise OSError(error.errno, error.strerror, path) from error
        self._fd = fd

    def others(self, run: str) -> bool:
        """Return whether another process has a session of this run that is alive."""
        for session, path in self._elsewhere():
            with contextlib.suppress(OSError):
                if _run_of(path) == _shortened(run) and not self.is_over(session):
                    return True
        return False

    def runs_elsewhere(self) -> list[str]:
        """Return the runs whose sessions live in other processes.

        A name is "" for a run without a launcher. Files of sessions that are over are removed.
        Where there are no locks nobody can tell, and none is returned.
        """
        found = set()
        for session, path in self._elsewhere():
            with contextlib.suppress(OSError):
                run = _run_of(path)
                if not self.is_over(session) and self._locked:
                    found.add(run.decode(errors="replace"))
        return sorted(found)

    def saver(self, is_same: Callable[[str], bool]) -> Saver | None:
        """Let others see that this session saves; return one that did so before and is alive.

        Args:
            is_same: whether a run, by its name, is the one of this session.
        """
        if self._path is None or not self._locked:
            return None  # nobody can tell who is alive
        if not self._saves_since:
            self._saves_since = time.time_ns()
            mark = f"\n{self._saves_since} {os.getpid()} {os.uname().nodename}"
            with contextlib.suppress(OSError):  # a full disk ends the save elsewhere
                os.write(self._fd, mark.encode())
                os.fsync(self._fd)
        mine = (self._saves_since, os.path.basename(self._path))
        for session, path in self._elsewhere():
            with contextlib.suppress(OSError, ValueError):  # it has ended; it does not save
                run, _, mark = _content_of(path).decode(errors="replace").partition("\n")
                since, pid, host = mark.split(" ", 2)
                before = (int(since), os.path.basename(path)) < mine
                if before and not is_same(run) and not self.is_over(session):
                    return Saver(run, int(pid), host)
        return None

    def _elsewhere(self) -> Iterator[tuple[str, str]]:
        """Sessions of other processes, and the paths of their files."""
        for name in os.listdir(self._folder):
            session = names.read_session_file(name)
            path = os.path.join(self._folder, name)
            if session is not None and path not in _held_here:
                yield session, path

    def look(self) -> list[Session]:
        """Return the sessions that have files here; nothing is changed."""
        found = []
        for name in sorted(os.listdir(self._folder)):
            session = names.read_session_file(name)
            if session is not None:
                run = b""
                with contextlib.suppress(OSError):
                    run = _run_of(os.path.join(self._folder, name))
                alive = self.is_alive(session)
                found.append(Session(session, run.decode(errors="replace"), alive))
        return found

    def is_alive(self, session: str) -> bool | None:
        """Return whether a process holds the session's lock; None = this cannot be known.

        Nothing is changed, as opposed to `is_over`.
        """
        path = os.path.join(self._folder, names.session_file(session))
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            return False if error.errno == errno.ENOENT else None
        try:
            held = fcntl.fcntl(fd, _F_OFD_GETLK, _WHOLE_FILE)
            return bool(struct.unpack(_LOCK, held)[0] != fcntl.F_UNLCK)
        except OSError:
            return None
        finally:
            os.close(fd)

    def is_over(self, session: str) -> bool:
        """Return whether the session has ended; its file is then removed."""
        path = os.path.join(self._folder, names.session_file(session))
        if path in _held_here:
            return False
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            return error.errno == errno.ENOENT
        try:
            _lock(fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def end(self) -> None:
        """This session is over; again and again without harm."""
        path, self._path = self._path, None
        if path is None:
            return
        self._saves_since = 0
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(self._fd)
        _held_here.discard(path)

    def leave(self) -> None:
        """Close the file in a fork: the session is its parent's."""
        if self._path is not None:
            self._path = None
            os.close(self._fd)

    def __del__(self) -> None:
        """End what was left."""
        try:  # noqa: SIM105 - the module that has it may be gone
            self.end()
        except Exception:  # noqa: BLE001, S110 - at the end of the interpreter modules are gone
            pass


def _lock(fd: int) -> None:
    """Lock an open file.

    Raises:
        OSError: another one of the same path is locked, or there are no locks.
    """
    try:
        fcntl.fcntl(fd, _F_OFD_SETLK, _WHOLE_FILE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no locks of this kind here


def _leave_all() -> None:
    for living in list(_begun):
        living.leave()


os.register_at_fork(after_in_child=_leave_all)


def _shortened(run: str) -> bytes:
    return run.encode()[:_MAX_RUN_BYTES].replace(b"\n", b" ")


def _run_of(path: str) -> bytes:
    return _content_of(path).partition(b"\n")[0]


def _content_of(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.read(fd, _MAX_FILE_BYTES)
    finally:
        os.close(fd)
