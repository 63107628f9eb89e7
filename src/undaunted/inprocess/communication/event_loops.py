"""Which threads of this process wait for events of which descriptors, as the kernel tells.

A thread that waits in ``epoll_wait`` says in ``/proc/self/task/TID/syscall`` on which epoll
descriptor, and ``/proc/self/fdinfo/FD`` says what that one watches. Nothing is stopped or traced.
"""

from __future__ import annotations

import os
import platform
import time
from typing import TYPE_CHECKING

from undaunted.inprocess.communication.sockets import Descriptor

if TYPE_CHECKING:
    from collections.abc import Iterable

# Numbers of epoll_wait, epoll_pwait and epoll_pwait2.
_CALLS = {
    "x86_64": frozenset({232, 281, 441}),
    "aarch64": frozenset({22, 441}),
    "riscv64": frozenset({22, 441}),
    "ppc64le": frozenset({238, 303, 441}),
    "s390x": frozenset({251, 312, 441}),
}
_TASKS = "/proc/self/task"


def thread_names() -> dict[int, str]:
    """Return the threads of this process, the youngest first: id and name in the kernel."""
    tids = reversed(os.listdir(_TASKS))
    names = {int(tid): _read(f"{_TASKS}/{tid}/comm").rstrip("\n") for tid in tids}
    return {tid: name for tid, name in names.items() if name}


def waits(tids: Iterable[int], patience_s: float = 0.0) -> dict[int, int]:
    """Return on which epoll descriptors threads wait; those that do something else are left out.

    Args:
        tids: of these threads.
        patience_s: how long to look again at a thread that is not in such a wait.
    """
    found: dict[int, int] = {}
    todo = list(tids)
    deadline = time.monotonic() + patience_s
    while True:
        calls = {tid: _read(f"{_TASKS}/{tid}/syscall") for tid in todo}
        found |= {tid: fd for tid, call in calls.items() if (fd := parse_wait(call)) is not None}
        todo = [tid for tid, call in calls.items() if call and tid not in found]
        if not todo or time.monotonic() >= deadline:
            return found
        os.sched_yield()


def parse_wait(call: str, machine: str = platform.machine()) -> int | None:
    """Parse a line of ``/proc/self/task/TID/syscall``; None = it is no epoll wait.

    The line holds the number of the call, six arguments in hexadecimal, stack and code pointer; or
    it says ``running``.
    """
    words = call.split()
    if len(words) < 2 or not words[0].isdigit() or int(words[0]) not in _CALLS.get(machine, ()):
        return None
    return int(words[1], 16)


def epoll_descriptors() -> list[int]:
    """Return the epoll descriptors of this process."""
    return [int(fd) for fd in os.listdir("/proc/self/fd") if _is_epoll(fd)]


def _is_epoll(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventpoll]"
    except OSError:  # closed meanwhile
        return False


def watched(epoll_fd: int) -> list[Descriptor]:
    """Return what an epoll descriptor watches; nothing if it is none, or closed."""
    return parse_watched(_read(f"/proc/self/fdinfo/{epoll_fd}"))


def parse_watched(text: str) -> list[Descriptor]:
    """Parse ``/proc/self/fdinfo/FD`` of an epoll descriptor."""
    found = []
    for line in text.splitlines():
        words = line.split()
        inode = next((word[4:] for word in words if word.startswith("ino:") and word[4:]), None)
        if words and words[0] == "tfd:" and inode is not None:
            found.append(Descriptor(int(words[1]), int(inode, 16)))
    return found


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123 - pathlib would intern the name
            return file.read()
    except OSError:  # it has ended, or the kernel does not tell
        return ""
