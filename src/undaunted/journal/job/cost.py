"""What rank-time costs. Pure functions."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from undaunted.journal.job.values import Cost

if TYPE_CHECKING:
    from undaunted.journal.goodput import Times

_HOUR_NS = 3600 * 1_000_000_000
_PRICE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([^\s0-9.,].*)?", re.ASCII)
_MOST = 1e12


class Price(NamedTuple):
    """Of one rank for an hour; ``currency`` is any text."""

    amount: float
    currency: str = ""


def parse_price(text: str) -> Price:
    """Return the price that a user has written: a number, and a currency if they like.

    Raises:
        ValueError: it is not that; the message says what is expected.
    """
    found = _PRICE.fullmatch(text.strip())
    amount = float(found.group(1)) if found else math.inf
    if found is None or amount > _MOST:
        raise ValueError(
            f"{text!r} is no price of one rank for an hour; write a number, and a currency after "
            "it if you like: 2.5 or '2.5 EUR'"
        )
    return Price(amount, found.group(2) or "")


def cost_of(price: Price, times: Times, spare_ns: int) -> Cost:
    """Return what the rank-time of a job costs."""
    spent = {name.removesuffix("_ns"): getattr(times, name) for name in times.__struct_fields__}
    spent["spare"] = spare_ns
    by_class = {name: ns / _HOUR_NS * price.amount for name, ns in spent.items() if ns}
    return Cost(
        price=price.amount,
        currency=price.currency,
        total=sum(by_class.values()),
        productive=by_class.get("productive", 0.0),
        by_class=by_class,
    )
