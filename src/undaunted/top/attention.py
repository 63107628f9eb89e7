"""Says of each rank what is worth saying. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.top.suspects import slow, standstill, suspects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.top.ranks import Rank

# A rank that has used so much of a limit is shown.
_NEAR = 0.5


def look_closer(ranks: Sequence[Rank], compared: Mapping[int, float] = {}) -> list[str]:
    """Mark suspect and slow ranks, and give them notes; return what is to be said of all ranks.

    Args:
        ranks: the rows.
        compared: by which share ranks are slower than their peers, as the job has found.
    """
    why = suspects(ranks)
    slow_steps = slow(_moving(ranks))
    slow_sections = _slow_sections(ranks)
    for row in ranks:
        if (reason := why.get(row.rank)) is not None:
            row.suspect, row.note = True, f"suspect: {reason}"
        elif row.note:
            continue
        elif (near := _near_limit(row)) is not None:
            row.note = near
        elif (part := compared.get(row.rank)) is not None:
            row.slow, row.note = part, f"slow: its own work takes {part:.0%} longer than its peers'"
        elif (part := slow_steps.get(row.rank)) is not None:
            row.slow, row.note = part, f"slow: steps take {part:.0%} longer than the median"
        elif (section := slow_sections.get(row.rank)) is not None:
            row.slow = section[1]
            row.note = f"slow: {section[0]!r} takes {section[1]:.0%} longer than the median"
    text = "" if why else standstill(ranks)
    return [text] if text else []


def _moving(ranks: Sequence[Rank]) -> dict[int, float]:
    return {row.rank: row.step_s for row in ranks if row.watched and row.step_s is not None}


def _slow_sections(ranks: Sequence[Rank]) -> dict[int, tuple[str, float]]:
    """The section in which each rank is slow the most, and by how much."""
    times: dict[str, dict[int, float]] = {}
    for row in ranks:
        if row.watched:
            for name, lasted_s in row.sections_s.items():
                times.setdefault(name, {})[row.rank] = lasted_s
    found: dict[int, tuple[str, float]] = {}
    for name, values in times.items():
        for rank, part in slow(values).items():
            if rank not in found or part > found[rank][1]:
                found[rank] = (name, part)
    return found


def _near_limit(row: Rank) -> str | None:
    if not row.watched:
        return None
    for what, age_s, limit_s in (
        ("no heartbeat", row.silent_s, row.limit_s),
        (f"in {row.section!r}", row.section_s, row.section_limit_s),
    ):
        if age_s is not None and limit_s and age_s >= _NEAR * limit_s:
            return f"{what} for {age_s / limit_s:.0%} of its limit"
    return None
