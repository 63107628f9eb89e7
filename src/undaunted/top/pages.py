"""Looks at the pages of an agent on this machine: through its memfd, which is only ever read."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.journal.owner import is_running
from undaunted.progress.area import MEMFD_NAME
from undaunted.progress.layout import PAGE_BYTES
from undaunted.progress.reader import RingEvent, copy_page, parse_page, parse_ring

if TYPE_CHECKING:
    from undaunted.journal.events import JournalOpened
    from undaunted.progress.snapshot import PageSnapshot

# States of a process, as in /proc/PID/stat.
_STOPPED = ("T", "t")
# More ranks than any node has; bounds what is mapped.
_MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class Look:
    """The present content of one page.

    Attributes:
        page: the page.
        events: the newest events of the rank, oldest first.
        state: of the process, a letter as in /proc/PID/stat; "" = there is no such process.
        cpu_s: CPU time that it has used.
    """

    page: PageSnapshot
    events: tuple[RingEvent, ...] = ()
    state: str = ""
    cpu_s: float = 0.0


class Pages:
    """The pages of one agent. Owns a mapping.

    Attributes:
        opened: the launch they belong to.
        running: whether the agent runs; None = that cannot be known here.
        stopped: it was stopped by a signal, or by a debugger.
        front_stopped: the same of its parent, the process that the user started.
        problem: why the pages cannot be read, "" = they can, or the agent has ended.
    """

    def __init__(self, opened: JournalOpened) -> None:
        self.opened = opened
        self.running: bool | None = None
        self.stopped = self.front_stopped = False
        self.problem = ""
        self._memory: mmap.mmap | None = None

    def look(self) -> list[Look]:
        """Return what each local rank shows; nothing if the pages cannot be read."""
        self.running = is_running(self.opened)
        stat = process.read_stat(self.opened.pid) if self.running else None
        self.stopped = stat is not None and stat.state in _STOPPED
        self.front_stopped = stat is not None and process.state(stat.ppid) in _STOPPED
        if not self.running:
            self.close()
            self.problem = _ELSEWHERE if self.running is None else ""
            return []
        if self._memory is None:
            self._open()
        if self._memory is None:
            return []
        with memoryview(self._memory) as whole:
            return [
                _look(whole[start : start + PAGE_BYTES])
                for start in range(0, len(whole), PAGE_BYTES)
            ]

    def close(self) -> None:
        """Release the mapping; `look` makes it anew."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _open(self) -> None:
        pid, self.problem = self.opened.pid, ""
        try:
            fd = _open_memfd(pid)
        except OSError as error:
            self.problem = _refused(pid, error)
            return
        if fd is None:
            return  # not made yet, or closed already
        try:
            size = os.fstat(fd).st_size
            # Between the look at the process and now it may have become another one.
            if size and size % PAGE_BYTES == 0 and size <= _MOST_RANKS * PAGE_BYTES:
                if process.start_time(pid) == self.opened.start_ticks:
                    self._memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
            else:
                self.problem = f"the pages of process {pid} have {size} bytes"
        except OSError as error:
            self.problem = _refused(pid, error)
        finally:
            os.close(fd)


_ELSEWHERE = (
    "the launcher is on another machine or in another container, or the machine was booted since"
)


def _open_memfd(pid: int) -> int | None:
    """Open the agent's pages for reading.

    Raises:
        OSError: this process may not look at that one.
    """
    directory = f"/proc/{pid}/fd"
    for name in os.listdir(directory):
        path = f"{directory}/{name}"
        try:
            target = os.readlink(path)
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith(f"/memfd:{MEMFD_NAME} "):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _refused(pid: int, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"the pages of process {pid} are not shown to this user: run as the launcher's user"
    return f"the pages of process {pid} cannot be read: {error.strerror}"


def _look(memory: memoryview) -> Look:
    with memory, memory.cast("Q") as words:
        copy = copy_page(memory, words)
    page = parse_page(copy)
    if page.problem or not page.pid:
        return Look(page)
    stat = process.read_stat(page.pid)
    if stat is None or stat.start_time != page.pid_start:
        return Look(page, tuple(parse_ring(copy)))
    return Look(page, tuple(parse_ring(copy)), stat.state, stat.cpu_s)
