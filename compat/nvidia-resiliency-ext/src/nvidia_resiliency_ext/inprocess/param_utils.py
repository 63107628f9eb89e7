"""Checks of arguments by their names: values are those of the caller's variables."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from undaunted.inprocess import param_utils
from undaunted.inprocess.param_utils import check_type as check_type
from undaunted.inprocess.param_utils import count_type_in_params as count_type_in_params
from undaunted.inprocess.param_utils import substitute_param_value as substitute_param_value

if TYPE_CHECKING:
    from types import FrameType


def enforce_type(argument: str, class_or_tuple: type | tuple[type, ...]) -> None:
    """Refuse a variable of the caller that is no instance of a class.

    Args:
        argument: its name.
        class_or_tuple: what it must be, None's type among others.

    Raises:
        TypeError: it is something else.
    """
    param_utils.enforce_type(argument, _variables(_caller())[argument], class_or_tuple)


def enforce_subclass(argument: str, class_or_tuple: type | tuple[type, ...]) -> None:
    """Refuse a variable of the caller that is no subclass of a class.

    Args:
        argument: its name.
        class_or_tuple: what it must be derived from.

    Raises:
        TypeError: it is something else.
    """
    param_utils.enforce_subclass(argument, _variables(_caller())[argument], class_or_tuple)


def enforce_value(condition: bool) -> None:
    """Refuse values for which a condition does not hold.

    Args:
        condition: of the caller's variables; the error has its text, where the source is at hand.

    Raises:
        ValueError: it is false.
    """
    if condition:
        return
    frame = _caller()
    text = _source(frame)
    names = [name for name in _names(text) if name in _variables(frame)]
    param_utils.enforce_value(text, False, **{name: _variables(frame)[name] for name in names})


def _caller() -> FrameType:
    """Return the frame that has called the function that calls this."""
    frame = inspect.currentframe()
    for _ in range(2):
        assert frame is not None
        frame = frame.f_back
    assert frame is not None
    return frame


def _variables(frame: FrameType) -> dict[str, Any]:
    return dict(frame.f_locals)


def _source(frame: FrameType) -> str:
    """Return the argument of the call that is on in a frame."""
    lines = inspect.getframeinfo(frame, context=1).code_context or []
    line = lines[0].strip() if lines else ""
    inside = line.partition("enforce_value(")[2].rpartition(")")[0]
    return inside or line or "a condition"


def _names(text: str) -> list[str]:
    words = "".join(letter if letter.isidentifier() or letter.isdigit() else " " for letter in text)
    return sorted({word for word in words.split() if word.isidentifier()})
