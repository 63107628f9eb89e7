"""Checking arguments, and passing arguments to functions that ask for them by annotation."""

from __future__ import annotations

import inspect
import re
import types
import typing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def check_type(annotation: Any, cls: type) -> bool:
    """Return whether a parameter with this annotation wants an instance of ``cls``.

    True for the class, its base classes (but not ``object``), and unions that contain one of them.
    """
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(check_type(part, cls) for part in typing.get_args(annotation))
    return isinstance(annotation, type) and annotation is not object and issubclass(cls, annotation)


def parameters_of_type(fn: Callable[..., Any], cls: type) -> list[str]:
    """Return the names of the parameters of ``fn`` that want an instance of ``cls``.

    Annotations may be text, as with ``from __future__ import annotations``.
    """
    return [
        name
        for name, parameter in inspect.signature(fn).parameters.items()
        if check_type(_annotation(fn, parameter, cls), cls)
    ]


def count_type_in_params(fn: Callable[..., Any], cls: type) -> int:
    """Return how many parameters of ``fn`` want an instance of ``cls``."""
    return len(parameters_of_type(fn, cls))


def substitute_param_value(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    subs: Mapping[type, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments for a call of ``fn``, with ``subs`` where its annotations ask for them.

    Args:
        fn: the function.
        args: arguments of the call, by position.
        kwargs: arguments of the call, by name.
        subs: the values of parameters that want an instance of a class, by class.

    Raises:
        TypeError: the arguments do not fit the function.
    """
    values = {name: value for cls, value in subs.items() for name in parameters_of_type(fn, cls)}
    if not values:
        return args, dict(kwargs)
    bound = inspect.signature(fn).bind_partial(*args, **kwargs)
    bound.apply_defaults()
    bound.arguments.update(values)
    # In the order of the signature: `args` ends at the first parameter without a value.
    order = list(bound.signature.parameters)
    bound.arguments = dict(sorted(bound.arguments.items(), key=lambda item: order.index(item[0])))
    return bound.args, bound.kwargs


def enforce_type(argument: str, value: object, wanted: type | tuple[type, ...]) -> None:
    """Refuse a value that is no instance of ``wanted``.

    Raises:
        TypeError: the message has the argument, the wanted type and the value.
    """
    if not isinstance(value, wanted):
        raise TypeError(
            f"{argument} must be an instance of {_names(wanted)}, not {value!r} of type "
            f"{type(value).__name__}"
        )


def enforce_subclass(argument: str, value: object, wanted: type | tuple[type, ...]) -> None:
    """Refuse a value that is no subclass of ``wanted``.

    Raises:
        TypeError: the message has the argument, the wanted type and the value.
    """
    if not (isinstance(value, type) and issubclass(value, wanted)):
        raise TypeError(
            f"{argument} must be a subclass of {_names(wanted)}, not {value!r} of type "
            f"{type(value).__name__}"
        )


def enforce_value(condition: str, holds: bool, **values: object) -> None:
    """Refuse values that do not go together.

    Args:
        condition: as code, for the message.
        holds: whether it is true.
        values: the variables of the condition.

    Raises:
        ValueError: the message has the condition and the values.
    """
    if not holds:
        given = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise ValueError(f"{condition} must hold, but {given}")


def _names(wanted: type | tuple[type, ...]) -> str:
    classes = wanted if isinstance(wanted, tuple) else (wanted,)
    return " or ".join("None" if cls is type(None) else cls.__name__ for cls in classes)


def _annotation(fn: Callable[..., Any], parameter: inspect.Parameter, cls: type) -> Any:
    """Return the annotation of one parameter, evaluated if it is text."""
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        return annotation
    inner = inspect.unwrap(fn)
    namespace = {cls.__name__: cls, **getattr(inner, "__globals__", {})}
    holder = types.SimpleNamespace(__annotations__={"annotation": annotation})
    try:
        return typing.get_type_hints(holder, namespace)["annotation"]
    except Exception:  # noqa: BLE001 - for example a name imported for type checkers only
        return cls if re.search(rf"\b{cls.__name__}\b", annotation) else annotation
