"""Sizes, as people read them."""

from __future__ import annotations

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


def whole(text: str | None) -> int | None:
    """Return the whole number that a text is, None if it is none."""
    words = (text or "").split()
    if len(words) != 1 or len(words[0]) > 20:
        return None
    digits = words[0].removeprefix("-")
    return int(words[0]) if digits.isascii() and digits.isdigit() else None
