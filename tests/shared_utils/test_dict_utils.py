from __future__ import annotations

from argparse import Namespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.shared_utils import dict_utils as utils

NESTED = st.recursive(
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)


def example():
    return {"a": [1, {"b": 2}], "c": {"d": 3}}


def test_extract_matching_values():
    above = (lambda value: value > 1,)
    kept = {"a": [{"b": 2}], "c": {"d": 3}}
    assert utils.extract_matching_values(example(), *above) == (kept, {"a": [1]})
    by_index = {"a": {1: {"b": 2}}, "c": {"d": 3}}
    assert utils.extract_matching_values(example(), *above, True) == (by_index, {"a": {0: 1}})
    assert utils.extract_matching_values([1, 2, 3], *above) == ([2, 3], [1])
    assert utils.extract_matching_values({"a": []}, *above) == ({}, {"a": []})


@given(NESTED)
def test_the_halves_are_the_whole(x):
    matching, others = utils.extract_matching_values(x, lambda value: value % 2 == 0, True)
    both = [*utils.nested_values(matching), *utils.nested_values(others)]
    assert sorted(both) == sorted(utils.nested_values(x))


def test_leaves():
    x = example()
    assert list(utils.nested_values(x)) == [1, 2, 3]
    assert list(utils.nested_items_iter(x)) == [
        (x["a"], 0, 1),
        (x["a"][1], "b", 2),
        (x["c"], "d", 3),
    ]
    with pytest.raises(TypeError, match="expected a dict or a list, got int"):
        list(utils.nested_values(3))


def test_maps_change_what_they_are_given():
    x = {"a": 1}
    utils.dict_map(lambda value: value + 1, x)
    assert x == {"a": 2}
    utils.dict_map_with_key(lambda key, value: f"{key}{value}", x)
    assert x == {"a": "a2"}
    x = example()
    assert utils.dict_list_map_inplace(lambda value: value * 10, x) is x
    assert x == {"a": [10, {"b": 20}], "c": {"d": 30}}
    assert utils.dict_list_map_inplace(str, 1) == "1"


def test_merge():
    x = {"a": 1, "b": {"c": 1}, "l": [{"x": 1}]}
    assert utils.merge(x, {"b": {"d": 2}, "e": 3, "l": [{"y": 2}]}) is x
    assert x == {"a": 1, "b": {"c": 1, "d": 2}, "e": 3, "l": [{"x": 1, "y": 2}]}
    with pytest.raises(ValueError, match=r"both have a value at \('a', 0\): 1 and 2"):
        utils.merge({"a": [1]}, {"a": [2]})
    with pytest.raises(
        ValueError, match=r"lists of 1 and 2 items cannot be merged \(at \('a',\)\)"
    ):
        utils.merge({"a": [1]}, {"a": [2, 3]})


def test_map_reduce():
    found = utils.map_reduce([1, 2, 3, 4], lambda x: x % 2, lambda x: x * 10, sum)
    assert found == {1: 40, 0: 60}
    assert utils.map_reduce("aba") == {"a": ["a", "a"], "b": ["b"]}


def test_states():
    x = {"a": 1, "b": {"c": 1}, "l": [1, 2]}
    utils.merge_state_dicts_(x, {"b": {"d": 2}, "a": 5, "l": [3]})
    assert x == {"a": 5, "b": {"c": 1, "d": 2}, "l": [3]}
    new = {"a": 1, "b": {"c": 2, "d": 3}, "e": 5, "f": {"g": 1}}
    old = {"a": 1, "b": {"c": 1}, "f": {"g": 1}}
    found = utils.compare_state_dicts_and_get_new_values(old, new)
    assert found == {"b": {"c": 2, "d": 3}, "e": 5}


def test_namespaces():
    one = Namespace(a=1, b=2, x=0)
    assert utils.compare_namespaces(one, Namespace(a=1, b=3, c=4)) == Namespace(b=3, c=4)
    utils.merge_namespaces_(one, Namespace(b=3))
    utils.merge_namespace_changes(one, {"c": 4})
    assert one == Namespace(a=1, b=3, x=0, c=4)


def test_inspect_types(capsys):
    utils.inspect_types({"a": [1, 2.5], "b": {"c": "x"}})
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "> a:",
        "- 0: [<class 'int'>]: 1",
        "- 1: [<class 'float'>]: 2.5",
        "> b:",
        "- c: [<class 'str'>]: x",
    ]
