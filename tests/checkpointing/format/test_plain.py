"""Plain data on disk and on the wire."""

from __future__ import annotations

import contextlib
import math
from argparse import Namespace
from collections import OrderedDict, defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.format.plain import PlainError, decode, encode

KEYS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.tuples(st.integers())
)
NAMES = st.text().filter(lambda name: not name.startswith("__"))  # those are Python's
LEAVES = st.one_of(KEYS, st.floats(allow_nan=False), st.complex_numbers(allow_nan=False))
DATA = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner),
        st.dictionaries(KEYS, inner).map(OrderedDict),
        st.sets(KEYS),
        st.frozensets(KEYS),
        st.dictionaries(NAMES, inner).map(lambda named: Namespace(**named)),
    ),
    max_leaves=12,
)


def types(value: object) -> object:
    """The value with the types of everything in it, as True == 1 == 1.0."""
    if isinstance(value, dict):
        return type(value), [(types(k), types(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [types(v) for v in value]
    if isinstance(value, Namespace):
        return Namespace, types(vars(value))
    return type(value), value


@given(DATA)
def test_comes_back_as_it_was(value: object) -> None:
    assert types(decode(encode(value))) == types(value)


def test_rare_values() -> None:
    values = [1 << 200, -(1 << 63), (1 << 63), bytearray(b"x"), "\ud800", math.inf, -0.0]
    assert types(decode(encode(values))) == types(values)
    assert math.isnan(decode(encode(math.nan)))


def test_attributes_of_an_ordered_dict_are_kept() -> None:
    state = OrderedDict(a=1)
    state._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    back = decode(encode(state))
    assert back == state
    assert back._metadata == {"": {"version": 1}}


def test_what_is_not_plain_is_named_with_its_place() -> None:
    with pytest.raises(PlainError, match=r"^model\.1\.hook: an object of type builtins\.function"):
        encode({"model": [0, {"hook": types}]})
    with pytest.raises(PlainError, match="defaultdict"):
        encode(defaultdict(list))


def test_what_contains_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(PlainError, match="contains itself"):
        encode(endless)


def test_other_types_have_names_and_parts() -> None:
    packed = encode({"s": slice(1, 2)}, lambda value: ("slice", (value.start, value.stop)))  # type: ignore[attr-defined]
    assert decode(packed, {"slice": lambda parts: slice(*parts)}) == {"s": slice(1, 2)}
    with pytest.raises(PlainError, match="'slice', which cannot be read here"):
        decode(packed)


@pytest.mark.parametrize(
    "packed",
    [[], [99], ["x"], [2, 1], [3, [0]], [5, "z"], [6, "a", "b"], [9], [10, 1, 2], [11, "x"], {}],
)
def test_nonsense_is_an_error_of_its_own(packed: object) -> None:
    with pytest.raises(PlainError):
        decode(msgspec.msgpack.encode(packed))


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_are_refused(content: bytes) -> None:
    with contextlib.suppress(PlainError):
        decode(content)


def test_nested_bombs_are_refused() -> None:
    with pytest.raises(PlainError):
        decode(b"\x92\x00" * 100_000)
