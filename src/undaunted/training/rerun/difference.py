"""The distance of two results from each other."""

from __future__ import annotations

import math
from typing import Any

COMPARISON_MATCH = 0.0
COMPARISON_MISMATCH = math.inf


def difference(first: Any, second: Any) -> float:
    """Return how far two numbers are apart, relative to their size: between 0 and 2, or infinity.

    It is the same with the numbers swapped. Two that are the same differ by 0, also two NaN. NaN or
    an infinity differs from all else by infinity. Numbers of opposite signs differ by 2.

    Args:
        first: a number, or a tensor with one element.
        second: another one.
    """
    a, b = _number(first), _number(second)
    if a == b or (math.isnan(a) and math.isnan(b)):
        return COMPARISON_MATCH
    if not (math.isfinite(a) and math.isfinite(b)):
        return COMPARISON_MISMATCH
    size = abs(a) + abs(b)
    if math.isinf(size):  # the numbers are very large
        a, b = a / 4, b / 4
        size = abs(a) + abs(b)
    return 2 * (abs(a - b) / size)


def _number(value: Any) -> float:
    """Return a number.

    Raises:
        ValueError: it is none.
    """
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"a result that is no number cannot be compared ({error}); give comparison_func"
        ) from None
