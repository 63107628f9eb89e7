import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.base.durations import parse_limit, parse_optional_seconds, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    {"90": 90, "1.5": 1.5, "1e3": 1000, "500ms": 0.5, " 2 h ": 7200, "15MIN": 900}.items(),
)
def test_durations(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "1w", "nan", "inf", "1e999", "1 2", "h", "0x10"]
)
def test_what_is_no_duration_is_named(text):
    with pytest.raises(ValueError, match=r"is not a duration; give seconds"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["", "none", "None", "NULL", " "])
def test_off(text):
    assert parse_optional_seconds(text) is None
    assert parse_limit(text) is None


def test_limit_of_zero_is_refused():
    assert parse_optional_seconds("0") == 0
    with pytest.raises(ValueError, match="expire at once"):
        parse_limit("0")
    with pytest.raises(ValueError, match="or none to turn it off"):
        parse_limit("off")


@given(st.text())
def test_any_text_gives_seconds_or_an_error(text):
    try:
        seconds = parse_seconds(text)
    except ValueError:
        return
    assert math.isfinite(seconds)
    assert seconds >= 0
