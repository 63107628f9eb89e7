"""Several plug-ins in place of one."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

_BASE_TYPE = 1 << 10  # Py_TPFLAGS_BASETYPE


class Compose:
    """Calls plug-ins from the last to the first, each with the result of the call before.

    The object is an instance of the nearest common class of the plug-ins, so that a `Compose` of
    two `Initialize` is an `Initialize`. A class may name, as ``composition``, the subclass of
    `Compose` for its instances.

    A tuple is passed on as several arguments; a callable without parameters gets no arguments.

    Attributes:
        instances: the plug-ins, as given.
    """

    instances: tuple[Any, ...]
    _take_arguments: tuple[bool, ...]  # whether each takes arguments

    def __new__(cls, *instances: Any) -> Any:
        """Compose ``instances``, at least one.

        Raises:
            TypeError: one of them cannot be called.
        """
        for instance in instances:
            if not callable(instance):
                raise TypeError(f"Compose takes callables, not {instance!r}")
        common = find_common_ancestor(*instances)
        composition = getattr(common, "composition", cls)
        bases = (composition,) if common is object else (composition, common)
        made: Any = object.__new__(type(common)("Composed", bases, {"__init__": _take_nothing}))
        made.instances = instances
        made._take_arguments = tuple(map(_takes_arguments, instances))  # noqa: SLF001 - ours
        return made

    def __call__(self, *args: Any) -> Any:
        """Call all plug-ins, and return the result of the first one."""
        result: Any = args
        for position in reversed(range(len(self.instances))):
            result = self._call_one(position, args)
            if result is None and any(arg is not None for arg in args):
                warnings.warn(
                    f"{self.instances[position]!r} has returned None to Compose; return its "
                    "argument",
                    UserWarning,
                    stacklevel=2,
                )
            args = result if isinstance(result, tuple) else (result,)
        return result

    def _call_one(self, position: int, args: tuple[Any, ...]) -> Any:
        """Call the plug-in at ``position``."""
        instance = self.instances[position]
        return instance(*args) if self._take_arguments[position] else instance()


def _take_nothing(self: Any, *args: Any) -> None:
    """Leave the object as `Compose` has made it."""


def find_common_ancestor(*instances: Any) -> type:
    """Return the nearest common class that can be derived from; else ``object``."""
    if not instances:
        raise TypeError("Compose needs at least one callable")
    first, *others = (type(instance) for instance in instances)
    for candidate in first.__mro__:
        if all(issubclass(other, candidate) for other in others) and _is_base(candidate):
            return candidate
    return object


def _is_base(candidate: type) -> bool:
    """Return whether `Compose` can derive from the class, and has all of its abstract methods."""
    missing: frozenset[str] = getattr(candidate, "__abstractmethods__", frozenset())
    derivable = bool(candidate.__flags__ & _BASE_TYPE)  # the class of functions is not
    return derivable and missing <= {"__call__"} and not issubclass(candidate, Compose)


def _takes_arguments(instance: Any) -> bool:
    try:
        return bool(inspect.signature(instance).parameters)
    except ValueError:  # a builtin without a signature
        return True
