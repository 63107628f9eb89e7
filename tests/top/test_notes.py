"""What is said of events, in one line each."""

from __future__ import annotations

import pytest

from tests.journal import sample
from tests.journal.sample import at
from undaunted.journal import events as e
from undaunted.journal.events import InProcessPhase
from undaunted.top.notes import Note, merged, note_of, ring_note


def test_the_notes_of_a_run() -> None:
    notes = [note for note in map(note_of, sample.RUN) if note is not None]
    assert [(note.text, note.style) for note in notes][:5] == [
        ("crash of rank 1: exit code 1", "yellow"),
        ("restart, 2 left: rank 1 crashed", ""),
        ("rank 1 raised ValueError: bad batch", "red"),
        ("round 1 begins", ""),
        ("hang of rank 1: heartbeat", "yellow"),
    ]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (at(1, e.FailureDetected, kind="spawn", rank=-1), "spawn"),
        (e.RoundBlamed(t=1, number=2, node="b", line="oh"), "first cause in round 2: oh"),
        (at(1, e.SlowRank, rank=3, on="b", line="rank 3 is slow"), "rank 3 is slow"),
        (
            e.RoundAdvised(t=1, number=2, action="exclude", reason="oh", nodes=["b", "c"]),
            "advice: go on without b, c: oh",
        ),
        (
            e.RoundAdvised(t=1, number=2, action="stop", reason="oh", done=True),
            "done: end the job: oh",
        ),
        (at(1, e.NodeChecked, problem="no disk"), "unhealthy: no disk"),
        (at(1, e.SignalReceived, signal="SIGINT"), "the launcher received SIGINT"),
        (at(1, e.RankSilent, rank=1, line="rank 1: so"), "rank 1: so"),
        (at(1, e.AgentPaused, seconds=3.0), "the launcher itself did not run for 3.0 s"),
        (at(1, e.EventsLost, count=2, reason="full"), "2 events missing in the journal: full"),
        (at(1, e.TemplateLost, reason="a thread"), "workers start fresh: a thread"),
        (at(1, e.RankLost, rank=3, detail="exit code 1"), "rank 3 is lost: exit code 1"),
        (at(1, e.RankReplaced, rank=3, pid=9), "rank 3 is replaced by pid 9"),
        (
            at(1, e.ControlRequested, rank=0, action="Stop", description="why\x1b[2J"),
            "rank 0 requests Stop: why\\x1b[2J",
        ),
        (
            at(1, InProcessPhase, call=0, epoch=2, phase="detect"),
            "in-process restart 2: it was stopped",
        ),
    ],
)
def test_one_line(event: e.AnyEvent, text: str) -> None:
    note = note_of(event)
    assert note is not None
    assert note.text == text


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


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("checkpoint", "saved step=7 bytes=3 total_s=1.250", "checkpoint of step 7 saved in 1.2 s"),
        ("checkpoint", "loaded step=7 seconds=1.2.3", "checkpoint of step 7 loaded in 1.2.3"),
        ("checkpoint", "failed step=7 no room", "rank 1: checkpoint failed step=7 no room"),
        ("fault", "crash-0", "fault in rank 1: crash-0"),
    ],
)
def test_events_of_ranks(name: str, text: str, said: str) -> None:
    note = ring_note(1, name, text, wall=1.0, node="n0")
    assert note is not None
    assert note.text == said


def test_what_every_node_has_in_its_journal_is_told_once() -> None:
    ends = [e.JobEnded(t=1, wall=1.0, node=node, outcome="failed", exit_code=1) for node in "ab"]
    notes = [note for note in map(note_of, ends) if note is not None]
    assert [(note.node, note.text) for note in merged(notes, 9)] == [("", "failed:")]


def test_a_node_without_a_seat_repeats_nothing() -> None:
    told: list[e.Event] = []
    for node, number in (("a", 0), ("spare", -1)):
        told.append(e.Decision(t=1, wall=1.0, node=node, round=number, action="restart", reason=""))
        told.append(e.RoundBlamed(t=2, wall=2.0, node="b", round=number, number=0, line="gone"))
    notes = merged([note for note in map(note_of, told) if note is not None], 9)
    assert [note.text for note in notes] == ["restart, 0 left:", "first cause in round 0: gone"]


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
