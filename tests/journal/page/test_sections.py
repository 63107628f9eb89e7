"""The parts of the page say what the report does."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tests.journal.page.jobs import job, journal
from tests.journal.sample import ENDING, MS, OPENING, RUN, at, begin
from undaunted.journal import events as e
from undaunted.journal.goodput import Times
from undaunted.journal.job.values import Cost, JobSummary
from undaunted.journal.page import sections

HOUR = 3600 * 10**9


def changed(**changes: Any) -> JobSummary:
    return msgspec.structs.replace(job()[0], **changes)


def plain(markup: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", markup).split())


def test_what_went_wrong_is_text_and_nothing_else() -> None:
    made = sections.explained("round 0\n  what: <b>\x1b[31m")
    assert "round 0\n  what: &lt;b&gt;" in made
    assert "\x1b" not in made
    assert sections.explained("") == ""


def test_the_heading_names_run_and_outcome():
    assert plain(sections.heading(job()[0])) == "demo finished"
    assert "badge good" in sections.heading(job()[0])
    assert "badge bad" in sections.heading(changed(outcome="failed"))


def test_a_run_without_an_end_says_so():
    assert plain(sections.heading(changed(outcome="", run_id=""))) == (
        "run of unknown name no end recorded"
    )


def test_a_run_that_goes_on_says_so():
    launches = [msgspec.structs.replace(one, running=True, outcome="") for one in job()[0].launches]
    going_on = changed(outcome="", launches=launches)
    assert "still runs" in sections.heading(going_on)
    assert "recorded up to 9.0 s later" in sections.about(going_on)


def test_a_run_whose_launchers_are_gone_says_so():
    launches = [
        msgspec.structs.replace(one, running=False, outcome="") for one in job()[0].launches
    ]
    assert "broke off" in sections.heading(changed(outcome="", launches=launches))


def test_a_start_that_is_not_known():
    assert "started" not in sections.about(changed(started_wall=None))
    assert "started at an unknown time" in sections.about(changed(started_wall=1e300))


def test_without_steps_there_is_no_goodput():
    assert "Goodput not known" in plain(sections.tiles(changed(goodput=None, ettr=None)))


def test_the_cost_is_shown_where_a_price_is_given():
    cost = Cost(price=2, currency="EUR", total=1000, productive=900, by_class={"productive": 900})
    priced = changed(cost=cost)
    assert "Cost 1,000 EUR 100 EUR of it not productive" in plain(sections.tiles(priced))
    assert "900 EUR" in plain(sections.times(priced))


@pytest.mark.parametrize(
    ("hours", "unit", "figure"),
    [(100, "rank-hours", "100"), (1, "rank-minutes", "60.0"), (0.001, "rank-seconds", "3.6")],
)
def test_rank_time_is_told_in_a_unit_that_fits(hours, unit, figure):
    said = plain(sections.times(changed(times=Times(productive_ns=round(hours * HOUR)))))
    assert unit in said
    assert f"productive {figure} 100 %" in said


def test_spare_nodes_have_a_share_of_their_own():
    said = plain(sections.times(changed(times=Times(productive_ns=HOUR), spare_ns=HOUR)))
    assert "spare 60.0 50 %" in said


def test_of_nothing_there_is_no_bar():
    assert sections.times(changed(times=Times(), spare_ns=0)) == "<p>Nothing is recorded.</p>"


def test_the_bar_is_full():
    widths = re.findall(r'width="([0-9.]+)" height', sections.times(job()[0]))
    assert sum(map(float, widths)) == pytest.approx(1000, abs=0.1)


def test_every_class_and_sign_is_in_the_legend():
    assert sections.legend().count("<li>") == len(Times.__struct_fields__) + 5


def test_a_failure_has_its_cause_its_traceback_and_a_button():
    made = sections.failures(job()[0])
    assert 'disabled data-at="997" data-node="0" data-rank="1">show</button>' in made
    assert "<summary>rank 1 raised ValueError: bad batch</summary><pre>Traceback" in made
    assert "00:00.997 0 crash n0 1" in plain(made)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"action": "restart"}, "restart: why"),
        (
            {"action": "exclude", "nodes": ["b", "<c>"], "done": True},
            "done: exclude b, &lt;c&gt;: why",
        ),
    ],
)
def test_a_failure_has_the_advice_that_was_given(about, said):
    advised = at(1041, e.RoundAdvised, 0, number=0, reason="why", **about)
    assert said not in plain(sections.failures(job()[0]))
    assert said in plain(sections.failures(job(journal([*RUN, advised]))[0]))


def test_a_job_without_failures_says_so():
    calm = [*OPENING, *begin(10, 2), *ENDING]
    assert sections.failures(job(journal(calm))[0]) == "<p>There was none.</p>"


def test_only_so_many_failures_are_listed(monkeypatch):
    monkeypatch.setattr(sections, "_MOST_ROWS", 1)
    made = sections.failures(job()[0])
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
    assert "button" not in sections.failures(msgspec.structs.replace(summary, rounds=rounds))


def test_without_restarts_there_is_no_part_for_them():
    assert sections.restarts(job(journal([*OPENING, *begin(10, 2), *ENDING]))[0]) == ""


def test_rounds_of_several_launches_are_told_apart():
    summary = msgspec.structs.replace(job()[0], attempts=2)
    assert "launch.round" in sections.rounds(summary)
    assert "0.0" in sections.rounds(summary)  # as in the text and in JSON


def test_the_cost_of_checkpoints_is_told():
    assert sections.checkpoints(job()[0]) == ""
    told = [
        at(500 + 100 * k, e.RankEvent, 0, rank=0, name="checkpoint", at_ns=(500 + 100 * k) * MS,
           text=f"saved step={k} bytes=1 stall_s=0.010 write_s=0.1 total_s=0.1")
        for k in range(3)
    ]  # fmt: skip
    said = plain(sections.checkpoints(job(journal([*RUN, *told]))[0]))
    assert said.startswith("Checkpoints checkpoints: 3 saved")


def test_notes_are_listed_once():
    summary = msgspec.structs.replace(job()[0], notes=["watch <out>", "watch <out>"])
    assert "Notes (1) watch &lt;out&gt;" in plain(sections.notes(summary, []))


def test_without_notes_there_is_no_part_for_them():
    summary = msgspec.structs.replace(job()[0], notes=[], launches=[])
    assert sections.notes(summary, []) == ""


def test_damage_of_journals_is_noted():
    damaged = journal()
    damaged.unreadable, damaged.unknown = 2, 1
    said = plain(sections.notes(job(damaged)[0], [damaged]))
    assert (
        "journal-n0.jsonl: 2 lines could not be read; skipped: 1 event of a newer version" in said
    )
