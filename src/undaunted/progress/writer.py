"""The rank's side of a page: what a training process is doing, told in a few memory stores.

Nothing here blocks, takes a lock, raises because monitoring failed, or needs anybody to read. The
one exception is `PageWriter.request`, which waits for an answer until its deadline.

A process has one writer, `current`: on the page named by UNDAUNTED_PAGE, or, without a launcher, a
`NullWriter`, which does the same things to separate memory. Children forked by the rank get such
memory as well, under the writers and sections they know.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import threading
from collections import deque
from time import monotonic_ns, thread_time_ns
from typing import TYPE_CHECKING, Any, Final, Literal

from undaunted.base.descriptors import identity, is_still
from undaunted.progress import layout, record
from undaunted.progress.attach import AttachError, Attachment, attach, page_key
from undaunted.progress.layout import (
    HEARTBEAT_MAX_NS,
    HEARTBEAT_NS,
    HEARTBEATS,
    ITERATION,
    ITERATION_NS,
    STOP,
    STOP_ASKED,
)
from undaunted.progress.reader import EVENT
from undaunted.progress.section import Section, encoded_name, keep_longest
from undaunted.progress.snapshot import Maxima, Phase

if TYPE_CHECKING:
    import logging
    import mmap
    from collections.abc import Callable

Milestone = Literal["attached", "first_line", "initialized"]

PAGE_VARIABLE = "UNDAUNTED_PAGE"
EVENT_NAME_BYTES = 64
# Of one step in so many, by iteration, the CPU time of the thread is noted: that is a system call.
CHUNK = 5
# How often the page is looked at for a reply where no eventfd tells of it.
_POLL_S = 0.05
_STEPS = 2048  # kept; as many as the Flight Recorder of `undaunted run` has entries
_WORD: Final = "L"  # 64 bits, as "Q"; Python stores a large number faster
_NO_LAUNCHER = f"{PAGE_VARIABLE} is not set"

on_step: Callable[[int], object] | None = None
"""Called by every step with its iteration, after it was stored. For fault injection."""

_MILESTONES = {
    "attached": layout.ATTACHED_NS,
    "first_line": layout.FIRST_LINE_NS,
    "initialized": layout.INITIALIZED_NS,
}


class PageWriter:
    """Writes one page.

    Attributes:
        attached: somebody may be reading it.
        reason: why not, "" otherwise.
        steps: the newest ones: when each began, CLOCK_MONOTONIC in ns; its iteration + 1; the CPU
            time of its thread until then, ns, 0 = not noted.
    """

    def __init__(
        self, memory: mmap.mmap | bytearray, attachment: Attachment | None, reason: str = ""
    ) -> None:
        self.attached = attachment is not None
        self.reason = reason
        self._attachment = attachment
        self._bytes = memoryview(memory)
        self._words = self._bytes.cast(_WORD)
        self.steps: deque[tuple[int, int, int]] = deque(maxlen=_STEPS)
        # The page has these of heartbeats, too; an attribute costs less to read.
        self.last_beat = 0  # 0 = none since monitoring began
        self.heartbeats = 0
        self.longest_gap = 0  # after the warm-up
        self._stepped = False  # an iteration was stored
        self._warned = False  # of one that is none
        self._sections: dict[str, Section] = {}
        self._free_slots = iter(range(layout.SECTION_SLOTS - 1))
        others = layout.section_slot(layout.SECTION_SLOTS - 1)
        self._open_now: list[None] = []
        self._others = Section(layout.OTHERS, self._words, others, self._open_now)
        self._event_numbers = itertools.count(self._words[layout.RING_HEAD] % 2**32 + 1)
        self._mailbox: Mailbox | None = None
        self._kick_file = ""
        if attachment is not None:
            self._kick_file = identity(attachment.kick_fd)
            self._mailbox = Mailbox(self._bytes, self._kick, attachment.ack_fd)

    @classmethod
    def attach(cls, value: str) -> PageWriter:
        """Claim the page that ``value`` (UNDAUNTED_PAGE) names and make its writer `current`.

        Asked again for the page it has, a process gets the same writer.

        Returns:
            A `NullWriter` that gives the reason if there is no such page or it is somebody else's.
        """
        global current  # noqa: PLW0603 - one writer per process is what this is about
        if isinstance(current, PageWriter) and current.has(page_key(value)):
            return current
        try:
            attachment = attach(value)
        except (AttachError, OSError) as error:
            return NullWriter(str(error))
        writer = cls(attachment.memory, attachment)
        writer._begin()
        current = writer
        return writer

    # --- the fast ones --------------------------------------------------------------------------

    def heartbeat(self) -> None:
        """Say that the rank makes progress."""
        last = self.last_beat
        now = self.last_beat = monotonic_ns()
        if not last:
            self._first_heartbeat(now)
            return
        words = self._words
        words[HEARTBEAT_NS] = now
        words[HEARTBEATS] = self.heartbeats = self.heartbeats + 1
        if now - last > self.longest_gap:
            self.keep_longest_gap(now - last)

    def step(self, iteration: int) -> None:
        """Say that iteration number ``iteration`` (from 0) begins; counts as a heartbeat.

        What is no such number is a heartbeat only, with one warning. Never raises.
        """
        words, last = self._words, self.last_beat
        now = self.last_beat = monotonic_ns()
        if last:  # as in `heartbeat`: a call would be a tenth of all this
            words[HEARTBEAT_NS] = now
            words[HEARTBEATS] = self.heartbeats = self.heartbeats + 1
            if now - last > self.longest_gap:
                self.keep_longest_gap(now - last)
        else:
            self._first_heartbeat(now)
        try:
            words[ITERATION] = iteration + 1
        except (TypeError, ValueError):
            self._store_odd_iteration(iteration)
        words[ITERATION_NS] = now
        number = words[ITERATION]
        self.steps.append((now, number, thread_time_ns() if number % CHUNK == 1 else 0))
        if not self._stepped:
            self._first_step(iteration)
        if on_step is not None:
            on_step(iteration)

    def section(self, name: str) -> Section:
        """Return the section of this name, to be used with ``with``."""
        try:
            return self._sections[name]
        except KeyError:
            return self._new_section(name)

    def open_section(self, name: str) -> None:
        """Enter a section."""
        self.section(name).__enter__()

    def close_section(self, name: str) -> None:
        """Leave a section; one that is not open is left alone."""
        self.section(name).__exit__(None, None, None)

    # --- the rare ones --------------------------------------------------------------------------

    def close_all(self) -> None:
        """Leave all sections, as often as they were entered."""
        for section in (*self._sections.values(), self._others):
            section.close()

    def initialize(self, warmup_iterations: int | None = None) -> None:
        """Say that monitoring begins: limits apply from now on, also after `shut_down`.

        Args:
            warmup_iterations: how many iterations are warm-up, None = as the launcher says.
        """
        self._words[layout.WARMUP_ITERATIONS] = (
            0 if warmup_iterations is None else 1 + max(0, warmup_iterations)
        )
        self._words[layout.INITIALIZED_NS] = monotonic_ns()
        # The phase last: a reader that sees it sees the rest.
        self._words[layout.PHASE] = Phase.STEPPING if self._stepped else Phase.INITIALIZED
        self._kick()

    def shut_down(self) -> None:
        """Say that monitoring ends: no limits apply until `initialize`."""
        # The phase first: what follows would otherwise look like a rank that fell silent.
        self._words[layout.PHASE] = Phase.SHUT_DOWN
        self.close_all()
        for word in (
            layout.INITIALIZED_NS,
            layout.FIRST_HEARTBEAT_NS,
            layout.HEARTBEAT_NS,
            layout.LAST_CLOSE_NS,
        ):
            self._words[word] = 0
        self.last_beat = 0
        self._kick()

    def leave(self) -> None:
        """Say that the program has ended, if it was watched: its interpreter shuts down now."""
        if self._words[layout.PHASE] in (Phase.INITIALIZED, Phase.STEPPING):
            self._words[layout.LEAVING_NS] = monotonic_ns()
            self._words[layout.PHASE] = Phase.LEAVING
            self._kick()

    def milestone(self, name: Milestone) -> None:
        """Store when a milestone was passed, the first time, and tell the agent."""
        word = _MILESTONES[name]
        if not self._words[word]:
            self._words[word] = monotonic_ns()
            self._kick()

    def arm_evidence(self, signal: int) -> None:
        """Say that faulthandler writes all stacks on ``signal``; 0 = not any more."""
        self._words[layout.EVIDENCE_SIGNAL] = signal

    def event(self, name: str, text: str = "") -> None:
        """Add a small event to the ring; it is cut short where it is too long.

        The agent reads the ring once a second, and whenever it looks at the page. Of events that
        come faster than that it gets the newest 32, and the number of the others.

        Args:
            name: what kind of event, up to 64 bytes.
            text: up to 220 bytes together with the name.
        """
        head = str(name).encode(errors="replace")[:EVENT_NAME_BYTES]
        body = str(text).encode(errors="replace")[: layout.RING_BYTES - EVENT.size - len(head)]
        number = next(self._event_numbers)
        content = EVENT.pack(monotonic_ns(), len(head), len(body)) + head + body
        record.write(self._bytes, layout.ring_slot(number), number, content)
        self._words[layout.RING_HEAD] = number

    # --- stops that all ranks agree on, see docs/design/training.md -----------------------------

    def will_ask(self) -> None:
        """Say that this rank asks now and then whether to stop; it need not be signalled."""
        self._words[layout.STOP_ASKED] = 1

    def asks_no_more(self) -> None:
        """Take that back: the next signal is for this rank. What was asked last stays known."""
        words = self._words
        if words[layout.STOP_ASKED] == layout.STOPPED_ALONE:
            return  # the reason has to stay known
        words[layout.STOP_WANTED] = 0
        words[layout.STOP_ASKED] = layout.LEFT + words[layout.STOP_ASKED] % layout.LEFT

    def stops_alone(self) -> None:
        """Say that this rank stops and asks nobody."""
        self._words[layout.STOP_ASKED] = layout.STOPPED_ALONE

    def asked(self, iteration: int) -> int:
        """Ask whether to stop after this iteration; return the word `layout.STOP`."""
        words = self._words
        words[STOP_ASKED] = iteration + 2  # before the other word is looked at
        word: int = words[STOP]
        return word

    @property
    def stop_word(self) -> int:
        """The word `layout.STOP`."""
        word: int = self._words[layout.STOP]
        return word

    @property
    def asks(self) -> bool:
        """Return whether this rank asks now and then whether to stop."""
        word: int = self._words[layout.STOP_ASKED]
        return 0 < word < layout.LEFT

    def want_stop(self, why: str, rank: int | None = None) -> None:
        """Have all ranks stop. For signal handlers, too.

        Args:
            why: one of `layout.WANTED`.
            rank: which one is the reason, None = none is.
        """
        self._words[layout.STOP_WANTED] = layout.wish_word(why, rank)
        self._kick()

    def maxima(self) -> Maxima:
        """Return the longest of each kind, warm-up included."""
        words = self._words
        began, first = words[layout.INITIALIZED_NS], words[layout.FIRST_HEARTBEAT_NS]
        since = words[layout.LAST_CLOSE_NS] or began
        outside_ns = max(words[layout.OUTSIDE_MAX_NS : layout.OUTSIDE_MAX_NS + 2])
        outside_ns = max(outside_ns, words[layout.OUTSIDE_FIRST_NS])
        if since and not self._open_now:
            outside_ns = max(outside_ns, monotonic_ns() - since)
        sections = {name: section.longest_ns for name, section in list(self._sections.items())}
        return Maxima(
            initial_ns=max(1, first - began) if began and first else 0,
            subsequent_ns=max(words[HEARTBEAT_MAX_NS : HEARTBEAT_MAX_NS + 2]),
            out_of_section_ns=outside_ns,
            sections_ns={name: longest for name, longest in sections.items() if longest},
        )

    def record_error(self, error: BaseException) -> None:
        """Store an exception that ends this rank, and tell the agent."""
        from undaunted.base.signals import handlers_off
        from undaunted.progress.error_text import encode_error

        with handlers_off():
            record.write(self._bytes, layout.ERROR, 1, encode_error(error, monotonic_ns()))
            self._words[layout.PHASE] = Phase.FAILED
            self._kick()

    def limits_json(self) -> bytes:
        """Return the limits this rank is held to as JSON, b"" if the launcher did not say."""
        found = record.read(self._bytes, layout.LIMITS, layout.LIMITS_BYTES)
        return found[1] if found else b""

    def request(self, payload: bytes, timeout_s: float) -> bytes:
        """Ask something of the agent and wait for its answer.

        Args:
            payload: up to 4096 bytes.
            timeout_s: how long to wait, seconds.

        Raises:
            RuntimeError: there is no launcher to ask.
            ValueError: the payload is too long.
            TimeoutError: no answer came.
        """
        if self._mailbox is None:
            raise RuntimeError(f"there is no launcher to ask: {self.reason}")
        return self._mailbox.request(payload, timeout_s)

    @property
    def iteration(self) -> int | None:
        """The last iteration that has begun, None = none that is known."""
        return self._words[ITERATION] - 1 if self._stepped else None

    @property
    def progress(self) -> int:
        """The time of the last heartbeat or left section, CLOCK_MONOTONIC in nanoseconds."""
        return max(self._words[HEARTBEAT_NS], self._words[layout.LAST_CLOSE_NS])

    def detach(self, reason: str = "detached") -> None:
        """Leave the page alone from now on: everything goes to memory of this process's own."""
        global current  # noqa: PLW0603 - one writer per process is what this is about
        if self._attachment is None:
            return
        self._move_to_own_memory(reason)
        if current is self:
            current = _NotYet()

    def has(self, key: tuple[int, int, int] | None) -> bool:
        """Tell whether this writer has the page with this key."""
        return self._attachment is not None and self._attachment.key == key

    # --- below ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        assert self._attachment is not None
        if not self._words[layout.ATTACHED_NS]:
            self._words[layout.ATTACHED_NS] = monotonic_ns()
        self._words[layout.PHASE] = Phase.STARTING
        self._kick()

    def _first_heartbeat(self, now: int) -> None:
        words = self._words
        words[layout.FIRST_HEARTBEAT_NS] = now
        words[HEARTBEAT_NS] = now
        words[HEARTBEATS] = self.heartbeats = self.heartbeats + 1
        self._first_use()

    def keep_longest_gap(self, gap_ns: int) -> None:
        """Store a gap between heartbeats that is longer than all since the warm-up."""
        keep_longest(self._words, self.heartbeats - 1, HEARTBEAT_MAX_NS, gap_ns)
        self.longest_gap = self._words[HEARTBEAT_MAX_NS]

    def _first_step(self, iteration: object) -> None:
        """Note the first step, and which iteration is the first: -1, stored as 0, is none."""
        words = self._words
        self._stepped = words[ITERATION] != 0
        words[layout.FIRST_ITERATION] = words[ITERATION]
        if not self._stepped:
            self._warn_of_iteration(iteration)
        if words[layout.FIRST_STEP_NS]:
            return
        words[layout.FIRST_STEP_NS] = words[HEARTBEAT_NS]
        if words[layout.PHASE] == Phase.INITIALIZED:
            words[layout.PHASE] = Phase.STEPPING
        self._kick()

    def _first_use(self) -> None:
        """A rank that uses the API is monitored, also if it did not ask for it first."""
        if self._words[layout.PHASE] < Phase.INITIALIZED:
            self.initialize()

    def _store_odd_iteration(self, iteration: object) -> None:
        try:
            self._words[ITERATION] = int(iteration) + 1  # type: ignore[call-overload]
        except Exception:  # noqa: BLE001 - a number of the user's making may raise anything
            self._warn_of_iteration(iteration)

    def _warn_of_iteration(self, iteration: object) -> None:
        if self._warned:
            return
        self._warned = True
        _log().warning(
            "step(%r): this is a heartbeat, but no iteration, which has a number from 0 up: how "
            "far the rank is, is not known without",
            iteration,
        )

    def _new_section(self, name: str) -> Section:
        encoded = encoded_name(name)
        fits = 0 < len(encoded) <= layout.SECTION_NAME_BYTES
        index = next(self._free_slots, None) if fits else None
        if index is None:
            self._name_slot(layout.SECTION_SLOTS - 1, layout.OTHERS.encode())
            section: Section = self._others
        else:
            new = Section(name, self._words, layout.section_slot(index), self._open_now)
            section = self._sections.setdefault(name, new)
            if section is new:  # else another thread was faster, and a slot stays empty
                self._name_slot(index, encoded)
        self._first_use()
        return section

    def _name_slot(self, index: int, name: bytes) -> None:
        word = layout.section_slot(index) + layout.SECTION_NAME
        record.write(self._bytes, word, 1, name)

    def _kick(self) -> None:
        """Wake the agent. Never blocks; costs a system call, so only for what is rare."""
        attachment = self._attachment
        if attachment is None:
            return
        if is_still(attachment.kick_fd, self._kick_file):
            with contextlib.suppress(OSError):
                os.eventfd_write(attachment.kick_fd, 1)
        else:  # the program has closed it, and the number may be another file's
            self._words[layout.KICKLESS] = 1

    def _move_to_own_memory(self, reason: str) -> None:
        self.attached, self.reason = False, reason
        self._attachment = self._mailbox = None
        self._bytes = memoryview(bytearray(layout.PAGE_BYTES))
        self._words = self._bytes.cast(_WORD)
        for section in (*self._sections.values(), self._others):
            section.move_to(self._words)


