"""The table of ranks, as wide as there is room. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base.console import cut, fill, width_of
from undaunted.base.process import ENDED
from undaunted.base.text import format_duration, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.base.console import Line
    from undaunted.top.ranks import Rank

# A column of notes narrower than this tells nothing.
LEAST_NOTE = 24
_GAP = "  "
_LONGEST_NAME = 24
_MINUTE_S = 60
_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class RankColumn:
    """One column: what it shows, and how badly it is needed (0 = always)."""

    title: str
    cell: Callable[[Rank], str]
    rank: int
    right: bool = False


def _took(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _silent(row: Rank) -> str:
    return _took(row.silent_s) + (f" of {_limit(row.limit_s)}" if row.limit_s else "")


def _limit(seconds: float) -> str:
    """A limit is a round number, mostly: as short as it can be said."""
    if seconds < _MINUTE_S:
        return f"{seconds:.3g} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.3g} min"
    return f"{seconds / _HOUR_S:.3g} h"


def _section(row: Rank) -> str:
    if not row.section:
        return "-"
    name = one_line(row.section, _LONGEST_NAME)
    return f"{name} {format_duration(row.section_s or 0.0)}"


COLUMNS = (
    RankColumn("rank", lambda row: str(row.rank), 0, right=True),
    RankColumn("node", lambda row: one_line(row.node, _LONGEST_NAME), 5),
    RankColumn("phase", lambda row: one_line(row.phase, _LONGEST_NAME), 1),
    RankColumn("section", _section, 3),
    RankColumn(
        "iteration", lambda row: "-" if row.iteration is None else str(row.iteration), 0, True
    ),
    RankColumn("step", lambda row: _took(row.step_s), 4, True),
    RankColumn("mean", lambda row: _took(row.mean_s), 7, True),
    RankColumn("silent", _silent, 2, True),
    RankColumn("failed", lambda row: str(row.failures or "-"), 6, True),
)


def table(rows: Sequence[Rank], width: int | None, *, several_nodes: bool) -> list[Line]:
    """Return a line of titles and one for each row.

    Columns that are needed least are left out until there is room; notes get what is left.

    Args:
        rows: in the order shown.
        width: columns of the terminal, None = as many as needed.
        several_nodes: show the node of each rank.
    """
    cells = {column.title: [column.cell(row) for row in rows] for column in COLUMNS}
    widths = {
        column.title: max(map(width_of, [column.title, *cells[column.title]])) for column in COLUMNS
    }
    shown = _chosen(widths, width, several_nodes=several_nodes)
    room = None if width is None else width - _needed(shown, widths)
    titles = [fill(column.title, widths[column.title], column.right) for column in shown]
    note_title = "note" if room is None or room >= LEAST_NOTE else ""
    lines: list[Line] = [[(cut(_GAP.join([*titles, note_title]).rstrip(), width), "dim")]]
    for index, row in enumerate(rows):
        texts = [
            fill(cells[column.title][index], widths[column.title], column.right) for column in shown
        ]
        if note_title:
            texts.append(one_line(row.note))
        lines.append([(cut(_GAP.join(texts).rstrip(), width), style_of(row))])
    return lines


def room_for_notes(rows: Sequence[Rank], width: int, *, several_nodes: bool) -> int:
    """Return how many columns the notes in the table have, 0 = they are not in it."""
    (titles,), *_ = table(rows, width, several_nodes=several_nodes)
    return width - width_of(titles[0]) + len("note") if titles[0].endswith("note") else 0


def style_of(row: Rank) -> str:
    """Return the style of a row."""
    if row.suspect:
        return "red"
    if row.slow is not None:
        return "yellow"
    return "" if row.live and row.state not in ENDED else "dim"


def _chosen(widths: dict[str, int], width: int | None, *, several_nodes: bool) -> list[RankColumn]:
    shown = [column for column in COLUMNS if several_nodes or column.title != "node"]
    if width is None:
        return shown
    for needed in range(7, 0, -1):
        room = LEAST_NOTE if needed > 4 else 0  # the first few matter more than notes
        if _needed(shown, widths) + room <= width:
            break
        shown = [column for column in shown if column.rank < needed]
    return shown


def _needed(shown: Sequence[RankColumn], widths: dict[str, int]) -> int:
    return sum(widths[column.title] + len(_GAP) for column in shown)
