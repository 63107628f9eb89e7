"""Texts in columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.top.cells import cut, fill, width_of


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("step", 4, "step"),
        ("steps", 4, "ste~"),
        ("steps", None, "steps"),
        ("steps", 1, "~"),
        ("steps", 0, ""),
        ("\u6b65\u9aa4x", 5, "\u6b65\u9aa4x"),
        ("\u6b65\u9aa4x", 4, "\u6b65~"),
        ("e\u0301tape", 5, "e\u0301tape"),
    ],
)
def test_cut(text: str, width: int | None, expected: str) -> None:
    assert cut(text, width) == expected


def test_fill() -> None:
    assert fill("ab", 4) == "ab  "
    assert fill("ab", 4, right=True) == "  ab"
    assert fill("\u6b65", 4) == "\u6b65  "
    assert fill("long", 2) == "long"


@given(st.text(), st.integers(0, 20))
def test_never_wider(text: str, width: int) -> None:
    assert width_of(cut(text, width)) <= width
