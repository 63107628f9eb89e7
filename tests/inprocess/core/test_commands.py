"""Notes as lines for people."""

from __future__ import annotations

from undaunted.inprocess.core.commands import Note
from undaunted.inprocess.core.messages import Reason


def test_a_record() -> None:
    reasons = (Reason("TERMINATED", 3, 1, "its process\nhas ended"),)
    note = Note("recorded", 0, 2, (0, 1), reasons, took_s=0.045, last=1)
    assert note.line() == (
        "call 0, epoch 2 recorded after 45 ms; 2 members; rank 1 was the last; "
        "rank 3: TERMINATED: its process has ended"
    )


def test_where_it_was_raised() -> None:
    reasons = (Reason("EXCEPTION", 3, 1, "KeyError(3)", where="step (train.py:7)"),)
    text = Note("stopped", 0, 2, reasons=reasons).line()
    assert text == "call 0, epoch 2 stopped; rank 3: EXCEPTION: KeyError(3), in step (train.py:7)"


def test_not_all_of_many_reasons_are_shown() -> None:
    reasons = tuple(Reason("EXCEPTION", rank, text="x") for rank in range(7))
    assert Note("stopped", 0, 0, reasons=reasons).line().endswith("EXCEPTION: x; 3 more reasons")


def test_an_end_says_why() -> None:
    note = Note("ended", 1, 0, text="nobody is left")
    assert note.line() == "call 1, epoch 0 ended; nobody is left"
