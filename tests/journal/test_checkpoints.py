"""What the report makes of events of checkpoints."""

from __future__ import annotations

import math

import pytest

from undaunted.base.console import plain
from undaunted.journal.checkpoints import advice, checkpoints, cost, joined, reports_of
from undaunted.journal.events import FailureDetected, RankEvent
from undaunted.journal.job.render import checkpoint_lines

S = 1_000_000_000


def saved(rank: int, step: int, at_s: float, stall_s: float, total_s: float) -> RankEvent:
    text = f"saved step={step} bytes=1024 stall_s={stall_s:.6f} write_s=0.1 total_s={total_s:.6f}"
    at_ns = int(at_s * S)
    return RankEvent(t=at_ns, round=0, rank=rank, name="checkpoint", at_ns=at_ns, text=text)


def told(text: str, number: int = 1) -> RankEvent:
    return RankEvent(t=S, round=number, rank=0, name="checkpoint", at_ns=S, text=text)


def test_the_slowest_rank_of_a_save_counts() -> None:
    events = [
        saved(0, 100, 10, 0.1, 1.0),
        saved(1, 100, 10, 0.3, 2.0),
        saved(0, 200, 40, 0.2, 1.5),
        saved(1, 200, 40, 0.1, 1.0),
    ]
    found = checkpoints(reports_of(events), 100 * S)
    assert found is not None
    assert (found.saved, found.failed, found.loaded) == (2, 0, 0)
    assert found.stall_s == pytest.approx(0.25)
    assert found.total_s == pytest.approx(1.75)
    assert found.interval_s == pytest.approx(30)
    assert found.advice_s is None  # nothing has failed


def test_failures_and_loads_make_an_advice() -> None:
    failure = FailureDetected(t=50 * S, round=0, kind="crash", rank=1)
    events = [
        saved(0, 100, 10, 0.5, 1.0),
        saved(0, 200, 40, 0.5, 1.0),
        failure,
        told("loaded step=200 bytes=1024 seconds=2.5"),
        told("failed step=300 no room"),
    ]
    found = checkpoints(reports_of(events), 400 * S)
    assert found is not None
    assert (found.failed, found.loaded, found.load_s) == (1, 1, 2.5)
    assert found.between_failures_s == 400
    assert found.advice_s == pytest.approx(20, rel=0.05)
    text = plain(list(checkpoint_lines(found)))
    assert "2 saved, stopped training for 500 ms" in text
    assert "1 failed, 1 loaded in 2.5 s" in text
    assert "a checkpoint every 20" in text or "a checkpoint every 19." in text


def test_runs_without_checkpoints_have_none() -> None:
    other = RankEvent(t=1, rank=0, name="mine", at_ns=1, text="saved step=1")
    assert checkpoints(reports_of([other]), S) is None


def test_of_many_launches_the_slowest_rank_counts_and_attempts_are_told_apart() -> None:
    one, other = (
        reports_of([saved(0, 100, 10, 0.1, 1.0)]),
        reports_of([saved(1, 100, 10, 0.3, 2.0)]),
    )
    broken = reports_of([FailureDetected(t=50 * S, round=0, kind="crash", rank=1)])
    same = checkpoints(joined([(0, one), (0, other), (0, broken)]), 100 * S)
    assert same is not None
    assert (same.saved, same.stall_s, same.between_failures_s) == (1, 0.3, 100.0)
    again = checkpoints(joined([(0, one), (1, other), (0, broken), (1, broken)]), 100 * S)
    assert again is not None
    assert (again.saved, again.between_failures_s) == (2, 50.0)
    assert checkpoints(joined([(0, broken)]), S) is None


def test_the_words_of_an_error_are_no_numbers() -> None:
    errors = ["failed step=300 of step=200: seconds=9", "failed step=400 of step=200"]
    found = checkpoints(reports_of([told(text) for text in errors]), S)
    assert found is not None
    assert found.failed == 2


@pytest.mark.parametrize("text", ["", "saved", "saved step=x", "saved step=1 stall_s=", "loaded"])
def test_damaged_events_do_no_harm(text: str) -> None:
    assert checkpoints(reports_of([told(text)]), S) is not None


def test_the_advice_is_the_minimum_of_the_cost() -> None:
    stall_s, between_s = 1.0, 5000.0
    best = advice(stall_s, between_s, 0.0)
    assert best == pytest.approx(math.sqrt(2 * stall_s * between_s), rel=0.02)
    least = cost(best, stall_s, 0.0, between_s)
    assert least is not None
    for factor in (0.5, 0.8, 1.25, 2):
        other = cost(best * factor, stall_s, 0.0, between_s)
        assert other is not None
        assert other > least


def test_no_interval_is_shorter_than_a_write() -> None:
    assert advice(0.001, 100.0, 30.0) == 30.0


def test_a_checkpoint_that_costs_more_than_two_failures() -> None:
    assert advice(30.0, 10.0, 5.0) == 10.0
    assert cost(10.0, 30.0, 0.0, 10.0) == 1.0
