"""Texts for log lines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from undaunted.base.text import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

VERBOSE_VARIABLE = "NVRX_LOG_RANK_FORMAT_VERBOSE"
_LONGEST = 4000  # characters of one exception
_YES = ("1", "true", "yes", "on")


def format_exc(exc: BaseException) -> str:
    """Return an exception with its causes in one line, ``A() <- B()``."""
    chain: list[BaseException] = []
    at: BaseException | None = exc
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return " <- ".join(map(_described, chain))


def _described(exc: BaseException) -> str:
    """Return its ``repr``, cut to a bounded length; works even if the ``repr`` raises."""
    try:
        text = repr(exc)
    except Exception as problem:  # noqa: BLE001 - it is the user's code
        return f"{type(exc).__name__}(its repr raises {type(problem).__name__})"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def format_rank_set(ranks: Iterable[int]) -> str:
    """Return ranks in braces; all if ``NVRX_LOG_RANK_FORMAT_VERBOSE`` is 1, else in brief."""
    if os.environ.get(VERBOSE_VARIABLE, "").strip().lower() in _YES:
        return format_rank_set_verbose(ranks)
    return format_rank_set_brief(ranks)


def format_rank_set_verbose(ranks: Iterable[int]) -> str:
    """Return all ranks as ranges: ``{0-3, 7}``."""
    return f"{{{format_ranks(ranks).replace(',', ', ')}}}"


def format_rank_set_brief(ranks: Iterable[int], max_show: int = 8) -> str:
    """Return all ranks if they are few, else the first and last ones, and their number.

    Args:
        ranks: in any order.
        max_show: how many ranks are shown, half of them from each end.
    """
    ordered = sorted(set(ranks))
    if len(ordered) <= max_show:
        return f"{{{', '.join(map(str, ordered))}}}"
    half = max_show // 2
    shown = [*ordered[:half], "...", *ordered[len(ordered) - half :]]
    return f"{{{', '.join(map(str, shown))}}} ({len(ordered)} ranks)"
