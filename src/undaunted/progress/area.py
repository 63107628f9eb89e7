"""The agent's side: creates the pages of all local ranks, reads them, answers requests.

Nothing here trusts what ranks write, waits for a rank, or needs torch.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base.descriptors import move_high
from undaunted.base.memory import create_memfd
from undaunted.progress import layout, record
from undaunted.progress.reader import (
    RingEvent,
    copy_page,
    header_problem,
    parse_event,
    parse_page,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from undaunted.progress.limits import Limits
    from undaunted.progress.snapshot import PageSnapshot

MEMFD_NAME = "undaunted-pages"


@dataclass(frozen=True, slots=True)
class MailboxRequest:
    """A request of a rank to the agent. Answer it with `PageArea.answer`, once."""

    sequence: int
    payload: bytes
    generation: int  # how often the page had been reset: an answer to an older one is dropped


@dataclass(slots=True)
class _Cursor:
    """How far the agent has read one page since its last reset."""

    event: int = 0
    request: int = 0
    generation: int = 0


class PageArea:
    """The pages of one node. Owns a memfd and its mapping, and 1 + ``ranks`` eventfds.

    The descriptors are close-on-exec; the starter of workers passes on those of `fds`.

    Attributes:
        ranks: number of local ranks.
        kick_fd: eventfd that becomes readable when a rank has urgent news.
    """

    def __init__(self, ranks: int, pages_fd: int, kick_fd: int, ack_fds: list[int]) -> None:
        self.ranks = ranks
        self.kick_fd = kick_fd
        self._pages_fd = pages_fd
        self._ack_fds = ack_fds
        self._memory = mmap.mmap(pages_fd, ranks * layout.PAGE_BYTES)
        whole = memoryview(self._memory)
        self._bytes = [
            whole[i * layout.PAGE_BYTES : (i + 1) * layout.PAGE_BYTES] for i in range(ranks)
        ]
        self._words = [page.cast("Q") for page in self._bytes]
        self._cursors = [_Cursor() for _ in range(ranks)]
        whole.release()
        for index in range(ranks):
            self.reset(index)

    @classmethod
    def create(cls, ranks: int) -> PageArea:
        """Allocate the pages of ``ranks`` local ranks.

        Raises:
            OSError: no memory or no descriptors are left; the message names the remedy.
        """
        if ranks < 1:
            raise ValueError(f"a node has at least one rank, not {ranks}")
        with contextlib.ExitStack() as undo:
            pages_fd = move_high(create_memfd(MEMFD_NAME, ranks * layout.PAGE_BYTES))
            undo.callback(os.close, pages_fd)
            event_fds = []
            for _ in range(1 + ranks):
                event_fds.append(move_high(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)))
                undo.callback(os.close, event_fds[-1])
            area = cls(ranks, pages_fd, event_fds[0], event_fds[1:])
            undo.pop_all()
        return area

    def fds(self) -> tuple[int, ...]:
        """Return the descriptors workers need, to be passed on under the same numbers."""
        return (self._pages_fd, self.kick_fd, *self._ack_fds)

    def env_value(self, index: int) -> str:
        """Return UNDAUNTED_PAGE for a local rank; this process is named as the agent."""
        ack_fd = self._ack_fds[index]
        return f"v1:{self._pages_fd}:{index}:{self.kick_fd}:{ack_fd}:{os.getpid()}"

    def set_limits(self, limits: Limits) -> None:
        """Tell all ranks the limits they are held to, for ``RankMonitorClient.cfg``.

        What is too long for the page (about 6 KiB of JSON) is left out: first the settings, then
        the limits too, and ranks know of none.
        """
        import msgspec

        from undaunted.progress.limits import CALCULATED

        told = {key: source for key, source in limits.sources.items() if source == CALCULATED}
        limits = msgspec.structs.replace(limits, sources=told)
        bodies = (limits, msgspec.structs.replace(limits, settings={}))
        fitting = (
            one for body in bodies if len(one := msgspec.json.encode(body)) <= layout.LIMITS_BYTES
        )
        body = next(fitting, b"")
        for page, words in zip(self._bytes, self._words, strict=True):
            record.write(page, layout.LIMITS, 1, body)
            words[layout.WARMUP] = max(0, limits.warmup_iterations)

    def reset(self, index: int) -> None:
        """Clear a page for a new rank. No process may own it any more."""
        page, words = self._bytes[index], self._words[index]
        words[layout.MAGIC] = 0
        kept = layout.WARMUP * layout.WORD_BYTES
        page[:kept] = bytes(kept)
        cursor = self._cursors[index]
        cursor.event = cursor.request = 0
        cursor.generation += 1
        words[layout.VERSION] = layout.VERSION_VALUE
        words[layout.MAGIC] = layout.MAGIC_VALUE

    def snapshot(self, index: int) -> PageSnapshot:
        """Read a page as it is now. Never raises: see ``problem`` of the result."""
        return parse_page(copy_page(self._bytes[index], self._words[index]))

    def drain_events(self, index: int) -> tuple[list[RingEvent], int]:
        """Return the events since the last call, oldest first, and how many were missed."""
        page, cursor = self._bytes[index], self._cursors[index]
        if header_problem(self._words[index]):
            return [], 0
        head = self._words[index][layout.RING_HEAD]
        cursor.event = min(cursor.event, head)  # a smaller head is nonsense: begin anew there
        first = max(cursor.event, head - layout.RING_SLOTS) + 1
        events = []
        for sequence in range(first, head + 1):
            found = record.read(page, layout.ring_slot(sequence), layout.RING_BYTES)
            event = parse_event(found[1]) if found and found[0] == sequence else None
            if event is not None:
                events.append(event)
        lost = head - cursor.event - len(events)
        cursor.event = head
        return events, lost

    def take_request(self, index: int) -> MailboxRequest | None:
        """Return a request that was not taken before, or None."""
        cursor = self._cursors[index]
        found = record.read(self._bytes[index], layout.REQUEST, layout.REQUEST_BYTES)
        if found is None or found[0] == cursor.request:
            return None
        cursor.request = found[0]
        return MailboxRequest(found[0], found[1], cursor.generation)

    def answer(self, index: int, request: MailboxRequest, reply: bytes) -> None:
        """Answer a request; a reply beyond 1 KiB is cut short."""
        if request.generation != self._cursors[index].generation:
            return  # the asker is gone
        body = reply[: layout.REPLY_BYTES]
        record.write(self._bytes[index], layout.REPLY, request.sequence, body)
        with contextlib.suppress(BlockingIOError):  # the counter is full: it is readable anyway
            os.eventfd_write(self._ack_fds[index], 1)

    def have_wait(self) -> None:
        """Have ranks wait for `stop_after` that ask whether to stop, from now on.

        Look at `asked` after this: what is asked later is asked by a rank that sees this.
        """
        for words in self._words:
            words[layout.STOP] = words[layout.STOP] or 1

    def asked(self) -> list[int | None]:
        """Return the iteration that each rank has asked about last: whether to stop after it.

        That is -1 if it has not asked yet, None if it never asks, and `layout.STOPPED_ALONE` if it
        has stopped and did not ask. A rank that asks no more has asked before.
        """
        asked: list[int | None] = []
        for words in self._words:
            word = words[layout.STOP_ASKED]
            if word != layout.STOPPED_ALONE:
                word = word % layout.LEFT - 2 if word < 2 * layout.LEFT else -2
            known = -1 <= word < layout.QUESTIONS or word == layout.STOPPED_ALONE
            asked.append(word if known else None)
        return asked

    def asks(self, index: int) -> bool:
        """Return whether a rank asks whether to stop, now and in the future."""
        return 0 < self._words[index][layout.STOP_ASKED] < layout.QUESTIONS

    def stop_after(self, iteration: int, why: str) -> None:
        """Have all ranks stop after an iteration; ``why``: one of `layout.STOP_REASONS`."""
        for words in self._words:
            words[layout.STOP] = layout.stop_word(iteration, why)

    def stops_after(self, index: int) -> int | None:
        """Return after which iteration a rank stops, None = that is not known."""
        known = layout.stop_of(self._words[index][layout.STOP])
        return None if known is None else known[0]

    def drain_kick(self) -> None:
        """Forget all kicks so far; look at the pages after this, not before."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.kick_fd)

    def kickless(self, index: int) -> bool:
        """Tell whether this rank cannot kick, so that its page must be looked at now and then."""
        return bool(self._words[index][layout.KICKLESS])

    def close(self) -> None:
        """Release mapping and descriptors. May be called twice."""
        if self._memory.closed:
            return
        for view in (*self._words, *self._bytes):
            view.release()
        self._memory.close()
        for fd in self.fds():
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
