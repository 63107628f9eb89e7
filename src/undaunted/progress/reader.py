"""From the bytes of a page to a `PageSnapshot`. Any bytes will do: this never raises."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from undaunted.progress import layout, record
from undaunted.progress.snapshot import ErrorRecord, PageSnapshot, Phase, SectionSnapshot

IDENTITY = struct.Struct("=QQ")  # pid, start time in clock ticks
ERROR = struct.Struct("=QQHHI")  # time, pid, lengths of type, message and traceback
EVENT = struct.Struct("=QHH")  # time, lengths of name and text

_LARGEST_PID = 2**31 - 1
_LARGEST_SIGNAL = 64


@dataclass(frozen=True, slots=True)
class RingEvent:
    """A small event of a rank. ``at_ns`` is CLOCK_MONOTONIC, nanoseconds."""

    name: str
    text: str
    at_ns: int


def copy_page(page: memoryview, words: memoryview) -> bytes:
    """Copy a page so that its words go together.

    A rank stores the time of a closing before it marks the section closed, so the single words are
    copied after the table. It changes its phase before it takes back what the phase tells a reader
    to look at, so a copy during which the phase changed is made again.

    Args:
        page: the page, as bytes.
        words: the same, as words.
    """
    copy = b""
    for _ in range(3):
        table = bytes(page[layout.HEAD_BYTES :])
        head = bytes(page[: layout.HEAD_BYTES])
        copy = head + table
        if memoryview(head).cast("Q")[layout.PHASE] == words[layout.PHASE]:
            break
    return copy


def parse_page(page: bytes) -> PageSnapshot:
    """Read a copy of a page; ``problem`` is set where its content cannot be trusted."""
    assert len(page) == layout.PAGE_BYTES
    words = memoryview(page).cast("Q")
    if problem := header_problem(words):
        return PageSnapshot(problem=problem)
    if words[layout.PHASE] > max(Phase):
        return PageSnapshot(problem=f"the page is damaged: phase {words[layout.PHASE]}")
    phase = Phase(words[layout.PHASE])
    owner = read_identity(page)
    if owner is None and phase is not Phase.EMPTY:
        return PageSnapshot(problem="the page is damaged: it does not say whose it is")
    pid, pid_start = owner or (0, 0)
    sections, open_now = _sections(page, words)
    signal = words[layout.EVIDENCE_SIGNAL]
    return PageSnapshot(
        pid=pid,
        pid_start=pid_start,
        phase=phase,
        evidence_signal=signal if signal <= _LARGEST_SIGNAL else 0,
        heartbeat_count=words[layout.HEARTBEATS],
        heartbeat_ns=words[layout.HEARTBEAT_NS] or None,
        heartbeat_max_ns=max(words[layout.HEARTBEAT_MAX_NS], words[layout.HEARTBEAT_WARMUP_NS]),
        heartbeat_warm_max_ns=words[layout.HEARTBEAT_MAX_NS],
        first_heartbeat_ns=words[layout.FIRST_HEARTBEAT_NS] or None,
        iteration=_less_one(words[layout.ITERATION]),
        iteration_ns=words[layout.ITERATION_NS] or None,
        first_iteration=_less_one(words[layout.FIRST_ITERATION]),
        warmup_iterations=_less_one(words[layout.WARMUP_ITERATIONS]),
        attached_ns=words[layout.ATTACHED_NS] or None,
        first_line_ns=words[layout.FIRST_LINE_NS] or None,
        initialized_ns=words[layout.INITIALIZED_NS] or None,
        first_step_ns=words[layout.FIRST_STEP_NS] or None,
        leaving_ns=words[layout.LEAVING_NS] or None,
        out_of_section_since_ns=None if open_now else words[layout.LAST_CLOSE_NS] or None,
        outside_count=words[layout.OUTSIDE_COUNT],
        outside_max_ns=max(words[layout.OUTSIDE_MAX_NS], words[layout.OUTSIDE_WARMUP_NS]),
        outside_warm_max_ns=words[layout.OUTSIDE_MAX_NS],
        sections=sections,
        error=_error(page),
        wish=layout.wish_of(words[layout.STOP_WANTED]),
    )


def header_problem(words: memoryview) -> str:
    """Say why this is not a page for this build, or return ""."""
    if words[layout.MAGIC] != layout.MAGIC_VALUE:
        return "the page is damaged: it does not begin as a page does"
    if words[layout.VERSION] != layout.VERSION_VALUE:
        return (
            f"the page has layout version {words[layout.VERSION]}, this build of undaunted reads "
            f"{layout.VERSION_VALUE}; use the same undaunted for the launcher and its ranks"
        )
    return ""


def read_identity(page: memoryview | bytes) -> tuple[int, int] | None:
    """Return pid and start time (clock ticks since boot) of the owner, or None."""
    found = record.read(page, layout.IDENTITY, layout.IDENTITY_BYTES)
    if found is None or len(found[1]) != IDENTITY.size:
        return None
    pid, start = IDENTITY.unpack(found[1])
    return (pid, start) if 0 < pid <= _LARGEST_PID else None


def parse_ring(page: bytes) -> list[RingEvent]:
    """Return the newest events in a copy of a page, oldest first."""
    found = []
    for slot in range(layout.RING_SLOTS):
        one = record.read(page, layout.ring_slot(slot), layout.RING_BYTES)
        event = parse_event(one[1]) if one else None
        if one is not None and event is not None:
            found.append((one[0], event))
    return [event for _, event in sorted(found, key=lambda each: each[0])]


def parse_event(body: bytes) -> RingEvent | None:
    """Read the body of a record of the ring."""
    if len(body) < EVENT.size:
        return None
    at_ns, name_length, text_length = EVENT.unpack_from(body)
    name, text = _texts(body[EVENT.size :], name_length, text_length)
    return RingEvent(name, text, at_ns)


def _less_one(word: int) -> int | None:
    return word - 1 if word else None


def _sections(page: bytes, words: memoryview) -> tuple[dict[str, SectionSnapshot], bool]:
    sections = {}
    for index in range(layout.SECTION_SLOTS):
        slot = layout.section_slot(index)
        found = record.read(page, slot + layout.SECTION_NAME, layout.SECTION_NAME_BYTES)
        if found is None:
            continue
        name = found[1].decode(errors="replace")
        sections[name] = SectionSnapshot(
            name=name,
            open_since_ns=words[slot + layout.SECTION_OPEN_NS] or None,
            count=words[slot + layout.SECTION_COUNT],
            last_ns=words[slot + layout.SECTION_LAST_NS],
            max_ns=max(words[slot + layout.SECTION_MAX_NS], words[slot + layout.SECTION_WARMUP_NS]),
            warm_max_ns=words[slot + layout.SECTION_MAX_NS],
            total_ns=words[slot + layout.SECTION_TOTAL_NS],
        )
    return sections, any(section.open_since_ns for section in sections.values())


def _error(page: bytes) -> ErrorRecord | None:
    found = record.read(page, layout.ERROR, layout.ERROR_BYTES)
    if found is None or len(found[1]) < ERROR.size:
        return None
    at_ns, pid, *lengths = ERROR.unpack_from(found[1])
    kind, message, traceback = _texts(found[1][ERROR.size :], *lengths)
    return ErrorRecord(at_ns=at_ns, type=kind, message=message, traceback=traceback, pid=pid)


def _texts(body: bytes, *lengths: int) -> list[str]:
    texts, start = [], 0
    for length in lengths:
        texts.append(body[start : start + length].decode(errors="replace"))
        start += length
    return texts
