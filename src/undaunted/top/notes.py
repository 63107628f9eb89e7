"""What has happened, in one line each, from events of journals and of pages. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.text import count, format_duration, format_ranks, one_line
from undaunted.journal import events as e

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST = 300
_NS = 1_000_000_000
_NUMBER = re.compile(r"(\w+)=([0-9.]+)")
_CHECKPOINT = "checkpoint"  # events of ranks, see `undaunted.checkpointing.announce`
_FAULT = "fault"
OF_RANKS = (_CHECKPOINT, _FAULT)
_OF_THE_JOB = (
    e.RoundStarted,
    e.Decision,
    e.RoundBlamed,
    e.RoundAdvised,
    e.SlowRank,
    e.JobEnded,
)
# Each rank tells these of itself; one line is enough.
_BY_ALL = ("saved", "loaded", "rescued", "deleted")


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
    return type(event) in _TEXTS


def note_of(event: e.Event) -> Note | None:
    """Return what is worth saying of an event of a journal, None for most."""
    if isinstance(event, e.RankEvent):
        # Launchers empty the pages of the ranks now and then: the journal has it later.
        when = event.wall - max(0, event.t - event.at_ns) / _NS
        return ring_note(event.rank, event.name, event.text, wall=when, node=event.node)
    say = _TEXTS.get(type(event))
    told = say(event) if say else None
    if told is None:
        return None
    text, style = one_line(told[0], _LONGEST), told[1]
    if isinstance(event, _OF_THE_JOB):  # every node has it in its journal
        key = f"{event.round} {text}" if isinstance(event, e.Decision) else text
        return Note(wall=event.wall, text=text, style=style, key=key)
    return Note(wall=event.wall, node=event.node, text=text, style=style)


def ring_note(rank: int, name: str, text: str, *, wall: float, node: str) -> Note | None:
    """Return what is worth saying of an event that a rank has put into its page."""
    if name == _FAULT:
        said = one_line(f"fault in rank {rank}: {text}", _LONGEST)
        return Note(wall=wall, node=node, text=said, style="yellow", key=f"{rank} {said}")
    if name != _CHECKPOINT:
        return None
    what, _, rest = text.partition(" ")
    numbers = dict(_NUMBER.findall(rest))
    step = numbers.get("step", "?")
    took = numbers.get("total_s") or numbers.get("seconds")
    after = f" in {_duration(took)}" if took else ""
    if what in _BY_ALL:
        said = f"checkpoint of step {step} {what}{after}"
        return Note(wall=wall, node=node, text=one_line(said), key=f"checkpoint {what} {step}")
    said = one_line(f"rank {rank}: checkpoint {text}", _LONGEST)
    return Note(wall=wall, node=node, text=said, style="yellow", key=said)


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


def _duration(seconds: str) -> str:
    try:
        return format_duration(float(seconds))
    except ValueError:
        return seconds


# --- one line for each kind of event --------------------------------------------------------------

_Told = tuple[str, str] | None


def _round_started(event: e.RoundStarted) -> _Told:
    return (f"round {event.round} begins", "") if event.round > 0 else None


def _decision(event: e.Decision) -> _Told:
    if event.round < 0:  # a node without a seat; those that have one tell of which round it is
        return None
    left = f", {event.restarts_left} left" if event.action == "restart" else ""
    return f"{event.action}{left}: {event.reason}", ""


def _failure(event: e.FailureDetected) -> _Told:
    who = f" of rank {event.rank}" if event.rank >= 0 else ""
    return f"{event.kind}{who}: {event.detail}".rstrip(": "), "yellow"


def _blamed(event: e.RoundBlamed) -> _Told:
    return f"first cause in round {event.number}: {event.line}", "red"


def _advised(event: e.RoundAdvised) -> _Told:
    word = "done" if event.done else "advice"
    return (f"{word}: {event.line}", "yellow") if event.line else None


def _inprocess(event: e.InProcessPhase) -> _Told:
    if event.phase == "detect":
        why = event.reasons[0] if event.reasons else "it was stopped"
        return f"in-process restart {event.epoch}: {why}", "yellow"
    if event.phase == "re-enter":
        lost = f", without rank {format_ranks(event.lost)}" if event.lost else ""
        took = format_duration(event.took_s)
        return f"in-process restart {event.epoch}: running again after {took}{lost}", ""
    return None


def _checked(event: e.NodeChecked) -> _Told:
    return (f"unhealthy: {event.problem}", "red") if event.problem else None


def _ended(event: e.JobEnded) -> _Told:
    style = "red" if event.exit_code else "green"
    return f"{event.outcome.replace('_', ' ')}: {event.reason}", style


_TEXTS: dict[type[e.Event], Callable[..., _Told]] = {
    e.RoundStarted: _round_started,
    e.FailureDetected: _failure,
    e.Verdict: lambda event: (event.line, "red"),
    e.Decision: _decision,
    e.RoundBlamed: _blamed,
    e.RoundAdvised: _advised,
    e.SlowRank: lambda event: (event.line, "" if event.over else "yellow"),
    e.RankSilent: lambda event: (event.line, "yellow"),
    e.GpuThrottled: lambda event: (event.line, "yellow"),
    e.KernelLogged: lambda event: (event.line, "yellow"),
    e.RankLost: lambda event: (f"rank {event.rank} is lost: {event.detail}", "red"),
    e.RankReplaced: lambda event: (f"rank {event.rank} is replaced by pid {event.pid}", ""),
    e.InProcessPhase: _inprocess,
    e.NodeChecked: _checked,
    e.ControlRequested: lambda event: (
        f"rank {event.rank} requests {event.action}: {event.description}",
        "yellow",
    ),
    e.SignalReceived: lambda event: (f"the launcher received {event.signal}", "yellow"),
    e.SignalPassedOn: lambda event: (f"received {event.signal}; the job goes on", "dim"),
    e.AgentPaused: lambda event: (
        f"the launcher itself did not run for {format_duration(event.seconds)}",
        "yellow",
    ),
    e.EventsLost: lambda event: (
        f"{count(event.count, 'event')} missing in the journal: {event.reason}",
        "yellow",
    ),
    e.TemplateLost: lambda event: (f"workers start fresh: {event.reason}", "yellow"),
    e.JobEnded: _ended,
    e.LastCopy: lambda event: (
        f"the copy of step {event.step} is {event.outcome.replace('_', ' ')}",
        "" if event.outcome == "written" else "red",
    ),
}
