"""How far results are apart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.training.rerun.difference import difference

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (1.0, 1.0, 0.0),
        (0.0, -0.0, 0.0),
        (NAN, NAN, 0.0),
        (INF, INF, 0.0),
        (-INF, -INF, 0.0),
        (INF, -INF, INF),
        (NAN, 1.0, INF),
        (INF, 1.0, INF),
        (NAN, INF, INF),
        (1.0, 3.0, 1.0),
        (-1.0, -3.0, 1.0),
        (0.0, 5.0, 2.0),
        (1.5, -1.5, 2.0),
        (1e308, -1e308, 2.0),
        (5e-324, 0.0, 2.0),
        (5e-324, -5e-324, 2.0),
        (2, 2, 0.0),
    ],
)
def test_rows(first, second, expected):
    assert difference(first, second) == expected
    assert difference(second, first) == expected


@given(st.floats(), st.floats())
def test_it_is_a_number_above_0_unless_they_are_the_same(first, second):
    found = difference(first, second)
    assert found == difference(second, first)
    same = first == second or (math.isnan(first) and math.isnan(second))
    assert (found == 0) == same
    assert same or 0 < found <= 2 or found == INF


def test_tensors():
    torch = pytest.importorskip("torch")
    assert difference(torch.tensor(1.0), torch.tensor(3.0)) == 1.0
    with pytest.raises(ValueError, match="comparison_func"):
        difference(torch.zeros(2), torch.zeros(2))


def test_what_is_no_number():
    with pytest.raises(ValueError, match="comparison_func"):
        difference("a", "a")
