"""The rules judged on logs after public reports."""

from __future__ import annotations

import pytest

from tests.attribution.reports import PARTS, is_held, reports
from tests.attribution.reports.measure import Outcome, read_all
from undaunted.attribution.findings import CAUSES

LEAST = dict.fromkeys(PARTS, 0.95)  # of causes
LEAST_PLACES = LEAST | {"unseen_3": 0.9}  # of ranks or nodes


@pytest.fixture(scope="module", params=PARTS)
def outcomes(request: pytest.FixtureRequest) -> tuple[str, list[Outcome]]:
    return request.param, read_all(request.param)


def test_the_parts_are_told_apart_by_project() -> None:
    cases = {part: reports(part) for part in PARTS}
    every = [one for some in cases.values() for one in some]
    assert len(every) >= 300
    assert len({one.source.lower() for one in every}) == len(every)
    assert len({one.project.lower() for one in every}) >= 25
    assert not any(is_held(one.project) for one in cases["open"])
    assert all(is_held(one.project) for one in cases["held"])
    known = {one.project.lower() for part in ("open", "held") for one in cases[part]}
    for part in PARTS[2:]:
        new = {one.project.lower() for one in cases[part]}
        assert not known & new, part
        known |= new
    assert {cause for one in every for cause in one.causes} <= {*CAUSES, None}


def test_the_cause_is_right(outcomes: tuple[str, list[Outcome]]) -> None:
    part, some = outcomes
    wrong = [str(one) for one in some if not one.is_right]
    assert len(wrong) <= (1 - LEAST[part]) * len(some), wrong


def test_the_rank_or_the_node_is_right(outcomes: tuple[str, list[Outcome]]) -> None:
    part, some = outcomes
    places = [one for one in some if one.place_is_right is not None]
    wrong = [str(one) for one in places if not one.place_is_right]
    assert len(wrong) <= (1 - LEAST_PLACES[part]) * len(places), wrong


def test_no_job_is_stopped_and_no_node_left_out_without_need(
    outcomes: tuple[str, list[Outcome]],
) -> None:
    wrong = [str(one) for one in outcomes[1] if one.stops_wrongly or one.excludes_wrongly]
    assert not wrong
