"""Every event has its words, which stand in words.txt."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal import sample
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


EVENTS = [
    *map(least, get_args(e.AnyEvent)),
    *sample.RUN,
    at(1, e.FailureDetected, kind="spawn", rank=-1),
    e.RoundBlamed(t=1, number=2, node="b", line="oh"),
    e.RoundAdvised(t=1, number=2, action="exclude", reason="oh", nodes=["b", "c"]),
    e.RoundAdvised(t=1, number=2, action="stop", reason="oh", done=True),
    at(1, e.StopAgreed, iteration=-1),
    at(1, e.InProcessCall, call=2, epoch=0, what="finished", members=4),
    at(1, e.InProcessCall, call=0, epoch=0, what="ended", text="too few ranks are left"),
    at(1, e.InProcessPhase, call=0, epoch=2, phase="re-enter", took_s=1.5, lost=[1, 2]),
    e.RoundBlamed(number=2, node="b", line="rank 3 hangs", victims=["a"], ranks=[3]),
    e.MemoryReclaimed(duration_ns=10**9, devices=1, held="GPU 0: 4096 MiB in use"),
    e.MemoryReclaimed(skipped="there is no driver"),
    e.ImportsLearned(problem="there is no room"),
    e.ImportsLearned(modules=9, packages=["torch"], took_ns=10**9, left={"a": "a thread"}),
    e.SignalPassedOn(signal="SIGUSR1", everywhere=True),
    e.SignalPassedOn(signal="SIGUSR1", ranks=[0, 1]),
    e.LastCopy(step=7, place="/c", outcome="written"),
    e.LastCopy(step=-1, place="/c", outcome="failed", why="no room"),
]
OF_RANKS = [
    ("checkpoint", "saved step=7 bytes=3 total_s=1.250"),
    ("checkpoint", "loaded step=7 seconds=1.2.3"),
    ("checkpoint", "failed step=7 no room"),
    ("checkpoint", "doubted step=7 taken=5 nan"),
    ("fault", "crash-0"),
    ("mine", ""),
]


def test_events(golden: Any) -> None:
    lines = [f"{type(event).__name__}: {words_of(event).full}" for event in EVENTS]
    lines += [f"rank 1, {name}, {text}: {of_rank(1, name, text).full}" for name, text in OF_RANKS]
    golden(Path(__file__).with_name("words.txt"), "\n".join([*dict.fromkeys(lines), ""]))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_each_event_has_a_tone_and_begins_with_its_text(event: e.Event) -> None:
    words = words_of(event)
    assert words.text
    assert words.tone in STYLES
    assert words.full.startswith(words.text)


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


@given(st.text(), st.text())
def test_whatever_a_rank_writes_has_words(name: str, text: str) -> None:
    assert of_rank(1, name, text).text