class NullWriter(PageWriter):
    """Does what `PageWriter` does, for nobody to read. ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(bytearray(layout.PAGE_BYTES), None, reason)


class Mailbox:
    """Sends requests through one page, one after another.

    Args:
        page: the page, as bytes.
        kick: wakes the agent.
        ack_fd: eventfd the agent writes after it answered, -1 = none.
    """

    def __init__(self, page: memoryview, kick: Callable[[], None], ack_fd: int) -> None:
        self._page = page
        self._kick = kick
        self._ack_fd, self._ack_file = ack_fd, identity(ack_fd)
        self._busy = threading.Lock()

    def request(self, payload: bytes, timeout_s: float) -> bytes:
        """Ask and wait for the answer; see `PageWriter.request`."""
        if len(payload) > layout.REQUEST_BYTES:
            raise ValueError(
                f"a request of {len(payload)} bytes is too long, {layout.REQUEST_BYTES} is the most"
            )
        deadline_ns = monotonic_ns() + round(timeout_s * 1e9)
        if not self._busy.acquire(timeout=max(0.0, timeout_s)):
            raise TimeoutError(f"another thread's request took longer than {timeout_s:g} s")
        try:
            number = self._send(payload)
            while (left_s := (deadline_ns - monotonic_ns()) / 1e9) > 0:
                found = record.read(self._page, layout.REPLY, layout.REPLY_BYTES)
                if found and found[0] == number:
                    return found[1]
                self._wait_for_ack(left_s)
        finally:
            self._busy.release()
        raise TimeoutError(f"the launcher did not answer within {timeout_s:g} s")

    def _send(self, payload: bytes) -> int:
        # The number before is the page's, not ours: another process may have had the page. Modulo,
        # as it may be garbage.
        number: int = self._page.cast("Q")[layout.REQUEST + 1] % 2**32 + 1
        record.write(self._page, layout.REQUEST, number, payload)
        self._kick()
        return number

    def _wait_for_ack(self, left_s: float) -> None:
        poll = select.poll()
        if not is_still(self._ack_fd, self._ack_file):
            poll.poll(min(left_s, _POLL_S) * 1000)
            return
        poll.register(self._ack_fd, select.POLLIN)
        if poll.poll(left_s * 1000):
            with contextlib.suppress(OSError):
                os.eventfd_read(self._ack_fd)


class _NotYet:
    """Stands for the writer until it is first used; a method of it finds the writer and goes on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current_writer(), name)


