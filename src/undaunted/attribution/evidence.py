"""The evidence of each rank when a limit was passed, and its form in a file. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.attribution.communication import WAITS_FOR_LOADER, activity_of, waiting_in
from undaunted.attribution.stacks import Frame, innermost_user_frame, parse_last_dump
from undaunted.base import process
from undaunted.base.text import format_duration, printable
from undaunted.progress.learning import distribution
from undaunted.progress.snapshot import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.progress.snapshot import PageSnapshot
    from undaunted.progress.timeouts import Expired

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep (disk or driver)",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "I": "idle",
    "Z": "ended, not yet collected",
    "X": "ended",
    "": "ended",
}
STOPPED = ("T", "t")
_LIMIT_IN_SECONDS_BELOW = 120
LEAVING = "leaving (interpreter shutdown)"


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """The evidence of one rank.

    Attributes:
        rank, local_rank, pid: who it is.
        page: its page.
        expired: limits it has passed.
        state: letter of the process in /proc before anything was sent to it; "" = gone.
        stacks: what faulthandler wrote, None if it wrote nothing.
        reason: why there are no stacks, as the rest of a sentence: ``it did not answer``.
        prints: stream of the launcher that it waits to write to, a pipe that nobody empties.
        exit_code: of a process that has ended by itself, None = it has not.
        children: pids of processes that it has forked, and what these wrote.
    """

    rank: int
    local_rank: int
    pid: int
    page: PageSnapshot
    expired: tuple[Expired, ...] = ()
    state: str = "S"
    stacks: str | None = None
    reason: str = ""
    prints: str = ""
    exit_code: int | None = None
    children: tuple[tuple[int, str], ...] = ()

    @property
    def ended(self) -> bool:
        """The process does not exist any more."""
        return self.state in process.ENDED

    @property
    def stopped(self) -> bool:
        """The process was stopped by a signal or a debugger."""
        return self.state in STOPPED

    @property
    def first_expired(self) -> Expired | None:
        """The limit that was passed first."""
        return min(self.expired, key=lambda each: each.deadline_ns, default=None)


@dataclass(frozen=True, slots=True)
class StackPosition:
    """The place of the main thread.

    Attributes:
        frame: innermost frame of the user's code.
        waits_in: the communication it waits in, or "".
        activity: what else it does inside a library, where that says something, or "".
    """

    frame: Frame | None
    waits_in: str
    activity: str = ""


def place_of(evidence: RankEvidence) -> StackPosition | None:
    """Return where the main thread of a rank is, None where its stack is not known."""
    dump = parse_last_dump(evidence.stacks or "")
    main = dump.main if dump else None
    return None if main is None else place_in(main.frames, evidence.state)


def waits_for_loader(stacks: str) -> bool:
    """Return whether the main thread waits for a DataLoader, whose workers know more."""
    dump = parse_last_dump(stacks)
    main = dump.main if dump else None
    return main is not None and activity_of(main.frames) == WAITS_FOR_LOADER


def place_in(frames: Sequence[Frame], state: str) -> StackPosition:
    """Return where a thread with this stack is.

    Args:
        frames: innermost first.
        state: letter of the process in /proc.
    """
    return StackPosition(
        innermost_user_frame(frames), waiting_in(frames, state), activity_of(frames)
    )


def state_in_words(state: str) -> str:
    """The state of a process for people."""
    return STATES.get(state, f"in process state {printable(state)}")


def watch_name(expired: Expired) -> str:
    """Return which test it was, with the name of the section."""
    return f"section {expired.name!r}" if expired.watch == "section" else expired.watch


def expired_in_words(expired: Expired) -> str:
    """Return the time without the watched act, its limit, and the source of the limit."""
    age = format_duration(expired.age_s)
    what = {
        "heartbeat": f"no heartbeat for {age}",
        "initial heartbeat": f"no first heartbeat for {age}",
        "section": f"{watch_name(expired)} open for {age}",
        "outside sections": f"outside of sections for {age}",
        "leaving": f"{LEAVING} for {age}",
        "soft timeout": f"no progress for {age}",
    }.get(expired.watch, f"{expired.watch} for {age}")
    source = f", {expired.source}" if expired.source else ""
    return f"{what} (limit {_limit(expired.limit_s)}{source})"


def _limit(seconds: float) -> str:
    # As the user wrote it, as long as that is readable.
    return f"{seconds:g} s" if seconds < _LIMIT_IN_SECONDS_BELOW else format_duration(seconds)


def format_full(evidence: Sequence[RankEvidence], *, line: str = "") -> str:
    """Write everything down, for the evidence file.

    Args:
        evidence: of every rank.
        line: the verdict, put on top.
    """
    head = [line, ""] if line else []
    table = [_summary(each) for each in evidence]
    return "\n".join([*head, *table, *(_full(each) for each in evidence)]) + "\n"


def _summary(evidence: RankEvidence) -> str:
    page = evidence.page
    parts = [
        f"rank {evidence.rank} (local rank {evidence.local_rank}, pid {evidence.pid})",
        state_in_words(evidence.state),
    ]
    if page.iteration is not None:
        parts.append(f"iteration {page.iteration}")
    if place := place_of(evidence):
        parts.append(f"in {printable(str(place.frame))}" if place.frame else "no Python frame")
        parts.extend([f"waits in {place.waits_in}"] if place.waits_in else [])
        parts.extend([place.activity] if place.activity else [])
    elif evidence.stacks is None:
        parts.append(f"no stacks: {evidence.reason or 'reason unknown'}")
    if evidence.prints:
        parts.append(f"waits to print: nobody reads {evidence.prints} of the launcher")
    if page.phase is Phase.LEAVING:
        parts.append(LEAVING)
    open_sections = [name for name, s in page.sections.items() if s.open_since_ns is not None]
    if open_sections:
        parts.append(f"open sections: {printable(', '.join(open_sections))}")
    parts.extend(expired_in_words(expired) for expired in evidence.expired)
    seen = (distribution(page, expired) for expired in evidence.expired)
    parts.extend(printable(text) for text in seen if text)
    if page.problem:
        parts.append(f"page unreadable: {page.problem}")
    return "; ".join(parts)


def _full(evidence: RankEvidence) -> str:
    text = evidence.stacks
    if text is None:
        text = f"(none: {evidence.reason or 'reason unknown'})"
    parts = [(f"rank {evidence.rank}, pid {evidence.pid}", text)]
    parts += [
        (f"child of rank {evidence.rank}, pid {pid}", said) for pid, said in evidence.children
    ]
    return "\n".join(f"\n--- {whose} ---\n{printable(said).rstrip()}" for whose, said in parts)
