from __future__ import annotations

from typing import Any

import pytest

from undaunted.checkpointing.dcp.paths import Places, get, own_containers


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ({}, ("a", "b"), {"a": {"b": 1}}),
        ({"a": None}, ("a", 1), {"a": [None, 1]}),
        ({"a": {"c": 0}}, ("a", "b"), {"a": {"c": 0, "b": 1}}),
        ({"a": {7: 0}}, ("a", "7"), {"a": {7: 1}}),
        ({"a": {7: 0}}, ("a", "8"), {"a": {7: 0, 8: 1}}),
        ({"a": [{}]}, ("a", 0, "b"), {"a": [{"b": 1}]}),
        ({"a": 5}, ("a",), {"a": 1}),
    ],
)
def test_values_come_to_their_places(root: Any, path: Any, expected: Any) -> None:
    places = Places(root)
    places.put(path, 1)
    assert root == expected
    assert not places.as_text
    assert get(root, path) == 1


def test_a_number_in_a_dictionary_that_was_empty_is_text() -> None:
    places = Places({"a": {}})
    places.put(("a", "7"), 1)
    places.put(("a", "8"), 2)
    assert places.root == {"a": {"7": 1, "8": 2}}
    assert list(places.as_text) == ["a"]


@pytest.mark.parametrize("path", [("a", "b"), ("l", 3), ("l", 0, "x"), ("t", "x")])
def test_nothing_there(path: Any) -> None:
    assert get({"a": {}, "l": [1], "t": 5}, path) is None


def test_containers_of_our_own() -> None:
    inner: Any = {"a": [1, {"b": 2}]}
    mine = own_containers(inner)
    assert mine == inner
    assert mine["a"] is not inner["a"]
    assert mine["a"][1] is not inner["a"][1]
