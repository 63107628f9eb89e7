"""What travels to the ranks and back."""

from __future__ import annotations

import math
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance import function_call

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def named() -> None:
    """A function that is found by its name."""


def travelled(value: Any) -> Any:
    return function_call._decode(function_call._encode(value, "it"))


@given(PLAIN)
def test_plain_values_come_back_unchanged_without_a_pickle(value: Any) -> None:
    assert "json" in function_call._encode(value, "it")
    assert travelled(value) == value


def test_not_a_number_needs_no_pickle() -> None:
    assert "json" in function_call._encode(math.nan, "it")
    assert math.isnan(travelled(math.nan))


@pytest.mark.parametrize("value", [(1, 2), {1: "a"}, {"a": (1,)}, b"x", {1, 2}, 1j])
def test_what_json_would_change_keeps_its_type(value: Any) -> None:
    assert travelled(value) == value
    assert type(travelled(value)) is type(value)


def test_without_cloudpickle_the_message_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(TypeError, match=r"argument 2 cannot travel.*undaunted\[notebook\]"):
        function_call._encode((1,), "argument 2")
    with pytest.raises(TypeError, match=r"define it at the top level"):
        function_call._encode(lambda: None, "the function f")


def test_functions_with_a_name_travel_by_it_others_do_not() -> None:
    def inner() -> None:
        pass

    assert function_call._name(named) == (__name__, "named")
    assert function_call._name(inner) is None
    assert function_call._name("text".upper) is None
    inner.__module__ = "__main__"
    assert function_call._name(inner) is None


def test_files_are_for_this_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(function_call.DIRECTORY_VARIABLE, str(tmp_path))
    function_call.write_call(tmp_path, named, [1])
    function_call.write_result(0, named, {"loss": 1.5})
    assert function_call.read_results(tmp_path, [0, 1]) == {0: {"loss": 1.5}, 1: None}
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"call.json": 0o600, "result-0.json": 0o600}
    function_call.forget_result(0)
    assert function_call.read_results(tmp_path, [0]) == {0: None}


def test_a_return_value_that_cannot_travel_fails_no_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(function_call.DIRECTORY_VARIABLE, str(tmp_path))
    function_call.write_result(1, named, threading.Lock())
    with pytest.raises(TypeError, match=r"rank 1: the return value of named\(\) cannot travel"):
        function_call.read_results(tmp_path, [0, 1])
    with pytest.raises(TypeError, match="argument 2 cannot travel"):
        function_call.write_call(tmp_path, named, [1, threading.Lock()])


def test_functions_are_shown_by_their_names() -> None:
    path, *rest = function_call.program(test_functions_are_shown_by_their_names)
    assert Path(path).is_file()
    assert function_call.shown([path, *rest]) == ["test_functions_are_shown_by_their_names()"]
    assert function_call.shown(["train.py", "x"]) == ["train.py", "x"]
