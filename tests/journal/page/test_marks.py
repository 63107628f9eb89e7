"""Tests of `undaunted.journal.page.marks`."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest

from tests.journal.page.jobs import job, journal, two
from tests.journal.sample import MS, RUN, at
from undaunted.journal import events as e
from undaunted.journal.events import InProcessPhase
from undaunted.journal.page import marks as module
from undaunted.journal.page.marks import KINDS
from undaunted.journal.page.timeline import timeline


def marks(*journals: Any) -> list[tuple[int, str, int, int, str]]:
    data = timeline(*job(*journals))
    columns = data["marks"]
    return [
        (when, KINDS[kind], node, rank, data["text"][text])
        for when, kind, node, rank, text in zip(
            accumulate(columns["at"]), columns["kind"], columns["node"], columns["rank"],
            columns["text"], strict=True,
        )
    ]  # fmt: skip


def test_failures_say_when_they_happened_and_who_is_to_blame():
    assert marks() == [
        (997, "crash", 0, 1, "rank 1 raised ValueError: bad batch"),
        (4999, "hang", 0, 0, "rank 0 hangs"),
    ]


def test_a_failure_without_a_verdict_has_its_detail():
    events = [one for one in RUN if not isinstance(one, e.Verdict)]
    assert marks(journal(events))[0] == (997, "crash", 0, 1, "exit code 1")


def test_a_node_that_failed_because_of_another_is_a_victim():
    kinds = [kind for _, kind, *_ in marks(*two())]
    assert sorted(kinds) == ["crash", "hang", "victim", "victim"]


def test_a_checkpoint_is_one_mark_of_all_ranks():
    told = [
        at(600 + rank, e.RankEvent, 0, rank=rank, name="checkpoint", at_ns=(600 + rank) * MS,
           text=f"saved step=20 bytes=1 stall_s=0.{rank}")
        for rank in (0, 1)
    ]  # fmt: skip
    found = marks(journal([*RUN, *told]))
    assert found[0] == (600, "checkpoint", 0, -1, "saved, step 20, by 2 ranks")


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        (at(700, e.RankEvent, 0, rank=1, name="fault", at_ns=700 * MS, text="kill"), "fault",
         "kill"),
        (at(700, e.NodeChecked, 0, problem="disk full"), "health", "disk full"),
        (at(700, e.AgentPaused, 0, seconds=3.0), "warning", "the launcher did not run for 3.0 s"),
        (at(700, e.SignalReceived, 0, signal="SIGTERM"), "warning",
         "the launcher received SIGTERM"),
        (at(700, e.TemplateLost, 0, reason="threads"), "warning", "workers start fresh: threads"),
        (at(700, e.ControlRequested, 0, rank=1, action="Exclude", description="hot"), "warning",
         "asks for Exclude: hot"),
        (at(700, e.RankLost, 0, rank=1, detail="killed"), "in-process restart",
         "the others go on without it: killed"),
        (at(700, InProcessPhase, 0, call=0, epoch=2, phase="detect", reasons=["rank 1 raised"]),
         "in-process restart", "2: rank 1 raised"),
    ],
)  # fmt: skip
def test_what_else_happened(event, kind, text):
    found = [one for one in marks(journal([*RUN, event])) if one[0] == 699]
    assert [(one[1], one[4]) for one in found] == [(kind, text)]


@pytest.mark.parametrize(
    "event",
    [
        at(700, e.NodeChecked, 0),
        at(700, e.RankEvent, 0, rank=0, name="checkpoint", at_ns=1, text="deleted step=3"),
        at(700, e.RankEvent, 0, rank=0, name="note", at_ns=1, text="hello"),
    ],
)
def test_what_is_not_worth_a_mark(event):
    assert len(marks(journal([*RUN, event]))) == 2


def test_of_very_many_marks_an_even_part_is_kept_and_all_failures(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 10)
    many = [at(100 + ms, e.SignalReceived, 0, signal=f"SIG{ms}") for ms in range(100)]
    found = marks(journal([*RUN, *many]))
    assert len(found) == 12
    assert found[1][0] - found[0][0] == 10
