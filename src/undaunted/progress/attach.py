"""A rank gets at its page: finds the memory, then claims it if no living process has it.

The value of UNDAUNTED_PAGE is ``v1:PAGES_FD:INDEX:KICK_FD:ACK_FD:AGENT_PID``.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base.descriptors import EVENTFD, identity
from undaunted.base.process import read_stat
from undaunted.progress import layout, record
from undaunted.progress.reader import IDENTITY, header_problem, read_identity

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMFD_LINK = "/memfd:undaunted-pages"


class AttachError(Exception):
    """The page cannot be had; the text says why and what to do."""


@dataclass(slots=True)
class Attachment:
    """A claimed page. Descriptors are -1 where the process has lost them.

    Attributes:
        memory: the page, mapped shared.
        key: device and inode of the memory and index of the page.
        kick_fd: eventfd to write for urgent news.
        ack_fd: eventfd that tells of an answered request.
        again: the same process had it before, that is: it has exec'd since.
    """

    memory: mmap.mmap
    key: tuple[int, int, int]
    kick_fd: int = -1
    ack_fd: int = -1
    again: bool = False


@dataclass(frozen=True, slots=True)
class _Address:
    """The fields of UNDAUNTED_PAGE."""

    pages_fd: int
    index: int
    kick_fd: int
    ack_fd: int
    agent_pid: int


def attach(value: str) -> Attachment:
    """Claim the page that ``value`` names, for this process.

    Raises:
        AttachError: there is none, it is damaged, or a living process has it.
    """
    address = _parse(value)
    with _open_pages(address) as (pages_fd, inherited):
        memory = _map(pages_fd, address.index)
        try:
            with _exclusively(pages_fd, address.index):
                again = _claim(memory)
        except BaseException:
            memory.close()
            raise
        status = os.fstat(pages_fd)
    attachment = Attachment(memory, (status.st_dev, status.st_ino, address.index), again=again)
    # A program that closed the memory's descriptor closed these too: their numbers may be of files
    # that are not ours to write to.
    if inherited and _is_eventfd(address.kick_fd) and _is_eventfd(address.ack_fd):
        attachment.kick_fd, attachment.ack_fd = address.kick_fd, address.ack_fd
    return attachment


def page_key(value: str) -> tuple[int, int, int] | None:
    """Return what `Attachment.key` would be, without claiming anything; None if there is none."""
    try:
        address = _parse(value)
        with _open_pages(address) as (pages_fd, _):
            status = os.fstat(pages_fd)
    except AttachError:
        return None
    return status.st_dev, status.st_ino, address.index


def _is_eventfd(fd: int) -> bool:
    return identity(fd).startswith(EVENTFD)


def _parse(value: str) -> _Address:
    version, *fields = value.split(":")
    if version != "v1" or len(fields) != 5 or not all(f.isascii() and f.isdigit() for f in fields):
        raise AttachError(
            f"UNDAUNTED_PAGE is {value!r}, which this build of undaunted cannot read; use the same "
            "undaunted for the launcher and its ranks"
        )
    return _Address(*map(int, fields))


@contextlib.contextmanager
def _open_pages(address: _Address) -> Iterator[tuple[int, bool]]:
    """Yield a descriptor of the pages, and whether it is the inherited one."""
    if identity(address.pages_fd).startswith(_MEMFD_LINK):
        yield address.pages_fd, True
        return
    path = f"/proc/{address.agent_pid}/fd/{address.pages_fd}"
    try:
        # Looked at before it is opened: if the pid belongs to somebody else by now, opening what
        # it has there might block or have effects.
        if not os.readlink(path).startswith(_MEMFD_LINK):
            raise AttachError(f"the launcher (pid {address.agent_pid}) is gone")
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise AttachError(
            f"the launcher's memory cannot be opened ({path}: {error.strerror}): the launcher is "
            "gone, or something between it and this process closed descriptors and hides /proc"
        ) from None
    try:
        yield fd, False
    finally:
        os.close(fd)


def _map(pages_fd: int, index: int) -> mmap.mmap:
    offset = index * layout.PAGE_BYTES
    try:
        return mmap.mmap(pages_fd, layout.PAGE_BYTES, offset=offset)
    except (OSError, ValueError) as error:
        raise AttachError(f"page {index} of the launcher cannot be mapped: {error}") from None


@contextlib.contextmanager
def _exclusively(pages_fd: int, index: int) -> Iterator[None]:
    """Let no other process claim this page meanwhile; nobody waits, the second one is refused."""
    start = index * layout.PAGE_BYTES
    try:
        fcntl.lockf(pages_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, layout.PAGE_BYTES, start)
    except OSError:
        raise AttachError("another process is attaching to this page") from None
    try:
        yield
    finally:
        fcntl.lockf(pages_fd, fcntl.LOCK_UN, layout.PAGE_BYTES, start)


def _claim(memory: mmap.mmap) -> bool:
    """Make this process the owner; True if it was already."""
    with memoryview(memory) as page, page.cast("Q") as words:
        if problem := header_problem(words):
            raise AttachError(problem)
        me = (os.getpid(), _start_of_living(os.getpid()))
        owner = read_identity(page)
        if owner not in (None, me) and _start_of_living(owner[0]) == owner[1]:
            raise AttachError(f"the page belongs to process {owner[0]}, which is alive")
        again = owner == me
        kept = (words[layout.ATTACHED_NS], words[layout.FIRST_LINE_NS]) if again else (0, 0)
        _clear(page, words)
        words[layout.ATTACHED_NS], words[layout.FIRST_LINE_NS] = kept
        record.write(page, layout.IDENTITY, 1, IDENTITY.pack(*me))
        return again


def _start_of_living(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if it is gone or a zombie."""
    stat = read_stat(pid)
    return 0 if stat is None or stat.state in "ZX" else stat.start_time


def _clear(page: memoryview, words: memoryview) -> None:
    """Forget what the owner before said, but for events and requests, which keep their numbers."""
    words[layout.PHASE] = 0  # first: a reader must not hold anybody to what is half cleared
    for word in (*range(layout.KICKLESS, layout.RING_HEAD), layout.STOP_ASKED, layout.STOP_WANTED):
        words[word] = 0
    start, end = layout.IDENTITY * layout.WORD_BYTES, layout.RING * layout.WORD_BYTES
    page[start:end] = bytes(end - start)
