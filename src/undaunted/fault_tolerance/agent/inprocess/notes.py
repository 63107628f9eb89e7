"""Tells the journal and the user what a controller of in-process restart notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import count, format_duration, one_line
from undaunted.journal.events import InProcessCall, InProcessPhase

if TYPE_CHECKING:
    from undaunted.fault_tolerance.agent.telling.scribe import Scribe
    from undaunted.inprocess.core.commands import Note
    from undaunted.inprocess.core.messages import Reason

_REASONS = 8  # that are journaled


class Notes:
    """Of one controller.

    Args:
        scribe: writes the journal, shows lines.
        round: which one it is about; the node may take no part in it.
        world_size: ranks of the job.
    """

    def __init__(self, scribe: Scribe, round: int, world_size: int) -> None:  # noqa: A002
        self._scribe = scribe
        self._round = round
        self._world_size = world_size
        self._members = 0  # of the epoch that is on

    def take(self, note: Note) -> None:
        """Note something."""
        if note.what == "stopped":
            after, reasons = note.epoch + 1, _lines(note.reasons)
            self._phase(note, "detect", note.took_s, epoch=after, reasons=reasons)
            return
        if note.what == "recorded":
            self._members = len(note.members)
            if note.epoch > 0:
                self._restarted(note)
                return
        what = "begun" if note.what == "recorded" else note.what
        self._scribe.record(
            InProcessCall,
            round=self._round,
            call=note.call,
            epoch=note.epoch,
            what=what,
            members=self._members,
            text=note.text,
        )
        if what == "ended":
            self._scribe.say(f"the function cannot go on in any rank: {one_line(note.text)}")

    def _restarted(self, note: Note) -> None:
        known_s = 0.0
        for phase, (took_s, rank) in note.phases.items():
            known_s += took_s
            self._phase(note, phase, took_s, rank=rank)
        self._phase(note, "agree", max(0.0, note.took_s - known_s), rank=note.last)
        lost = sorted(set(range(self._world_size)) - {*note.members})
        ranks, reasons = len(note.members), _lines(note.reasons)
        self._phase(note, "re-enter", note.took_s, members=ranks, lost=lost, reasons=reasons)
        self._scribe.say(
            f"in-process restart {note.epoch}: {count(ranks, 'rank')} running again "
            f"{format_duration(note.took_s)} after {_first_of(note.reasons)}"
        )

    def _phase(
        self, note: Note, phase: str, took_s: float, *, epoch: int = -1, **fields: object
    ) -> None:
        self._scribe.record(
            InProcessPhase,
            round=self._round,
            call=note.call,
            epoch=note.epoch if epoch < 0 else epoch,
            phase=phase,
            took_s=round(took_s, 6),
            **fields,
        )


def _first_of(reasons: tuple[Reason, ...]) -> str:
    if not reasons:
        return "it was stopped"
    consequences = sum(reason.consequence for reason in reasons[1:])
    more = len(reasons) - 1 - consequences
    others = [f"{more} more"] if more else []
    others += [count(consequences, "consequence")] if consequences else []
    return _line(reasons[0]) + (f" (and {', '.join(others)})" if others else "")


def _lines(reasons: tuple[Reason, ...]) -> list[str]:
    return [_line(reason) for reason in reasons[:_REASONS]]


def _line(reason: Reason) -> str:
    place = f", in {one_line(reason.where)}" if reason.where else ""
    return one_line(f"rank {reason.job_rank}: {reason.text or reason.kind}", longest=300) + place
