"""Whether a worker that was forked with packages imported is like a new process that imports them.

Compared are the plain values (numbers, texts, true and false, None) that packages have in their
modules, functions and classes, and the variables that they set, in three processes:

    two new ones, with the environment of a rank   `new`
    one forked from the template, with the same    `values`

A value that is another one in each new process cannot matter, unless it is the process's number or
names a file. One that new processes agree on, and the forked one has not, comes from a variable
that only ranks have, and is set again after the fork (`renew`). Else the package is left to ranks.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from functools import reduce
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from undaunted.fault_tolerance.worker.messages import Renewed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# What a program may ask of a module without a difference in what it does.
_ABOUT = frozenset(("__doc__", "__module__", "__qualname__", "__firstlineno__"))
_PLAIN = frozenset((bool, int, float, str, type(None)))
Values = dict[str, dict[str, str]]  # by module, by name: as Python shows them


class Seen(msgspec.Struct, frozen=True):
    """What a process has after its imports.

    ``variables`` are those of the environment that imports have set, each with the package.
    """

    pid: int
    values: Values
    variables: dict[str, tuple[str | None, str]]


def values(modules: Iterable[str]) -> Values:
    """Return the plain values in modules of this process, those that are there."""
    return {
        name: {of: repr(value) for of, value in _plain_values(name, vars(module))}
        for name in modules
        if (module := sys.modules.get(name)) is not None and hasattr(module, "__dict__")
    }


def _plain_values(module: str, names: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in _plain(names):
        yield name, value
    for name, value in list(names.items()):
        is_code = type(value) is FunctionType or isinstance(value, type)
        if is_code and getattr(value, "__module__", None) == module:
            yield from ((f"{name}.{key}", item) for key, item in _plain(vars(value)))


def _plain(names: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in list(names.items()):
        if isinstance(name, str) and name not in _ABOUT and type(value) in _PLAIN:
            yield name, value


class Verdict(NamedTuple):
    """``renewed`` is set again after each fork; ``left`` has packages, and why."""

    renewed: list[Renewed]
    left: dict[str, str]


def compare(new: Seen, another: Seen, forked: Seen, environment: Mapping[str, str]) -> Verdict:
    """Judge what differs.

    Args:
        new: a new process.
        another: one more, with the same environment.
        forked: one that was forked.
        environment: variables that only ranks have. Of two with the same value none is a source.
    """
    verdict = Verdict([], {})
    often = Counter(environment.values())
    single = [(name, value) for name, value in environment.items() if often[value] == 1]
    texts = {repr(value): name for name, value in single}
    numbers = {value: name for name, value in single if value.isdecimal()}
    for module, names in new.values.items():
        package = module.partition(".")[0]
        ours = forked.values.get(module, {})
        others = another.values.get(module, {})
        for name, value in names.items():
            own = ours.get(name, "nothing")
            if own == value:
                continue
            alike = others.get(name) == value
            variable = numbers.get(value) or texts.get(value)
            if alike and variable and name in ours:
                verdict.renewed.append(Renewed(module, name, variable, value in numbers))
            elif value == repr(new.pid) and own == repr(forked.pid):
                continue  # it sees for itself that it was forked
            elif alike or value == repr(new.pid) or _names_file(own):
                reason = f"{module}.{name} would be {own:.80}, not {value:.80}"
                verdict.left.setdefault(package, reason)
    for name in new.variables.keys() | forked.variables.keys():
        each = [seen.variables.get(name) for seen in (new, another, forked)]
        if each[0] == each[1] != each[2]:
            package = next(package for _, package in filter(None, each))
            verdict.left.setdefault(package, f"it sets {name} for itself in each process")
    for module in forked.values.keys() - new.values.keys():
        verdict.left.setdefault(module.partition(".")[0], f"{module} is not imported by new ones")
    return verdict


def _names_file(value: str) -> bool:
    """Whether this text, as Python shows it, is the path of a file: each process has its own."""
    return "/" in value and os.path.lexists(value.strip("'"))


def renew(renewed: Iterable[Renewed], environment: Mapping[str, str]) -> None:
    """Set again what comes from variables of a rank; nothing is set where one is missing."""
    for each in renewed:
        text = environment.get(each.variable)
        *path, last = each.name.split(".")
        try:
            owner = reduce(getattr, path, sys.modules[each.module])
            if text is not None:
                setattr(owner, last, int(text) if each.number else text)
        except (KeyError, AttributeError, TypeError, ValueError):
            continue  # the module has changed since
