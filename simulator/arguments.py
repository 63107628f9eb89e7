"""Arguments that both kinds of simulations have."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def add_arguments(
    parser: argparse.ArgumentParser, kinds: Mapping[str, str], *, faults: int
) -> None:
    """Add what says which runs there are, and under which faults.

    Args:
        parser: gets them.
        kinds: of faults, with what they do.
        faults: how many there are in a run unless that is said.
    """
    parser.add_argument("--seed", type=count(0), default=0, help="of the one run [0]")
    parser.add_argument(
        "--seeds", type=_span, metavar="FROM:TO", help="many runs: seeds FROM to TO - 1"
    )
    parser.add_argument(
        "--faults",
        type=_kinds_of(kinds),
        default=tuple(kinds),
        metavar="KIND,...",
        help="which faults happen [all]: " + "; ".join(f"{k}: {v}" for k, v in kinds.items()),
    )
    parser.add_argument(
        "--count", type=count(0), default=faults, help=f"how many faults [{faults}]"
    )
    parser.add_argument("--steps", action="store_true", help="print every event of the one run")


def count(least: int) -> Callable[[str], int]:
    """Convert a whole number from ``least``."""

    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(text)

    return convert


def _span(text: str) -> range:
    """Convert ``FROM:TO``."""
    first, _, last = text.partition(":")
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO, such as 0:1000")
    if int(first) >= int(last):
        raise argparse.ArgumentTypeError(f"{text!r} names no seed; TO must be larger than FROM")
    return range(int(first), int(last))


def _kinds_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Convert kinds of faults, separated by commas."""

    def convert(text: str) -> tuple[str, ...]:
        kinds = tuple(word.strip() for word in text.split(",") if word.strip())
        unknown = [kind for kind in kinds if kind not in known]
        if unknown or not kinds:
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(known)}")
        return kinds

    return convert
