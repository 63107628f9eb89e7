"""Tests of `undaunted.journal.page.figures`."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tests.journal.page.jobs import job
from undaunted.journal.goodput import Times
from undaunted.journal.job.values import Cost, JobSummary
from undaunted.journal.page import figures

HOUR = 3600 * 10**9


def changed(**changes: Any) -> JobSummary:
    return msgspec.structs.replace(job()[0], **changes)


def plain(markup: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", markup).split())


def test_the_heading_names_run_and_outcome():
    assert plain(figures.heading(job()[0])) == "demo finished"
    assert "badge good" in figures.heading(job()[0])
    assert "badge bad" in figures.heading(changed(outcome="failed"))


def test_a_run_without_an_end_says_so():
    assert plain(figures.heading(changed(outcome="", run_id=""))) == (
        "run of unknown name no end recorded"
    )


def test_a_run_that_goes_on_says_so():
    launches = [msgspec.structs.replace(one, running=True, outcome="") for one in job()[0].launches]
    going_on = changed(outcome="", launches=launches)
    assert "still runs" in figures.heading(going_on)
    assert "told up to 9.0 s later" in figures.about(going_on)


def test_a_run_whose_launchers_are_gone_says_so():
    launches = [
        msgspec.structs.replace(one, running=False, outcome="") for one in job()[0].launches
    ]
    assert "killed" in figures.heading(changed(outcome="", launches=launches))


def test_what_was_run_and_for_how_long():
    said = plain(figures.about(changed(attempts=2)))
    assert "train.py --fast" in said
    assert "1 node · 2 ranks · 2 launches · started 1970-01-01 00:16 UTC · took 9.0 s" in said


@pytest.mark.parametrize("wall", [None, 1e300])
def test_a_start_that_is_not_known_is_left_out(wall):
    assert "started" not in figures.about(changed(started_wall=wall))


def test_the_tiles_hold_the_figures():
    said = plain(figures.tiles(job()[0]))
    assert "Goodput 45 %" in said
    assert "Failures 2 1 crash, 1 hang" in said
    assert "MTTF" in said
    assert "Lost steps 60" in said
    assert "Cost" not in said


def test_without_steps_there_is_no_goodput():
    assert "Goodput not known" in plain(figures.tiles(changed(goodput=None, ettr=None)))


def test_the_cost_is_shown_where_a_price_is_given():
    cost = Cost(price=2, currency="EUR", total=1000, productive=900, by_class={"productive": 900})
    priced = changed(cost=cost)
    assert "Cost 1,000 EUR 100 EUR of it not productive" in plain(figures.tiles(priced))
    assert "900 EUR" in plain(figures.times(priced))


@pytest.mark.parametrize(
    ("hours", "unit", "figure"),
    [(100, "rank-hours", "100"), (1, "rank-minutes", "60.0"), (0.001, "rank-seconds", "3.6")],
)
def test_rank_time_is_told_in_a_unit_that_fits(hours, unit, figure):
    said = plain(figures.times(changed(times=Times(productive_ns=round(hours * HOUR)))))
    assert unit in said
    assert f"productive {figure} 100 %" in said


def test_spare_nodes_have_a_share_of_their_own():
    said = plain(figures.times(changed(times=Times(productive_ns=HOUR), spare_ns=HOUR)))
    assert "spare 60.0 50 %" in said


def test_of_nothing_there_is_no_bar():
    assert figures.times(changed(times=Times(), spare_ns=0)) == "<p>Nothing is recorded.</p>"


def test_the_bar_is_full():
    widths = re.findall(r'width="([0-9.]+)" height', figures.times(job()[0]))
    assert sum(map(float, widths)) == pytest.approx(1000, abs=0.1)


def test_every_class_and_sign_is_in_the_legend():
    assert figures.legend().count("<li>") == len(Times.__struct_fields__) + 5
