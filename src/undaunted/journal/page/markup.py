"""Pieces of HTML. What comes from a run is hostile text: all of it passes through `text`."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.text import format_duration, one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NOTHING = "\N{EN DASH}"
_BASE_STYLE = Path(__file__).with_name("static") / "base.css"


class Cell(NamedTuple):
    """A cell of a table: markup, and how it is set: ``number``, ``text`` or ""."""

    markup: str
    kind: str = ""


def text(said: str, longest: int = 500) -> str:
    """Return one line of text as markup."""
    return escape(one_line(said, longest))


def lines(said: str, longest: int) -> str:
    """Return the end of a text of several lines as markup."""
    kept = said if len(said) <= longest else f"...{said[-longest:]}"
    return escape(printable(kept))


def base_style() -> str:
    """Return the style sheet that all our pages begin theirs with."""
    return _BASE_STYLE.read_text(encoding="utf-8")


def named_by_hash(content: str) -> str:
    """Return how a content security policy names a style or script of the page itself."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def number(value: object) -> Cell:
    """Return a cell with a number; a dash for None."""
    return Cell(NOTHING if value is None else text(str(value)), "number")


def took(duration_ns: int | None) -> Cell:
    """Return a cell with a duration; a dash for None."""
    return Cell(NOTHING if duration_ns is None else for_people(duration_ns), "number")


def for_people(duration_ns: float) -> str:
    """Return a duration in words."""
    return format_duration(duration_ns / 1e9)


def elapsed(ns: int) -> str:
    """Return a moment as the time since the job began, as the timeline writes it."""
    seconds, ms = divmod(ns // 1_000_000, 1000)
    minutes, hours = seconds // 60, seconds // 3600
    whole = f"{minutes % 60:02d}:{seconds % 60:02d}"
    if hours:
        whole = f"{hours % 24}:{whole}" if hours < 24 else f"{hours // 24} d {hours % 24}:{whole}"
    return whole if hours else f"{whole}.{ms:03d}"


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], label: str) -> str:
    """Return a table that scrolls when it is high; heads and label are markup already."""
    body = [_row(row) for row in rows]
    kinds = _kinds(body)
    titles = "".join(
        f'<th scope="col"{" class=number" if kind == "number" else ""}>{head}</th>'
        for head, kind in zip(heads, kinds or [""] * len(heads), strict=True)
    )
    content = "\n".join(markup for markup, _ in body)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>'
        f"<thead><tr>{titles}</tr></thead><tbody>\n{content}\n</tbody></table></div>"
    )


def folded(title: str, content: str) -> str:
    """Return a part that is opened by a click."""
    return f'<details class="part"><summary>{title}</summary>{content}</details>'


def _row(cells: Sequence[Cell]) -> tuple[str, list[str]]:
    markup = "".join(
        f'<td class="{cell.kind}">{cell.markup}</td>' if cell.kind else f"<td>{cell.markup}</td>"
        for cell in cells
    )
    return f"<tr>{markup}</tr>", [cell.kind for cell in cells]


def _kinds(body: Sequence[tuple[str, list[str]]]) -> list[str]:
    return body[0][1] if body else []
