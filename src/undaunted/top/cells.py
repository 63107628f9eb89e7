"""Texts in the columns of a terminal, where some characters take two. Pure."""

from __future__ import annotations

import unicodedata


def width_of(text: str) -> int:
    """Return how many columns a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(_width(character) for character in text)


def cut(text: str, width: int | None) -> str:
    """Return the beginning of ``text`` that fits into ``width`` columns, None = all of it."""
    if width is None or width_of(text) <= width:
        return text
    taken, kept = 0, ""
    for character in text:
        taken += _width(character)
        if taken > width - 1:
            break
        kept += character
    return f"{kept}~" if width > 0 else ""


def fill(text: str, width: int, right: bool = False) -> str:
    """Return ``text`` with blanks up to ``width`` columns, in front of it if ``right``."""
    blanks = " " * max(0, width - width_of(text))
    return blanks + text if right else text + blanks


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
