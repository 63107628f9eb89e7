"""Findings about errors in the rounds around a fault. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import count, name_ranks, one_line
from undaunted.chaos.checker.recovery import rounds_after, stopped
from undaunted.chaos.checker.values import Defect
from undaunted.chaos.kinds import KINDS
from undaunted.journal.events import RankExited, SignalReceived, StopRequested, Verdict
from undaunted.journal.query import every, first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.chaos.checker.cuts import Cut
    from undaunted.chaos.checker.recovery import RoundAfter
    from undaunted.chaos.history import History
    from undaunted.journal.events import AnyEvent

_NS = 1e9
# A rank that is killed when its grace is over is so a little later.
_NEARLY = 0.9
# Steps that ranks may take after SIGTERM before they agree to stop.
_STEPS_TO_AGREE = 3
# Starts that may fail before a checkpoint is known to be bad.
_RESTARTS_SPENT = 2

_SIGTERM_REMEDY = (
    "On SIGTERM only set a flag; look at it after each step, save and leave:\n"
    "    signal.signal(signal.SIGTERM, lambda *_: stop.set())\n"
    "    if stop.is_set(): save(); sys.exit(0)"
)


def trouble(
    cut: Cut, following: Cut | None, cuts: Sequence[Cut], history: History, *, recovered: bool
) -> list[Defect]:
    """Return what else went wrong from a fault up to the next one.

    Args:
        cut: the fault.
        following: the next one of the run that has happened, None = there is none.
        cuts: all of them.
        history: of the run.
        recovered: whether the run got over the fault.
    """
    events = history.events_of(cut.start)
    found = _killed(cut, events, history)
    if not found and KINDS[cut.fault.kind].relaunch:
        found = _ignored(cut, events, history)
    return found + _failed_again(cut, following, cuts, history, recovered=recovered)


def _killed(cut: Cut, events: Sequence[AnyEvent], history: History) -> list[Defect]:
    """Find ranks that had to be killed when their grace was over."""
    stop = first(events, StopRequested)
    relaunch = KINDS[cut.fault.kind].relaunch or stopped(cut, history)
    if stop is None or stop.t < cut.at_ns or stop.grace_s <= 0:
        return []
    ranks = [
        one.rank
        for one in every(events, RankExited)
        if one.by_us
        and one.signal == "SIGKILL"
        and one.t - stop.t >= stop.grace_s * _NEARLY * _NS
        and (relaunch or one.rank != cut.fault.rank)
    ]
    if not ranks:
        return []
    return [
        Defect(
            "sigterm-swallowed" if relaunch else "killed-after-grace",
            "red" if relaunch else "yellow",
            f"SIGTERM did not end {name_ranks(ranks)} within the {stop.grace_s:g} s of grace, so "
            "that SIGKILL had to: the script swallows SIGTERM, or its last save takes longer.",
            _SIGTERM_REMEDY if relaunch else "Let a rank that waits for others end on SIGTERM.",
        )
    ]


def _ignored(cut: Cut, events: Sequence[AnyEvent], history: History) -> list[Defect]:
    """Find ranks that went on to the end of the program in spite of SIGTERM."""
    launch = history.launches[cut.start.launch].summary
    signalled = first(events, SignalReceived)
    part = history.part_of(cut.start)
    came = part.last_iteration if part is not None else None
    later = [one.summary for one in history.launches[cut.start.launch + 1 :]]
    if signalled is None or came is None or (launch.outcome != "finished" and not later):
        return []
    if any(r.last_iteration is not None for one in later for r in one.rounds):
        return []  # it was not done: the ranks have saved and left
    steps = came - cut.fault.iteration
    if steps <= _STEPS_TO_AGREE:
        return [
            Defect(
                "sigterm-too-late",
                "yellow",
                f"The program was over {steps} steps after SIGTERM: too soon to see whether the "
                "script ends because of it.",
                "Plan it earlier in the run.",
            )
        ]
    return [
        Defect(
            "sigterm-swallowed",
            "red",
            f"The ranks took {steps} more steps after SIGTERM, to the end of the program: the "
            "script swallows SIGTERM. A scheduler kills it when the grace is over.",
            _SIGTERM_REMEDY,
        )
    ]


def _failed_again(
    cut: Cut, following: Cut | None, cuts: Sequence[Cut], history: History, *, recovered: bool
) -> list[Defect]:
    """Find rounds after the fault that failed though no fault was planned in them."""
    planned = {one.start[:2] for one in cuts}
    rounds = [
        after
        for after in rounds_after(cut, following, history)
        if (after.launch, after.summary.round) not in planned
        and after.summary.outcome in ("crash", "hang", "spawn")
    ]
    found = _failed_inside(cut, following, history)
    emptied = _emptied(cut, history)
    full = [after for after in rounds if after.state.began_ns < emptied]
    rounds = [after for after in rounds if after.state.began_ns >= emptied]
    loading = [after for after in rounds if after.stepped_ns is None]
    later = [after for after in rounds if after.stepped_ns is not None]
    if KINDS[cut.fault.kind].poisons:
        return found + _no_space(full) + _spent(rounds)
    severe = not recovered or bool(KINDS[cut.fault.kind].save)
    return found + _no_space(full) + _not_loaded(loading, severe=severe) + _failed_later(later)


def _emptied(cut: Cut, history: History) -> int:
    """Return until when the disk was full because of the fault."""
    return next(
        (
            note.mono_ns
            for note in history.outcome.notes
            if note.fault == cut.fault.id and note.what == "emptied"
        ),
        0,
    )


def _no_space(rounds: Sequence[RoundAfter]) -> list[Defect]:
    if not rounds:
        return []
    return [
        Defect(
            "failed-while-full",
            "note",
            f"{count(len(rounds), 'start')} failed while the disk was full, which is no wonder: "
            f"{one_line(rounds[0].summary.cause)}",
        )
    ]


def _failed_inside(cut: Cut, following: Cut | None, history: History) -> list[Defect]:
    """Find that a round failed after its processes had been restarted from inside."""
    events = history.events_of(cut.start)
    verdict = first(events, Verdict)
    if not cut.inside or verdict is None:
        return []
    if following is not None and following.start[:2] == cut.start[:2]:
        return []  # it is that one's
    return [
        Defect(
            "failed-again",
            "yellow",
            "After the function had been restarted inside its processes, the round failed "
            f"although nothing else was planned: {one_line(verdict.line)}",
        )
    ]


def _spent(rounds: Sequence[RoundAfter]) -> list[Defect]:
    """Find how many restarts were spent on a bad checkpoint."""
    if not rounds:
        return []
    starts = f"{count(len(rounds), 'start')} after the fault failed"
    cause = one_line(rounds[-1].summary.cause)
    if len(rounds) <= _RESTARTS_SPENT:
        text = f"{starts}, as may happen with a bad checkpoint: {cause}"
        return [Defect("bad-checkpoint-tried", "note", text)]
    return [
        Defect(
            "bad-checkpoint-tried-again",
            "red",
            f"{starts}: more than {_RESTARTS_SPENT} restarts were spent on a bad checkpoint. "
            f"{cause}",
            "Let undaunted choose the checkpoint, which passes one over that leads to failures:\n"
            "    path = undaunted.checkpointing.choose(newest_first)\n"
            "Do not give --no-checkpoint-fallback, and let numbers that are not finite be errors.",
        )
    ]


def _not_loaded(rounds: Sequence[RoundAfter], *, severe: bool) -> list[Defect]:
    if not rounds:
        return []
    starts = "A start after the fault failed before its first step"
    if len(rounds) > 1:
        starts = f"{len(rounds)} starts after the fault failed before their first step"
    return [
        Defect(
            "load-failed",
            "red" if severe else "yellow",
            f"{starts}: often a checkpoint that was not written completely is loaded, as saving "
            f"is not atomic. {one_line(rounds[0].summary.cause)}",
            "Write to another name, flush, then rename; a complete checkpoint is one that has its "
            'name:\n    torch.save(saved, f"{path}.new")\n    os.replace(f"{path}.new", path)',
        )
    ]


def _failed_later(rounds: Sequence[RoundAfter]) -> list[Defect]:
    if not rounds:
        return []
    what = "A round after the fault"
    if len(rounds) > 1:
        what = f"{len(rounds)} rounds after the fault"
    return [
        Defect(
            "failed-again",
            "yellow",
            f"{what} failed although nothing was planned there: "
            f"{one_line(rounds[0].summary.cause)}",
        )
    ]
