from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.doctor.versions import Version, parse_range, parse_version, unaffected

NUMBERS = st.lists(st.integers(0, 9999), min_size=1, max_size=5)


def text_of(numbers: list[int]) -> str:
    return ".".join(map(str, numbers))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.28.9", Version((2, 28, 9))),
        ("2.13.0+cpu", Version((2, 13))),
        ("2.10.0.dev20250901+cu126", Version((2, 10), released=False)),
        ("2.7.0a0+79aa17489c.nv25.04", Version((2, 7), released=False)),
        ("2.6.0-rc1", Version((2, 6), released=False)),
        ("2.6.0rc1", Version((2, 6), released=False)),
        ("5.15.0-1023-aws", Version((5, 15))),
        ("6.1.0-debian", Version((6, 1))),
        ("570.133.20", Version((570, 133, 20))),
        ("2.5.1.post4", Version((2, 5, 1))),
        ("v3.5.9", Version((3, 5, 9))),
        ("0", Version(())),
    ],
)
def test_versions_as_they_are_written(text: str, version: Version) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "unknown", "x2", ".1", "9" * 30, "\u0663.1"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is no version"):
        parse_version(text)


@pytest.mark.parametrize("text", ["", "2.28", "=>2", ">=2,", ">= ", "~=2.1", ">=x", ">=1 <2"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (range|version)"):
        parse_range(text)


def test_a_forerunner_comes_before_its_release_and_after_the_one_before() -> None:
    before, forerunner, release = map(parse_version, ("2.9.1", "2.10.0.dev1", "2.10"))
    assert before < forerunner < release


def test_both_ends_of_a_range() -> None:
    affected = parse_range(">=2.28.3,<=2.28.8")
    inside = {text: affected.includes(parse_version(text)) for text in ("2.28.3", "2.28.8")}
    assert inside == {"2.28.3": True, "2.28.8": True}
    for text in ("2.28.2", "2.28.9", "2.28", "2.29", "2.28.8.1", "2.28.3rc1"):
        assert not affected.includes(parse_version(text)), text
    assert parse_range("*").includes(parse_version("0.1"))
    assert str(affected) == ">=2.28.3,<=2.28.8"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<2.8", "2.8 or newer"),
        (">=2.31.2", "older than 2.31.2"),
        (">=2.28.3,<=2.28.8", "newer than 2.28.8, or older than 2.28.3"),
        (">=2.28.3,<2.28.7", "2.28.7 or newer, or older than 2.28.3"),
        ("==2.27.7", "another than 2.27.7"),
        ("*", ""),
    ],
)
def test_what_is_not_affected_in_words(text: str, words: str) -> None:
    assert unaffected([text]) == words


def test_several_ranges_in_words() -> None:
    assert unaffected(["<1", "==3"]) == "outside of <1 or ==3"


@given(NUMBERS, NUMBERS)
def test_versions_are_ordered_as_their_numbers(one: list[int], other: list[int]) -> None:
    longest = max(len(one), len(other))
    numbers = [part + [0] * (longest - len(part)) for part in (one, other)]
    first, second = parse_version(text_of(one)), parse_version(text_of(other))
    assert (first < second) == (numbers[0] < numbers[1])
    assert (first == second) == (numbers[0] == numbers[1])


@given(NUMBERS, NUMBERS)
def test_signs_agree_with_each_other(one: list[int], other: list[int]) -> None:
    version, bound = parse_version(text_of(one)), text_of(other)
    holds = {sign: parse_range(f"{sign}{bound}").includes(version) for sign in _SIGNS}
    assert holds[">="] == (holds[">"] or holds["=="])
    assert holds["<="] == (holds["<"] or holds["=="])
    assert holds["<"] != holds[">="]
    assert sum(holds[sign] for sign in ("<", "==", ">")) == 1


_SIGNS = (">=", "<=", "==", "<", ">")


@given(st.text(max_size=30))
def test_any_text_is_a_version_or_refused(text: str) -> None:
    try:
        version = parse_version(text)
    except ValueError:
        return
    assert parse_range("*").includes(version)
