"""Every event has its words."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.sample import at
from undaunted.journal import events as e
from undaunted.journal.words import STYLES, of_rank, outcome_in_words, words_of


def least(kind: type[e.Event]) -> e.Event:
    """An event of which only what must be there is given."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    about = {name: [] for name, field in fields.items() if "list" in str(field.type)}
    about |= {name: {} for name, field in fields.items() if "dict" in str(field.type)}
    given_values = {
        name: about.get(name, "x" if field.type is str else 1)
        for name, field in fields.items()
        if field.required
    }
    return kind(**given_values)


@pytest.mark.parametrize("kind", get_args(e.AnyEvent), ids=lambda kind: kind.__name__)
def test_every_kind_of_event_has_words(kind: type[e.Event]) -> None:
    words = words_of(least(kind))
    assert words.text
    assert words.tone in STYLES
    assert words.full.startswith(words.text)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (at(1, e.FailureDetected, kind="spawn", rank=-1), "spawn"),
        (at(1, e.FailureDetected, kind="crash", rank=1, detail="oh"), "crash of rank 1: oh"),
        (e.RoundBlamed(t=1, number=2, node="b", line="oh"), "first cause in round 2: oh"),
        (
            e.RoundAdvised(t=1, number=2, action="exclude", reason="oh", nodes=["b", "c"]),
            "advice after round 2: go on without b, c: oh",
        ),
        (
            e.RoundAdvised(t=1, number=2, action="stop", reason="oh", done=True),
            "done after round 2: end the job: oh",
        ),
        (at(1, e.EventsLost, count=2, reason="full"), "2 events missing in the journal: full"),
        (at(1, e.StopAgreed, iteration=7), "the ranks stop after iteration 7"),
        (at(1, e.StopAgreed, iteration=-1), "no rank asks whether to stop"),
        (
            at(1, e.InProcessCall, call=2, epoch=0, what="finished", members=4),
            "call 2 of a restartable function of 4 ranks finished",
        ),
        (
            at(1, e.InProcessPhase, call=0, epoch=2, phase="re-enter", took_s=1.5, lost=[1, 2]),
            "in-process restart 2: running again after 1.5 s, without ranks 1-2",
        ),
        (at(1, e.RankExited, rank=1, pid=7, exit_code=3), "rank 1 (pid 7) ended: exit code 3"),
    ],
)
def test_who_what_and_where(event: e.Event, text: str) -> None:
    assert words_of(event).text == text


@pytest.mark.parametrize(
    ("outcome", "reason", "said"),
    [
        ("preempted", "the launcher on node a received SIGINT", "stopped by the user (Ctrl-C)"),
        ("preempted", "the launcher on node a received SIGTERM", "preempted"),
        ("preempted", "the launcher on node SIGINT received SIGTERM", "preempted"),
        ("no_restart", "received SIGINT", "no restart"),
        ("", "", ""),
    ],
)
def test_a_person_who_presses_ctrl_c_preempts_nothing(outcome: str, reason: str, said: str) -> None:
    assert outcome_in_words(outcome, reason) == said


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("checkpoint", "saved step=7 bytes=3 total_s=1.250", "checkpoint of step 7 saved in 1.2 s"),
        ("checkpoint", "loaded step=7 seconds=1.2.3", "checkpoint of step 7 loaded in 1.2.3"),
        ("checkpoint", "failed step=7 no room", "rank 1: checkpoint failed step=7 no room"),
        (
            "checkpoint",
            "doubted step=7 taken=5 nan",
            "the checkpoint of step 7 is not trusted: nan",
        ),
        ("fault", "crash-0", "fault in rank 1: crash-0"),
        ("mine", "", "rank 1: mine"),
    ],
)
def test_events_of_ranks(name: str, text: str, said: str) -> None:
    assert of_rank(1, name, text).text == said


@given(st.text(), st.text())
def test_whatever_a_rank_writes_has_words(name: str, text: str) -> None:
    assert of_rank(1, name, text).text
