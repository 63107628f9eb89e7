"""The needs of an adapter beyond documented hooks of its framework, checked when a job starts.

Such methods may change with any version, and with the subclasses of other packages. A job that
would fail at its first checkpoint, or at its first stop, is better refused before it trains.
"""

from __future__ import annotations

import inspect
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

TRIED = {
    "lightning": "2.6.6",
    "megatron_core": "0.16.1",
    "pytorch_lightning": "2.6.6",
    "torchtitan": "0.3.0",
    "transformers": "5.23.0",
}
"""Versions that the tests run with, see constraints.txt."""


class Requirement(NamedTuple):
    """An attribute of a framework's object, and how it is called.

    Attributes:
        path: names with dots.
        arguments: how many are given by place; None = it is not called, or with whatever came.
        options: names of those that are given by name.
    """

    path: str
    arguments: int | None = None
    options: tuple[str, ...] = ()


def lacking(owner: object, requirements: Iterable[Requirement]) -> list[str]:
    """Return what an object does not have as it is needed, a text for each."""
    found = []
    for one in requirements:
        at: Any = owner
        name = f"{type(owner).__name__}.{one.path}"
        try:
            for part in one.path.split("."):
                at = getattr(at, part)
        except AttributeError:
            found.append(f"{name} is not there")
            continue
        if one.arguments is not None and not _takes(at, one):
            given = [*["..."] * one.arguments, *(f"{option}=" for option in one.options)]
            found.append(f"{name} takes no ({', '.join(given)})")
    return found


def check(package: str, owner: object, requirements: Iterable[Requirement]) -> None:
    """Refuse a framework that lacks what an adapter needs.

    Args:
        package: name of its distribution.
        owner: its object that has all of it.
        requirements: what is needed of it.

    Raises:
        RuntimeError: it lacks something.
    """
    if problems := lacking(owner, requirements):
        raise RuntimeError(
            f"{package} {_installed(package)} is not supported by undaunted's adapter: "
            f"{'; '.join(problems)}; install the version it was tried with, {TRIED.get(package)}, "
            "or train without it"
        )


def _takes(method: Any, needed: Requirement) -> bool:
    if not callable(method):
        return False
    try:
        signature = inspect.signature(method)
    except ValueError:
        return True  # of an extension: nobody can tell
    try:
        signature.bind(*[None] * (needed.arguments or 0), **dict.fromkeys(needed.options))
    except TypeError:
        return False
    return True


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(of unknown version)"
