"""What the controller notes, as a line for the guard's log. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import format_duration, one_line

if TYPE_CHECKING:
    from undaunted.inprocess.core.commands import Note
    from undaunted.inprocess.core.messages import Reason

_REASONS = 4  # that are shown; the others are counted


def line(note: Note) -> str:
    """Return the line."""
    took = f" after {format_duration(note.took_s)}" if note.took_s else ""
    parts = [f"call {note.call}, epoch {note.epoch} {note.what}{took}"]
    if note.what == "recorded":
        parts.append(f"{len(note.members)} members")
        if note.last >= 0:
            parts.append(f"rank {note.last} was the last")
    parts += [_reason(reason) for reason in note.reasons[:_REASONS]]
    if len(note.reasons) > _REASONS:
        parts.append(f"{len(note.reasons) - _REASONS} more reasons")
    if note.text:
        parts.append(one_line(note.text))
    return "; ".join(parts)


def _reason(reason: Reason) -> str:
    place = f", in {one_line(reason.where)}" if reason.where else ""
    return one_line(f"rank {reason.job_rank}: {reason.kind}: {reason.text}", longest=300) + place
