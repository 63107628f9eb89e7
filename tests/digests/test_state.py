"""Digests of values that need no torch."""

from __future__ import annotations

import dataclasses
import struct
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.digests.state import digest_of, parts_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@dataclasses.dataclass
class Batch:
    rows: list[int]
    label: str


class Stateful:
    def __init__(self, state: object) -> None:
        self.state = state

    def state_dict(self) -> object:
        return self.state


def test_a_digest_is_sixteen_hexadecimal_characters() -> None:
    assert len(digest_of({"a": 1})) == 16
    int(digest_of({"a": 1}), 16)


@given(VALUES)
def test_what_has_lived_in_a_file_has_the_digest_it_had(value: object) -> None:
    def copied(one: object) -> object:
        if isinstance(one, list):
            return tuple(map(copied, one))
        if isinstance(one, dict):
            return OrderedDict((key, copied(one[key])) for key in reversed(one))
        return one

    assert digest_of(copied(value)) == digest_of(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        (1, "1"),
        (0, None),
        (0.0, -0.0),
        ("ab", b"ab"),
        ([1, [2]], [[1], 2]),
        ([[], []], [[[]]]),
        (["ab", "c"], ["a", "bc"]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 2}),
        ({1: 2}, {"1": 2}),
        ([], {}),
        ({1, 2}, {1, 3}),
        (Batch([1], "x"), Batch([2], "x")),
        (1j, 1.0),
    ],
)
def test_what_differs_has_another_digest(one: object, other: object) -> None:
    assert digest_of(one) != digest_of(other)


def test_nan_is_taken_by_its_bits() -> None:
    (other,) = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))
    assert digest_of(float("nan")) == digest_of(float("nan"))
    assert digest_of(float("nan")) != digest_of(other)


def test_sets_have_no_order() -> None:
    assert digest_of({"a", "b", "c"}) == digest_of({"c", "b", "a"})


def test_an_object_with_a_state_is_its_state() -> None:
    assert digest_of(Stateful({"x": 1})) == digest_of({"x": 1})


@pytest.mark.parametrize("value", [object(), [object()], {"a": {"b": print}}, Stateful])
def test_anything_else_has_none_and_is_named(value: object) -> None:
    with pytest.raises(ValueError, match=r"has no digest; give a module"):
        digest_of(value)


def test_where_that_is_allowed_the_type_stands_for_it() -> None:
    assert digest_of(object(), strict=False) == digest_of(object(), strict=False)
    assert digest_of([print, 1], strict=False) != digest_of([print, 2], strict=False)


def test_a_container_that_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested more than"):
        digest_of(loop)


def test_parts_of_a_dictionary_are_its_entries() -> None:
    assert parts_of({"loss": 1.5, 3: "x"}) == {"loss": digest_of(1.5), "3": digest_of("x")}


def test_anything_without_names_of_its_own_is_one_part() -> None:
    assert parts_of(2.5) == {"state": digest_of(2.5)}
    assert parts_of([1]) == {"state": digest_of([1])}
