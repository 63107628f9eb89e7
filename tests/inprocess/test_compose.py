from __future__ import annotations

import abc
from typing import Any

import pytest

from undaunted.inprocess.compose import Compose, find_common_ancestor
from undaunted.inprocess.health_check import (
    ChainedGPUHealthCheck,
    ChainedNVLHealthCheck,
    HealthCheck,
)


class Base(abc.ABC):
    @abc.abstractmethod
    def __call__(self, state: Any) -> Any: ...


class Append(Base):
    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, state: str) -> str:
        return state + self.what


class Derived(Append):
    pass


class Other(Base):
    def __call__(self, state: Any) -> Any:
        return state


def test_from_the_last_to_the_first() -> None:
    assert Compose(Append("1"), Append("2"), Append("3"))("") == "321"


@pytest.mark.parametrize(
    ("plugins", "common"),
    [
        ([Append("1")], Append),
        ([Append("1"), Derived("2")], Append),
        ([Derived("1"), Derived("2")], Derived),
        ([Append("1"), Other()], Base),
        ([Other(), print], object),
        ([print, len], object),
        ([Compose(Other(), Append("")), Compose(Append(""), Append(""))], Base),
    ],
)
def test_is_an_instance_of_what_all_are(plugins: list[Any], common: type) -> None:
    assert find_common_ancestor(*plugins) is common
    composed = Compose(*plugins)
    assert isinstance(composed, common)
    assert isinstance(composed, Compose)
    assert composed.instances == tuple(plugins)


def test_nested() -> None:
    assert Compose(Compose(Append("1"), Append("2")), Append("3"))("") == "321"


def test_functions_tuples_and_callables_without_parameters() -> None:
    assert Compose(lambda a, b: a + b, lambda a: (a, 1))(2) == 3
    assert Compose(lambda a: a, lambda: 5)(2) == 5


def test_builtins_that_do_not_tell_their_parameters() -> None:
    assert Compose(max, lambda a: (a, 7))(2) == 7


def test_a_link_that_returns_nothing_is_named() -> None:
    def forgetful(state: int) -> None:
        pass

    with pytest.warns(UserWarning, match="forgetful.* has returned None"):
        assert Compose(forgetful, lambda a: a)(1) is None


def test_nothing_for_nothing_is_no_mistake() -> None:
    assert Compose(lambda _: None, lambda _: None)(None) is None
    assert Compose(lambda: None)() is None


def test_a_class_names_its_composition() -> None:
    class Loud(Compose):
        def _call_one(self, position: int, args: tuple[Any, ...]) -> Any:
            return f"{super()._call_one(position, args)}!"

    class Special(Append):
        composition = Loud

    assert Compose(Special("1"), Special("2"))("") == "2!1!"


@pytest.mark.parametrize("wrong", [(), (3,), (len, None)])
def test_only_callables(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="callable"):
        Compose(*wrong)


def test_an_ancestor_with_more_to_fill_in_is_passed_over() -> None:
    checks = (ChainedGPUHealthCheck(device_index=0), ChainedNVLHealthCheck(device_index=0))
    composed = Compose(*checks)
    assert isinstance(composed, HealthCheck)
    assert composed.instances == checks
