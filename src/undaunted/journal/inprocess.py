"""From events to restarts of functions inside their processes. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.journal.events import InProcessPhase
from undaunted.journal.query import every

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.journal.events import Event

_NS = 1_000_000_000
_TIMED = ("abort", "stop", "finalize", "health", "collect", "agree")


class InProcessRestart(msgspec.Struct, kw_only=True, frozen=True):
    """How a function came to run again; durations in nanoseconds, None = not recorded.

    Attributes:
        call: how many calls of restartable functions there were before.
        epoch: the how-manieth restart of that call, from 1.
        causes: one line per reason.
        members: how many ranks ran the function again, 0 = it did not come to that.
        lost: which ranks of the job did not.
        abort_ns: the longest abort of communication.
        stop_ns: the longest time from there until a rank was out of the function.
        finalize_ns: the longest ``finalize``.
        health_ns: the longest health check.
        collect_ns: the longest collection of garbage.
        agree_ns: what else it took until all were known to be ready.
        total_ns: from the first reason until all were told to run the function.
    """

    call: int
    epoch: int
    causes: list[str] = []
    members: int = 0
    lost: list[int] = []
    abort_ns: int | None = None
    stop_ns: int | None = None
    finalize_ns: int | None = None
    health_ns: int | None = None
    collect_ns: int | None = None
    agree_ns: int | None = None
    total_ns: int | None = None


def inprocess_restarts(events: Sequence[Event]) -> list[InProcessRestart]:
    """Return those of one round, in order."""
    groups: dict[tuple[int, int], dict[str, InProcessPhase]] = {}
    for event in every(events, InProcessPhase):
        groups.setdefault((event.call, event.epoch), {})[event.phase] = event
    return [_restart(*key, phases) for key, phases in sorted(groups.items())]


def _restart(call: int, epoch: int, phases: dict[str, InProcessPhase]) -> InProcessRestart:
    began, runs = phases.get("detect"), phases.get("re-enter")
    last = runs or began
    took = {f"{name}_ns": round(phases[name].took_s * _NS) for name in _TIMED if name in phases}
    return InProcessRestart(
        call=call,
        epoch=epoch,
        causes=last.reasons if last else [],
        members=runs.members if runs else 0,
        lost=runs.lost if runs else [],
        total_ns=round(runs.took_s * _NS) if runs else None,
        **took,
    )
