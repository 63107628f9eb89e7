"""One launcher per node and run directory: a lock, held until its last rank has ended as well."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from undaunted.base import process
from undaunted.base.ids import file_name
from undaunted.fault_tolerance.output.lines import TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# How long the agent of a launcher that was killed may take to end what it has started.
WAIT_S = 10.0
_SIGN_S = 1.0  # within which who has just taken the lock has said so
NO_LOCKS = -1  # in place of a descriptor, where the file system has none
_LONGEST_OWNER = 256  # bytes
_KINDS = {
    stat.S_IFIFO: "FIFO",
    stat.S_IFDIR: "directory",
    stat.S_IFSOCK: "socket",
    stat.S_IFLNK: "symbolic link",
}


class Owner(NamedTuple):
    """The owner of a lock: the launcher's process, and the job it runs ("" = not known)."""

    pid: int
    start: int
    job: str

    @property
    def lives(self) -> bool:
        """Return whether the launcher itself is there, as far as can be seen from this host."""
        return process.start_time(self.pid) == self.start and process.state(self.pid) != "Z"


class _TimeIsUpError(Exception):
    pass


def lock(
    run_dir: str,
    node: str,
    wait_s: float = WAIT_S,
    job: str = "",
    say: Callable[[str], None] = TEXT.show,
) -> int | None:
    """Lock ``run_dir`` for the launcher of ``node``.

    Where another one has it and has been killed, its agent ends in a moment: that is waited for.
    Must be called from the main thread.

    Args:
        run_dir: exists.
        node: name of this node.
        wait_s: longest wait, seconds.
        job: name of the job, for others that find the lock taken, see `owner`.
        say: shows a line, where that is waited for.

    Returns:
        A descriptor to keep (`NO_LOCKS` where there are no locks), or None if it stays taken.
    """
    try:
        fd = os.open(
            _path(run_dir, node), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError:
        return NO_LOCKS  # the journal will say what is wrong with the directory
    try:
        try:
            has_it = _try(fd) or _take_over(fd, run_dir, wait_s, say)
        except KeyboardInterrupt:
            has_it = False
        if not has_it:
            os.close(fd)
            return None
        _sign(fd, job)
    except OSError:
        os.close(fd)
        return NO_LOCKS
    return fd


def no_file(run_dir: str, node: str) -> str:
    """Return what is in the place of the lock or the journal and is no file, with the remedy."""
    for path in (_path(run_dir, node), f"{run_dir}/journal-{node}.jsonl"):
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "device")
            return f"{path} is a {kind}, not a file; remove it, or give another --run-dir"
    return ""


def owner(run_dir: str, node: str) -> Owner | None:
    """Return who has signed the lock last; None if nobody has, or it cannot be read."""
    try:
        fd = os.open(_path(run_dir, node), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return _owner(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def holder(run_dir: str, node: str) -> int | None:
    """Return a process that has the lock open, as far as can be seen; None = there is none.

    That is the launcher, or what it has left behind: its agent, a rank.
    """
    path = os.path.realpath(_path(run_dir, node))
    pids = sorted(map(int, filter(str.isdigit, os.listdir("/proc"))))
    return next((pid for pid in pids if pid != os.getpid() and _has_open(pid, path)), None)


def _has_open(pid: int, path: str) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as fds:
            return any(os.readlink(fd.path) == path for fd in fds)
    except OSError:  # it has ended, or is somebody else's
        return False


def same_job(found: Owner, job: str) -> bool:
    """Return whether the owner's launcher belongs to the job of this name."""
    return found.job == file_name(job)


def _path(run_dir: str, node: str) -> str:
    return f"{run_dir}/.lock-{node}"


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _take_over(fd: int, run_dir: str, wait_s: float, say: Callable[[str], None]) -> bool:
    if _owner_lives(fd):
        return False
    if _wait(fd, min(_SIGN_S, wait_s)):
        return True
    if _owner_lives(fd):  # it began in the same moment as this one
        return False
    say(
        f"the launcher that used {run_dir} before was killed; waiting up to "
        f"{wait_s:g} s until its processes have ended"
    )
    return _wait(fd, wait_s)


def _wait(fd: int, wait_s: float) -> bool:
    try:
        with _alarm(wait_s):
            fcntl.flock(fd, fcntl.LOCK_EX)
    except _TimeIsUpError:
        return False
    return True


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Interrupt a system call after ``seconds`` with `_TimeIsUpError`."""

    def ring(*_: object) -> NoReturn:
        raise _TimeIsUpError

    before = signal.signal(signal.SIGALRM, ring)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGALRM, before)


def _sign(fd: int, job: str) -> None:
    """Write down which process has the lock; without it, others wait in vain for its end."""
    pid = os.getpid()
    words = f"{pid} {process.start_time(pid)} {file_name(job)}\n".encode()
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(fd, 0)
        os.pwrite(fd, words, 0)


def _owner_lives(fd: int) -> bool:
    found = _owner(fd)
    return found is not None and found.lives


def _owner(fd: int) -> Owner | None:
    words = os.pread(fd, _LONGEST_OWNER, 0).decode(errors="replace").split()
    if len(words) < 2 or not all(word.isdigit() for word in words[:2]):
        return None
    return Owner(int(words[0]), int(words[1]), words[2] if len(words) > 2 else "")
