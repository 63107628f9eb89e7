from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Optional, Union

import pytest

from undaunted.inprocess.param_utils import (
    check_type,
    count_type_in_params,
    enforce_subclass,
    enforce_type,
    enforce_value,
    substitute_param_value,
)

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]


class Base:
    pass


class Handle(Base):
    pass


@pytest.mark.parametrize(
    ("annotation", "wants"),
    [
        (Handle, True),
        (Base, True),
        (Optional[Handle], True),  # noqa: UP045 - what users write
        (Union[int, Handle, None], True),  # noqa: UP007
        (Handle | None, True),
        (int | str, False),
        (object, False),
        (Any, False),
        (list[Handle], False),
        (None, False),
    ],
)
def test_which_annotations_ask_for_it(annotation: Any, wants: bool) -> None:
    assert check_type(annotation, Handle) is wants


def test_annotations_that_are_text() -> None:
    # All annotations of this file are: see its first import.
    def fn(a: int, first: Handle, b: Unknown, second: Handle | None = None) -> None: ...

    assert count_type_in_params(fn, Handle) == 2


def test_a_name_for_type_checkers_only() -> None:
    def fn(handle: "wrap.Handle | Missing") -> None:  # type: ignore[name-defined] # noqa: F821, UP037
        ...

    assert count_type_in_params(fn, Handle) == 1


def test_substitution() -> None:
    def fn(a: int, handle: Handle | None = None, *rest: int, b: int = 2, **more: int) -> Any:
        return a, handle, rest, b, more

    handle = Handle()
    args, kwargs = substitute_param_value(fn, (1,), {"b": 3, "c": 4}, {Handle: handle})
    assert fn(*args, **kwargs) == (1, handle, (), 3, {"c": 4})
    args, kwargs = substitute_param_value(fn, (1, None, 5), {}, {Handle: handle})
    assert fn(*args, **kwargs) == (1, handle, (5,), 2, {})


def test_substitution_after_a_parameter_that_was_not_given() -> None:
    def fn(a: int, handle: Handle) -> Any:
        return a, handle

    args, kwargs = substitute_param_value(fn, (), {}, {Handle: Handle()})
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        fn(*args, **kwargs)


def test_arguments_are_as_given_where_nothing_is_asked_for() -> None:
    def fn(a: int, b: int = 2) -> None: ...

    assert substitute_param_value(fn, (1,), {}, {Handle: Handle()}) == ((1,), {})


def test_type() -> None:
    enforce_type("timeout", timedelta(1), timedelta)
    enforce_type("timeout", None, (timedelta, type(None)))
    with pytest.raises(
        TypeError, match="timeout must be an instance of timedelta or None, not 3 of type int"
    ):
        enforce_type("timeout", 3, (timedelta, type(None)))


def test_subclass() -> None:
    enforce_subclass("factory", Handle, Base)
    for wrong in (int, Handle(), None):
        with pytest.raises(TypeError, match="factory must be a subclass of Base, not"):
            enforce_subclass("factory", wrong, Base)


def test_value() -> None:
    enforce_value("a < b", True, a=1, b=2)
    with pytest.raises(ValueError, match="a < b must hold, but a=3, b=2"):
        enforce_value("a < b", False, a=3, b=2)
