"""Events of journals and of pages, in one line each. Pure."""

from __future__ import annotations

import msgspec

from undaunted.base.text import one_line
from undaunted.journal import events as e
from undaunted.journal.words import CHECKPOINT, FAULT, STYLES, is_news, of_rank, words_of

_LONGEST = 300
_NS = 1_000_000_000
OF_RANKS = (CHECKPOINT, FAULT)
# Every node has it in its journal.
_OF_THE_JOB = frozenset(
    {e.RoundStarted, e.Decision, e.RoundBlamed, e.RoundAdvised, e.SlowRank, e.JobEnded}
)
_NOTEWORTHY = _OF_THE_JOB | {
    e.FailureDetected, e.Verdict, e.RankSilent, e.GpuThrottled, e.KernelLogged, e.RankLost,
    e.RankReplaced, e.InProcessPhase, e.NodeChecked, e.ControlRequested, e.SignalReceived,
    e.SignalPassedOn, e.AgentPaused, e.EventsLost, e.TemplateLost, e.Remark, e.LastCopy,
}  # fmt: skip


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that has happened.

    Attributes:
        wall: when, Unix time in seconds.
        node: on which node, "" = it is about the whole job.
        text: one printable line.
        style: ``red``, ``yellow``, ``green`` or "".
        key: notes with the same key are about the same thing, "" = this is the only one.
    """

    wall: float
    node: str = ""
    text: str
    style: str = ""
    key: str = ""


def worth_a_note(event: e.Event) -> bool:
    """Tell whether `note_of` may have something to say; quick."""
    return type(event) in _NOTEWORTHY


def note_of(event: e.Event) -> Note | None:
    """Return what is worth saying of an event of a journal, None for most."""
    if isinstance(event, e.RankEvent):
        # Launchers empty the pages of the ranks now and then: the journal has it later.
        when = event.wall - max(0, event.t - event.at_ns) / _NS
        return ring_note(event.rank, event.name, event.text, wall=when, node=event.node)
    if not worth_a_note(event) or not is_news(event):
        return None
    words = words_of(event)
    text = one_line(words.text, _LONGEST)
    if type(event) in _OF_THE_JOB:
        key = words.subject or text
        return Note(wall=event.wall, text=text, style=STYLES[words.tone], key=key)
    return Note(wall=event.wall, node=event.node, text=text, style=STYLES[words.tone])


def ring_note(rank: int, name: str, text: str, *, wall: float, node: str) -> Note | None:
    """Return what is worth saying of an event that a rank has put into its page."""
    if name not in OF_RANKS:
        return None
    words = of_rank(rank, name, text)
    said, style = one_line(words.text, _LONGEST), STYLES[words.tone]
    return Note(wall=wall, node=node, text=said, style=style, key=words.subject)


def merged(notes: list[Note], most: int) -> list[Note]:
    """Return the newest ``most`` notes, newest last; of those with the same key only one."""
    seen: set[str] = set()
    kept: list[Note] = []
    for note in sorted(notes, key=lambda note: note.wall, reverse=True):
        if len(kept) == most:
            break
        if note.key:
            if note.key in seen:
                continue
            seen.add(note.key)
        kept.append(note)
    return kept[::-1]
