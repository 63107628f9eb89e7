"""Prices as users write them, and what rank-time costs."""

from __future__ import annotations

import pytest

from undaunted.journal.goodput import Times
from undaunted.journal.job.cost import Price, cost_of, parse_price

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
