"""Versions of software, and ranges of them. Pure.

A version is the numbers it begins with. What follows may make it a forerunner of these numbers
(``2.10.0.dev20250901``, ``2.7.0a0+79aa174``, ``2.6.0-rc1``), or says which build it is (``+cu126``,
``-1023-aws``), which does not count.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = re.compile(r"\s*v?(\d+(?:\.\d+)*)(.*)", re.DOTALL | re.ASCII)
_FORERUNNER = re.compile(r"[._-]?(?:a|alpha|b|beta|c|rc|dev|pre|git)(?=[\d._+-]|$)", re.IGNORECASE)
_CONSTRAINT = re.compile(r"\s*(>=|<=|==|<|>)\s*(\S+)\s*")
_MOST_DIGITS = 18  # of one number; longer ones are no version


class Version(NamedTuple):
    """A version that can be compared.

    Attributes:
        numbers: without zeros at the end.
        released: False for what comes before the release with these numbers.
    """

    numbers: tuple[int, ...]
    released: bool = True


def parse_version(text: str) -> Version:
    """Read a version.

    Raises:
        ValueError: it does not begin with a number.
    """
    found = _VERSION.fullmatch(text)
    if found is None or any(len(part) > _MOST_DIGITS for part in found[1].split(".")):
        raise ValueError(f"{text!r} is no version")
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return Version(tuple(numbers), _FORERUNNER.match(found[2]) is None)


class Range(NamedTuple):
    """Versions that meet every constraint.

    Attributes:
        constraints: comparisons (``>=``, ``<=``, ``==``, ``<``, ``>``) with their versions.
        text: as it was written.
    """

    constraints: tuple[tuple[str, Version], ...]
    text: str

    def includes(self, version: Version) -> bool:
        """Return whether a version is in the range."""
        return all(_holds(version, sign, bound) for sign, bound in self.constraints)

    def __str__(self) -> str:
        """Return the range as it was written."""
        return self.text


def parse_range(text: str) -> Range:
    """Read constraints, separated by commas: ``>=2.28.3,<2.28.9``; ``*`` = every version.

    Raises:
        ValueError: it is something else.
    """
    if text.strip() == "*":
        return Range((), text)
    constraints = []
    for part in text.split(","):
        found = _CONSTRAINT.fullmatch(part)
        if found is None:
            raise ValueError(f"{text!r} is no range of versions; write it as >=2.28.3,<2.28.9")
        constraints.append((found[1], parse_version(found[2])))
    return Range(tuple(constraints), text)


def unaffected(ranges: Sequence[str]) -> str:
    """Say in words which versions are in none of these ranges; "" = none is."""
    if len(ranges) != 1:
        return f"outside of {' or '.join(ranges)}"
    words = {">=": "older than {}", "<=": "newer than {}", "<": "{} or newer", ">": "{} or older"}
    newest_first = reversed(parse_range(ranges[0]).text.split(","))
    parts = [_CONSTRAINT.fullmatch(part) for part in newest_first if part.strip() != "*"]
    return ", or ".join(
        words.get(part[1], "another than {}").format(part[2]) for part in parts if part is not None
    )


def _holds(version: Version, sign: str, bound: Version) -> bool:
    match sign:
        case ">=":
            return version >= bound
        case "<=":
            return version <= bound
        case "<":
            return version < bound
        case ">":
            return version > bound
        case _:
            return version == bound