current: PageWriter | _NotYet = _NotYet()


def last_iteration() -> int | None:
    """Return the last iteration that this process has begun, None = none that is known."""
    return current.iteration if isinstance(current, PageWriter) else None


def steps_since(at_ns: int) -> int | None:
    """Return how many iterations this process has done since then; None = it tells of none.

    Args:
        at_ns: CLOCK_MONOTONIC in nanoseconds.
    """
    if not isinstance(current, PageWriter) or current.iteration is None:
        return None
    begun = sum(began_ns >= at_ns for began_ns, _, _ in list(current.steps))
    return max(begun - 1, 0)  # the last one is not done


def current_writer() -> PageWriter:
    """Return this process's writer; the first call attaches, or says once why there is no page."""
    global current  # noqa: PLW0603 - one writer per process is what this is about
    if isinstance(current, PageWriter):
        return current
    value = os.environ.get(PAGE_VARIABLE, "")
    writer = PageWriter.attach(value) if value else NullWriter(_NO_LAUNCHER)
    current = writer
    if not value:
        _log().warning(
            "no launcher (%s): heartbeats, sections and steps are not watched; start the program "
            "with `undaunted run` to have hangs noticed",
            writer.reason,
        )
    elif not writer.attached:
        # Mostly a spawned child of a rank: nothing is wrong.
        _log().info("process %d is not watched: %s", os.getpid(), writer.reason)
    return writer


def _log() -> logging.Logger:
    import logging

    return logging.getLogger("undaunted")


def _detach_forked_child() -> None:
    global current  # noqa: PLW0603 - one writer per process is what this is about
    if isinstance(current, PageWriter) and current.attached:
        current._move_to_own_memory("this is a child forked by the rank")  # noqa: SLF001
    elif isinstance(current, NullWriter) and current.reason == _NO_LAUNCHER:
        current = _NotYet()  # perhaps this one is a rank, forked by something that is none


os.register_at_fork(after_in_child=_detach_forked_child)
