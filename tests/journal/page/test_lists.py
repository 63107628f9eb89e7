"""Tests of `undaunted.journal.page.lists`."""

from __future__ import annotations

import re

import msgspec

from tests.journal.page.jobs import job, journal, two
from tests.journal.sample import ENDING, MS, OPENING, RUN, at, begin
from undaunted.journal import events as e
from undaunted.journal.page import lists


def plain(markup: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", markup).split())


def test_a_failure_has_its_cause_its_traceback_and_a_button():
    made = lists.failures(job()[0])
    assert 'disabled data-at="997" data-node="0" data-rank="1">show</button>' in made
    assert "<summary>rank 1 raised ValueError: bad batch</summary><pre>Traceback" in made
    assert "00:00.997 0 crash n0 1" in plain(made)


def test_a_job_without_failures_says_so():
    calm = [*OPENING, *begin(10, 2), *ENDING]
    assert lists.failures(job(journal(calm))[0]) == "<p>There was none.</p>"


def test_only_so_many_failures_are_listed(monkeypatch):
    monkeypatch.setattr(lists, "_MOST_ROWS", 1)
    made = lists.failures(job()[0])
    assert "hangs" in made
    assert "bad batch" not in made
    assert "1 earlier ones are left out." in made


def test_a_failure_of_a_node_without_a_journal_has_no_button():
    summary = job()[0]
    rounds = [
        msgspec.structs.replace(one, failure=msgspec.structs.replace(one.failure, node="gone"))
        for one in summary.rounds
        if one.failure is not None
    ]
    assert "button" not in lists.failures(msgspec.structs.replace(summary, rounds=rounds))


def test_how_long_restarts_took_is_told_by_phase():
    said = plain(lists.restarts(job()[0]))
    assert "total 90 ms 124 ms 2 from the failure until the program ran" in said
    assert "evidence 101 ms 101 ms 1" in said


def test_without_restarts_there_is_no_part_for_them():
    assert lists.restarts(job(journal([*OPENING, *begin(10, 2), *ENDING]))[0]) == ""


def test_every_round_is_listed():
    said = plain(lists.rounds(job()[0]))
    assert "Rounds (3)" in said
    assert "7\N{EN DASH}27" in said
    assert "finished" in said


def test_rounds_of_several_launches_are_told_apart():
    summary = msgspec.structs.replace(job()[0], attempts=2)
    assert "launch.round" in lists.rounds(summary)
    assert "0.0" in lists.rounds(summary)  # as in the text and in JSON


def test_every_node_has_ranks_failures_and_a_clock():
    said = plain(lists.nodes(job(*two())[0]))
    assert "Nodes (2)" in said
    assert re.search(r"n0 0-1 1 \d \d+ %", said)
    assert "the axis is this one" in said
    assert "by order, within" in said


def test_the_cost_of_checkpoints_is_told():
    assert lists.checkpoints(job()[0]) == ""
    told = [
        at(500 + 100 * k, e.RankEvent, 0, rank=0, name="checkpoint", at_ns=(500 + 100 * k) * MS,
           text=f"saved step={k} bytes=1 stall_s=0.010 write_s=0.1 total_s=0.1")
        for k in range(3)
    ]  # fmt: skip
    said = plain(lists.checkpoints(job(journal([*RUN, *told]))[0]))
    assert said.startswith("Checkpoints checkpoints: 3 saved")


def test_notes_are_listed_once():
    summary = msgspec.structs.replace(job()[0], notes=["watch <out>", "watch <out>"])
    assert "Notes (1) watch &lt;out&gt;" in plain(lists.notes(summary, []))


def test_without_notes_there_is_no_part_for_them():
    summary = msgspec.structs.replace(job()[0], notes=[], launches=[])
    assert lists.notes(summary, []) == ""


def test_damage_of_journals_is_noted():
    damaged = journal()
    damaged.unreadable, damaged.unknown = 2, 1
    said = plain(lists.notes(job(damaged)[0], [damaged]))
    assert (
        "journal-n0.jsonl: 2 lines could not be read; skipped: 1 event of a newer version" in said
    )
