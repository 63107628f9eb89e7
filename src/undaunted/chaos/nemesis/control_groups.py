"""Control groups of Linux: one of its own for a run.

With version 2, a group is made beside or above our own one, where the controllers are enabled for
children; with version 1, below our own one. Nothing of the machine is changed for that. A group is
locked while its owner lives, so that the next one sees what a killed one has left, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.cgroups import own_groups
from undaunted.chaos.nemesis.helper import NotPossibleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFIX = "undaunted-chaos-"
PROCESSES = "cgroup.procs"
_ENABLED = "cgroup.subtree_control"
_EVENTS = "cgroup.events"  # of version 2 only
_EMPTY_S = 10.0
_EVENTS_BYTES = 4096


class Group:
    """A control group that was made. The owner calls `close`.

    Attributes:
        path: its directory.
    """

    def __init__(self, parent: Path) -> None:
        """Make it, and remove those that dead owners have left there.

        Raises:
            NotPossibleError: it cannot be made.
        """
        remove_left_over(parent)
        self.path = parent / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        try:
            with contextlib.ExitStack() as undo:
                self.path.mkdir(mode=0o755)
                undo.callback(self.path.rmdir)
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                undo.callback(os.close, self._lock)
                fcntl.flock(self._lock, fcntl.LOCK_EX)  # others hold it for a moment at most
                undo.pop_all()
        except OSError as error:
            raise NotPossibleError(
                f"{parent}: no control group can be made there ({error.strerror}); run as root, or "
                "where that directory is yours"
            ) from None

    def write(self, name: str, text: str) -> None:
        """Set something.

        Raises:
            NotPossibleError: the kernel refused.
        """
        try:
            (self.path / name).write_text(text, encoding="ascii")
        except OSError as error:
            raise NotPossibleError(f"{self.path / name}: {error.strerror}") from None

    def close(self) -> None:
        """End what is still in it, and remove it. Version 1 cannot end it: it moves out.

        If that takes too long, it is left to the next one who makes a group here.
        """
        with contextlib.suppress(OSError):
            if (self.path / _EVENTS).exists():
                self._end_all()
            else:
                self._move_out()
            self.path.rmdir()
        os.close(self._lock)

    def _move_out(self) -> None:
        for pid in _read(self.path / PROCESSES).split():
            with contextlib.suppress(ProcessLookupError):
                (self.path.parent / PROCESSES).write_text(pid, encoding="ascii")

    def _end_all(self) -> None:
        with contextlib.suppress(OSError):  # kernels before 5.14 have no such file
            (self.path / "cgroup.kill").write_text("1", encoding="ascii")
        deadline = time.monotonic() + _EMPTY_S
        fd = os.open(self.path / _EVENTS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            poller = select.poll()
            poller.register(fd, select.POLLPRI)
            while b"populated 1" in os.pread(fd, _EVENTS_BYTES, 0):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                poller.poll(left * 1000)
        finally:
            os.close(fd)


def remove_left_over(parent: Path) -> None:
    """Remove groups whose owner has died, as far as nothing runs in them any more."""
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, or another one removes it
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.rmdir()
            finally:
                os.close(fd)


def find_parent(controllers: Iterable[str], root: Path = Path("/")) -> Path:
    """Return the directory in which a group of version 2 has these controllers.

    It is the nearest to our own group.

    Args:
        controllers: their names.
        root: of the file system; another one in tests.

    Raises:
        NotPossibleError: there is none; the message says which file says so.
    """
    wanted = set(controllers)
    mounts = root / "proc/self/mountinfo"
    mounted = mount_of_version_2(_read(mounts))
    if mounted is None:
        raise NotPossibleError(f"no control groups of version 2 are mounted ({mounts})")
    inside, place = mounted
    top = root / place.lstrip("/")
    missing = wanted - set(_read(top / "cgroup.controllers").split())
    if missing:
        raise NotPossibleError(
            f"{top / 'cgroup.controllers'} lacks {_words(missing)}: the kernel does not have "
            "it, or version 1 of control groups has it, or this container may not use it"
        )
    for path in _upwards(own_groups(root).get("", "/"), inside):
        candidate = top / path
        if wanted <= set(_read(candidate / _ENABLED).split()):
            return candidate
    missing = wanted - set(_read(top / _ENABLED).split())
    enable = " ".join(f"+{name}" for name in sorted(missing or wanted))
    raise NotPossibleError(
        f"{top / _ENABLED} lacks {_words(missing or wanted)}: no group above this process lets its "
        f"children have it; as root: echo {enable} > {top / _ENABLED}"
    )


def find_parent_of_version_1(controller: str, root: Path = Path("/")) -> Path | None:
    """Return the directory of our group of a controller of version 1, None if that has it not.

    Args:
        controller: its name.
        root: of the file system; another one in tests.
    """
    mounted = mount_of_version_1(_read(root / "proc/self/mountinfo"), controller)
    if mounted is None:
        return None
    inside, place = mounted
    own = own_groups(root).get(controller, "/")
    return root / place.lstrip("/") / next(_upwards(own, inside))


def mount_of_version_1(mountinfo: str, controller: str) -> tuple[str, str] | None:
    """Return which part of a controller's tree of groups is mounted where, None if none is."""
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        words, options = mount.split(), kind.split()
        if options[:1] == ["cgroup"] and len(words) > 4 and controller in options[-1].split(","):
            return words[3], words[4]
    return None


def mount_of_version_2(mountinfo: str) -> tuple[str, str] | None:
    """Return which part of the tree of groups is mounted where, None if none is."""
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        words = mount.split()
        if kind.startswith("cgroup2 ") and len(words) > 4:
            return words[3], words[4]
    return None


def _upwards(own: str, inside: str) -> Iterator[str]:
    """Yield our group and those above it, relative to what is mounted; the top is "" and last."""
    path = own.strip("/")
    inside = inside.strip("/")
    if inside:
        path = path[len(inside) :].strip("/") if f"{path}/".startswith(f"{inside}/") else ""
    if ".." in path.split("/"):
        path = ""  # our group lies outside of what this container sees
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield ""


def _words(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
