"""Sizes, as people read them."""

from __future__ import annotations

import math
import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*((?:[kmgt](?:i?b)?)?)", re.IGNORECASE | re.ASCII)
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
_UNITS = ((1024 * GIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))


def size(count: float) -> str:
    """Return a number of bytes with a unit: ``64 MiB``, ``1.5 GiB``."""
    for unit, name in _UNITS:
        if count >= unit:
            number = count / unit
            return f"{number:.0f} {name}" if number >= 10 else f"{number:.2g} {name}"
    return f"{count:.0f} bytes"


def parse_size(text: str) -> int:
    """Read a number of bytes: ``500 MB``, ``1.5TiB``, ``20G`` (units of 1024 without the B).

    Raises:
        ValueError: it is something else.
    """
    found = _SIZE.fullmatch(text.strip())
    number = float(found[1]) if found is not None else math.nan
    if found is None or not math.isfinite(number):
        raise ValueError(f"{text!r} is no size; give a number and a unit, such as 20GB or 1.5TiB")
    base = 1000 if len(found[2]) == 2 else 1024
    power = " kmgt".index(found[2][:1].lower() or " ")
    return int(number * base**power)


def whole(text: str | None) -> int | None:
    """Return the whole number that a text is, None if it is none."""
    words = (text or "").split()
    if len(words) != 1 or len(words[0]) > 20:
        return None
    digits = words[0].removeprefix("-")
    return int(words[0]) if digits.isascii() and digits.isdigit() else None
