"""Whether a worker that was forked with packages imported is like a new process that imports them.

Compared are the plain values (numbers, texts, true and false, None) that packages have in their
modules, functions and classes, and the variables that they set, in four processes:

    new, again   new ones, with the environment of a rank: RANK is 1, each other number another one
    first        a new one of rank 0: all numbers are 0
    forked       one forked from the template, with the environment of ``new``

A value that is another one in ``new`` and ``again`` cannot matter, unless it has the number of the
process in it or names a file. Any other difference is told.
"""

from __future__ import annotations

import os
import re
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

# What a program may ask of a module without a difference in what it does.
_ABOUT = frozenset(("__doc__", "__module__", "__qualname__", "__firstlineno__"))
_PLAIN = frozenset((bool, int, float, str, type(None)))
Values = dict[str, dict[str, str]]  # by module, by name: as Python shows them
_NONE: dict[str, str] = {}
_ABSENT = "not there"


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """What a process has after its imports.

    ``variables`` are those of the environment that imports have set, each with the package.
    """

    pid: int
    values: Values
    variables: dict[str, tuple[str, str]]


def values(modules: Iterable[str]) -> Values:
    """Return the plain values in modules of this process, those that are there."""
    return {
        name: {of: repr(value) for of, value in _plain_values(name, vars(module))}
        for name in modules
        if isinstance(module := sys.modules.get(name), ModuleType)
    }


def _plain_values(module: str, names: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield from _plain(names)
    for name, value in list(names.items()):
        if _module_of(value) == module:
            yield from ((f"{name}.{key}", item) for key, item in _plain(vars(value)))


def _module_of(value: object) -> object:
    """Return the module of a function or class, None for anything else.

    By the type alone: what stands for something else does as it likes when it is asked.
    """
    if type(value) is FunctionType:
        return value.__module__
    return vars(value).get("__module__") if issubclass(type(value), type) else None


def _plain(names: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in list(names.items()):
        if isinstance(name, str) and name not in _ABOUT and type(value) in _PLAIN:
            yield name, value


def compare(
    of_new: Sequence[Snapshot],
    forked: Snapshot,
    environments: tuple[Mapping[str, str], Mapping[str, str]],
    set_again: Collection[tuple[str, str]] = (),
) -> dict[str, list[str]]:
    """Return the differences of each package.

    Args:
        of_new: those of ``new``, ``again`` and ``first``.
        forked: that of the process that was forked.
        environments: variables that only ranks have, of ``new`` and of ``first``.
        set_again: modules and names of values that are set after each fork.
    """
    differences: dict[str, list[str]] = {}
    new, again, first = of_new
    for module, names in new.values.items():
        found = differences.setdefault(module.partition(".")[0], [])
        others = [each.values.get(module, _NONE) for each in (again, first, forked)]
        for name, value in names.items():
            same, one, own = (each.get(name, _ABSENT) for each in others)
            if value == same == own and (value == one or (module, name) in set_again):
                continue
            if value == same:
                source = _followed(value, one, environments)
                follows = f", as {source}" if source else ""
                found.append(
                    f"{module}.{name} is {value:.80}, {one:.80} in rank 0{follows}, not {own:.80}"
                )
            elif _matters(value, new.pid, own, forked.pid):
                found.append(f"{module}.{name} is {own:.80} in all ranks, and not their own")
    for module in forked.values.keys() - (new.values.keys() & first.values.keys()):
        differences.setdefault(module.partition(".")[0], []).append(f"ranks do not import {module}")
    for package, name in _variables((new, again, first, forked)):
        differences.setdefault(package, []).append(f"each rank sets {name} itself")
    return {package: found for package, found in differences.items() if found}


def _variables(each: tuple[Snapshot, ...]) -> Iterator[tuple[str, str]]:
    """Yield package and name of a variable that imports set in another way."""
    for name in set().union(*(snapshot.variables for snapshot in each)):
        found = [snapshot.variables.get(name) for snapshot in each]
        new, again, first, forked = (value[0] if value else None for value in found)
        if not new == again == first == forked and (new == again or forked is None):
            yield next(package for _, package in filter(None, found)), name


def _followed(
    value: str, first: str, environments: tuple[Mapping[str, str], Mapping[str, str]]
) -> str:
    """Return the variable that these values are, of two ranks; "" = none, or more than one."""
    ours, firsts = environments
    show = str if value.isdecimal() else repr
    found = [
        name
        for name, text in ours.items()
        if show(text) == value and show(firsts.get(name, "")) == first
    ]
    return found[0] if len(found) == 1 else ""


def _matters(value: str, pid: int, own: str, own_pid: int) -> bool:
    """Whether ranks may not share a value that is another one in each process."""
    if value in ("True", "False", "None"):
        return True
    if re.search(rf"(?<!\w){pid}(?!\w)", value):
        return not re.search(rf"(?<!\w){own_pid}(?!\w)", own)
    return "/" in own and os.path.lexists(own.strip("'"))
