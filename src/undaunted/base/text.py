"""Texts for people: durations, numbers of things, and strings that are safe to print."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MOST_COLUMNS = 120
"""Of a line on a terminal, however wide that is."""

_INDENT = "    "
_MINUTE_S = 60
_HOUR_S = 60 * _MINUTE_S
_DAY_S = 24 * _HOUR_S


def format_duration(seconds: float) -> str:
    """Return a duration as a reader would say it: two figures that matter and their units.

    Args:
        seconds: finite number of seconds; negative ones get a minus sign.

    Returns:
        For example ``4.2 ms``, ``340 ms``, ``1.2 s``, ``4 min 05 s``, ``2 h 05 min``, ``3 d 04 h``.
    """
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    # Each limit is where rounding would reach the next unit, so that 999.7 ms becomes 1.0 s.
    if seconds < 0.00995:
        return f"{seconds * 1e3:.1f} ms" if seconds >= 0.00005 else "0 ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02d} s"
    minutes = round(seconds / _MINUTE_S)
    if minutes * _MINUTE_S < _DAY_S:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / _HOUR_S)
    return f"{hours // 24} d {hours % 24:02d} h"


def format_ranks(ranks: Iterable[int], most: int | None = None) -> str:
    """Return ranks as sorted ranges without duplicates, for example ``0-3,7``; "" for none.

    Args:
        ranks: in any order.
        most: ranges that are written, and then how many ranks are left out: ``0,2 and 5 more``.
    """
    ranges: list[range] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1].stop:
            ranges[-1] = range(ranges[-1].start, rank + 1)
        else:
            ranges.append(range(rank, rank + 1))
    left_out = sum(map(len, ranges[most:])) if most is not None else 0
    return format_ranges(ranges[:most]) + (f" and {left_out} more" if left_out else "")


def format_ranges(ranges: Iterable[range]) -> str:
    """Return ranges of ranks, none of them empty, as `format_ranks` does."""
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ranges)


def name_ranks(ranks: Collection[int], most: int | None = None) -> str:
    """Return ``rank 3``, or ``ranks 0-2,7``; `most` as in `format_ranks`."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(ranks, most)}"


def count(number: int, noun: str) -> str:
    """Return a number of things, for example ``1 rank`` or ``2 ranks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def did_you_mean(
    name: str, names: Iterable[str], *, beginning: str = "", likeness: float = 0.6
) -> str:
    """Return ``; did you mean 'run'?`` for the name that resembles most, or "".

    Args:
        name: the unknown one.
        names: the known ones.
        beginning: all names may begin with it, which makes none of them a near one.
        likeness: how near a name must be, from 0 to 1, as `difflib` measures it.
    """
    import difflib  # only to say what is wrong

    bare = sorted(other.removeprefix(beginning) for other in names)
    near = difflib.get_close_matches(name.removeprefix(beginning), bare, 1, likeness)
    return f"; did you mean {beginning + near[0]!r}?" if near else ""


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded: Python has names of files that cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    r"""Return ``text`` with everything a terminal might act on written out, as in ``\x1b``.

    Line feeds and tabs stay. Messages of exceptions and names from the user's program pass through
    here before they are printed: they must not move the cursor or recolour the screen.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def one_line(text: str, longest: int = 500) -> str:
    """Return ``text`` as one printable line of at most ``longest`` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def folded(text: str, columns: int) -> list[str]:
    """Return a long line as several: who, what and where first, then each detail indented.

    Args:
        text: one line; "; " stands before each detail.
        columns: of the terminal.
    """
    if len(text) <= columns:
        return [text]
    import textwrap  # few lines are long

    begin = text[: len(text) - len(text.lstrip())]
    lines: list[str] = []
    for part in text.strip().replace("; ", ";\n").split("\n"):
        indent = begin + _INDENT if lines else begin
        lines += textwrap.wrap(
            part,
            max(columns, 2 * len(_INDENT)),
            initial_indent=indent,
            subsequent_indent=begin + _INDENT,
            break_long_words=False,  # a path must stay one piece to be copied
            break_on_hyphens=False,
        )
    return lines


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
