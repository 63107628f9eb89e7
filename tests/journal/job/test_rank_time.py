"""Idle time is told apart from time without a seat; prices, and what rank-time costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journal.sample import account_of
from undaunted.journal import events as e
from undaunted.journal.goodput import Span, Times
from undaunted.journal.job.launches import Launch, launches_of
from undaunted.journal.job.rank_time import Course, Price, cost_of, parse_price, stretches
from undaunted.journal.reader import Journal


def launch(*rounds: tuple[int, int, int]) -> Launch:
    """A launch from 0 to 1000 with these rounds: number, begin, stopped."""
    events: list[e.AnyEvent] = [
        e.JobStarted(t=0, run_id="r", argv=[], nproc_per_node=2, max_restarts=1),
        *(
            event
            for number, begin, stopped in rounds
            for event in (
                e.RoundStarted(t=begin, round=number, world_size=2, ranks=[0, 1]),
                e.StopRequested(t=begin, round=number, reason="", grace_s=1),
                e.RoundStopped(t=stopped, round=number),
            )
        ),
        e.JobEnded(t=1000, outcome="finished", exit_code=0),
    ]
    return launches_of([Journal(Path("j"), events)])[0]


def lane(
    one: Launch, numbers: list[int], begins: list[int], stops: list[int] | None = None
) -> list[Span]:
    return stretches(one, account_of(one.events), Course(numbers, begins, stops or [9999] * 9))


def test_between_its_own_rounds_a_node_is_idle() -> None:
    assert lane(launch((0, 100, 200), (1, 300, 400)), [0, 1], [100, 290]) == [
        Span(-1, "idle", 0, 100),
        Span(0, "stop", 100, 200),
        Span(0, "idle", 200, 300),
        Span(1, "stop", 300, 400),
        Span(1, "idle", 400, 1000),
    ]


def test_while_others_have_rounds_it_is_a_spare() -> None:
    assert lane(launch((0, 100, 200), (3, 700, 800)), [0, 1, 2, 3], [100, 300, 500, 690]) == [
        Span(-1, "idle", 0, 100),
        Span(0, "stop", 100, 200),
        Span(0, "idle", 200, 300),
        Span(1, "spare", 300, 500),
        Span(2, "spare", 500, 690),
        Span(3, "idle", 690, 700),
        Span(3, "stop", 700, 800),
        Span(3, "idle", 800, 1000),
    ]


def test_so_it_is_if_it_never_has_one() -> None:
    assert lane(launch(), [0, 1], [100, 500]) == [
        Span(-1, "idle", 0, 100),
        Span(0, "spare", 100, 500),
        Span(1, "spare", 500, 1000),
    ]


def test_what_others_begin_before_it_comes_is_no_time_of_its() -> None:
    one = launch((2, 600, 700))
    one.offset_ns = 50
    assert lane(one, [0, 1, 2], [-500, 300, 640]) == [
        Span(0, "spare", 50, 300),
        Span(1, "spare", 300, 640),
        Span(2, "idle", 640, 650),
        Span(2, "stop", 650, 750),
        Span(2, "idle", 750, 1050),
    ]


def test_once_the_round_has_stopped_who_gets_a_seat_is_idle() -> None:
    one = launch((2, 600, 700))
    assert lane(one, [0, 1, 2], [-500, 300, 590], [250, 450, 650]) == [
        Span(0, "spare", 0, 300),  # round 1 runs without it
        Span(1, "spare", 300, 450),
        Span(1, "idle", 450, 590),
        Span(2, "idle", 590, 600),
        Span(2, "stop", 600, 700),
        Span(2, "idle", 700, 1000),
    ]


# --- cost


HOUR = 3600 * 1_000_000_000


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("2.5", Price(2.5)),
        ("0", Price(0)),
        (" 2.50 EUR ", Price(2.5, "EUR")),
        ("3€", Price(3, "€")),
        ("1 GPU credit", Price(1, "GPU credit")),
    ],
)
def test_a_price_is_a_number_and_a_currency(text: str, price: Price) -> None:
    assert parse_price(text) == price


@pytest.mark.parametrize("text", ["", "EUR 2", "-1", "nan", ".", "2,5", "2.5.1", "9" * 400])
def test_what_is_no_price_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"write a number, and a currency"):
        parse_price(text)


def test_every_class_has_its_cost() -> None:
    cost = cost_of(Price(2, "EUR"), Times(productive_ns=3 * HOUR, stop_ns=HOUR // 2), HOUR)
    assert cost.by_class == {"productive": 6, "stop": 1, "spare": 2}
    assert (cost.total, cost.productive, cost.currency) == (9, 6, "EUR")
