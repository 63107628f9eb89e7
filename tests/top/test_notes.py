"""What is said of events, in one line each."""

from __future__ import annotations

import pytest

from tests.journal import sample
from tests.journal.sample import at
from undaunted.base.text import one_line
from undaunted.journal import events as e
from undaunted.journal.events import InProcessPhase
from undaunted.journal.words import words_of
from undaunted.top.notes import Note, merged, note_of


def test_the_notes_of_a_run() -> None:
    notes = [note for note in map(note_of, sample.RUN) if note is not None]
    assert [note.style for note in notes] == [
        *("yellow", "", "red", ""),  # a crash, the decision, the verdict, another round
        *("yellow", "red", "", ""),  # a hang
        *("", "green"),
    ]


@pytest.mark.parametrize(
    ("event", "node"),
    [
        (e.RoundBlamed(t=1, number=2, node="b", line="oh"), ""),
        (at(1, e.SlowRank, rank=3, on="b", line="rank 3 is slow"), ""),
        (e.RoundAdvised(t=1, number=2, action="exclude", reason="oh", nodes=["b", "c"]), ""),
        (at(1, e.NodeChecked, problem="no disk"), "n0"),
        (at(1, e.SignalReceived, signal="SIGINT"), "n0"),
        (at(1, e.Remark, text="the agent was killed"), "n0"),
        (at(1, e.ControlRequested, rank=0, action="Stop", description="why\x1b[2J"), "n0"),
        (at(1, InProcessPhase, call=0, epoch=2, phase="detect"), "n0"),
    ],
)
def test_one_printable_line_of_a_node_or_of_the_job(event: e.AnyEvent, node: str) -> None:
    note = note_of(event)
    assert note is not None
    assert (note.node, note.text) == (node, one_line(words_of(event).text))


@pytest.mark.parametrize(
    "event",
    [
        at(1, e.NodeChecked),
        at(1, e.RoundStarted, 0, world_size=1, ranks=[0]),
        at(1, InProcessPhase, call=0, epoch=2, phase="abort"),
        at(1, e.RankEvent, rank=0, name="mine", at_ns=1),
        at(1, e.StopRequested, reason="", grace_s=1.0),
    ],
)
def test_nothing_to_say(event: e.AnyEvent) -> None:
    assert note_of(event) is None


def test_what_every_node_has_in_its_journal_is_told_once() -> None:
    ends = [e.JobEnded(t=1, wall=1.0, node=node, outcome="failed", exit_code=1) for node in "ab"]
    notes = [note for note in map(note_of, ends) if note is not None]
    assert [(note.node, note.text) for note in merged(notes, 9)] == [("", "failed")]


def test_a_node_without_a_seat_repeats_nothing() -> None:
    told: list[e.Event] = []
    for node, number in (("a", 0), ("spare", -1)):
        told.append(e.Decision(t=1, wall=1.0, node=node, round=number, action="restart", reason=""))
        told.append(e.RoundBlamed(t=2, wall=2.0, node="b", round=number, number=0, line="gone"))
    notes = merged([note for note in map(note_of, told) if note is not None], 9)
    assert [note.text for note in notes] == ["restart, 0 left", "first cause in round 0: gone"]


def test_the_newest_and_each_only_once() -> None:
    notes = [Note(wall=3.0, text="c"), Note(wall=1.0, text="a", key="k")]
    notes += [Note(wall=2.0, text="b", key="k"), Note(wall=0.0, text="old")]
    assert [note.text for note in merged(notes, 2)] == ["b", "c"]
    assert [note.text for note in merged(notes, 9)] == ["old", "b", "c"]


def test_what_a_rank_told_is_shown_when_it_happened() -> None:
    written = e.RankEvent(
        t=5_000_000_000, wall=105.0, rank=0, name="fault", at_ns=3_000_000_000, text="exit-1"
    )
    note = note_of(written)
    assert note is not None
    assert note.wall == 103.0
