"""What a controller of in-process restart notes, as events and lines."""

from __future__ import annotations

from typing import Any, cast

from tests.fault_tolerance.agent.inprocess.told import Told
from undaunted.fault_tolerance.agent.inprocess.notes import Notes
from undaunted.inprocess.core.commands import Note
from undaunted.inprocess.core.messages import Reason
from undaunted.journal.events import InProcessCall, InProcessPhase

REASONS = (Reason("EXCEPTION", 1, 1, "ValueError('x')"), Reason("TERMINATED", 3))


def noted(*notes: Note) -> Told:
    told = Told()
    taking = Notes(cast("Any", told), round=7, world_size=4)
    for note in notes:
        taking.take(note)
    return told


def test_a_restart_is_one_event_for_each_phase_and_one_line() -> None:
    told = noted(
        Note("stopped", 2, 0, (0, 1, 2, 3), REASONS, took_s=9.0),
        Note(
            "recorded",
            2,
            1,
            (0, 1, 2),
            REASONS,
            took_s=0.040,
            last=2,
            phases={"abort": (0.030, 1), "finalize": (0.005, 0)},
        ),
    )
    lines = ["rank 1: ValueError('x')", "rank 3: TERMINATED"]
    phases = cast("list[InProcessPhase]", told.events)
    assert [(each.phase, each.took_s, each.rank) for each in phases] == [
        ("detect", 9.0, -1),
        ("abort", 0.03, 1),
        ("finalize", 0.005, 0),
        ("agree", 0.005, 2),
        ("re-enter", 0.04, -1),
    ]
    assert {(each.round, each.call, each.epoch) for each in phases} == {(7, 2, 1)}
    assert phases[0].reasons == phases[-1].reasons == lines
    assert (phases[-1].members, phases[-1].lost) == (3, [3])
    (line,) = told.lines
    took = "3 ranks running again 40 ms after"
    assert line == f"in-process restart 1: {took} rank 1: ValueError('x') (and 1 more)"


def test_the_line_says_where_it_was_raised_and_counts_consequences() -> None:
    reasons = (
        Reason("EXCEPTION", 1, text="KeyError(3)", where="step (train.py:7)"),
        Reason("EXCEPTION", 2, text="KeyError(4)"),
        Reason("EXCEPTION", 3, text="Connection reset by peer", consequence=True),
    )
    told = noted(Note("recorded", 0, 1, (0,), reasons, took_s=0.5))
    cause = "rank 1: KeyError(3), in step (train.py:7) (and 1 more, 1 consequence)"
    assert told.lines == [f"in-process restart 1: 1 rank running again 500 ms after {cause}"]


def test_beginning_and_end_of_a_call() -> None:
    told = noted(Note("recorded", 0, 0, (0, 1, 2, 3), took_s=1.0), Note("finished", 0, 0))
    calls = cast("list[InProcessCall]", told.events)
    assert [(each.what, each.members) for each in calls] == [("begun", 4), ("finished", 4)]
    assert not told.lines


def test_a_call_that_cannot_go_on() -> None:
    told = noted(Note("ended", 0, 3, text="the same fault 3 times in a row"))
    assert told.events == [
        InProcessCall(
            t=1, round=7, call=0, epoch=3, what="ended", text="the same fault 3 times in a row"
        )
    ]
    assert told.lines == ["the function cannot go on in any rank: the same fault 3 times in a row"]


def test_a_restart_for_no_known_reason() -> None:
    told = noted(Note("recorded", 0, 1, (0,), took_s=0.5))
    assert told.lines == ["in-process restart 1: 1 rank running again 500 ms after it was stopped"]
