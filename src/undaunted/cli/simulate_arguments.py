"""Arguments that both kinds of simulations have."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def count(least: int) -> Callable[[str], int]:
    """Convert a whole number from ``least``."""

    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(text)

    return convert


def span(text: str) -> range:
    """Convert ``FROM:TO``."""
    first, _, last = text.partition(":")
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO, such as 0:1000")
    if int(first) >= int(last):
        raise argparse.ArgumentTypeError(f"{text!r} names no seed; TO must be larger than FROM")
    return range(int(first), int(last))


def kinds_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Convert kinds of faults, separated by commas."""

    def convert(text: str) -> tuple[str, ...]:
        kinds = tuple(word.strip() for word in text.split(",") if word.strip())
        unknown = [kind for kind in kinds if kind not in known]
        if unknown or not kinds:
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(known)}")
        return kinds

    return convert
