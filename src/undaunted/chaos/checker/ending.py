"""The end of a run, compared with the undisturbed one. Pure."""

from __future__ import annotations

from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING

from undaunted.base.text import format_duration, name_ranks, one_line
from undaunted.chaos.checker.values import Defect
from undaunted.digests.record import UPDATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.chaos.checker.lives import Life, ReferenceRun
    from undaunted.chaos.history import History
    from undaunted.digests.record import Record


def ending(
    reference: History,
    history: History,
    lines: Mapping[int, ReferenceRun],
    by_rank: Mapping[int, Sequence[Life]],
) -> Defect | None:
    """Say why a run did not end as the undisturbed one did; None if it did.

    Args:
        reference: the undisturbed run.
        history: the run.
        lines: records of the undisturbed run.
        by_rank: the lives of the ranks of the run.
    """
    outcome, wanted = history.outcome, reference.outcome
    if not outcome.in_time:
        return Defect(
            "did-not-end",
            "red",
            f"The run did not end within {format_duration(outcome.deadline_s)}; the undisturbed "
            f"one took {format_duration(wanted.seconds)}. {_last_words(history)}",
            "See its output and its report in the directory of the run. If it only needs longer, "
            "give --deadline.",
        )
    if outcome.exit_code != wanted.exit_code:
        return Defect(
            "did-not-recover",
            "red",
            f"The run ended with exit code {outcome.exit_code}; the undisturbed one with "
            f"{wanted.exit_code}. {_last_words(history)}",
            "See its output and its report in the directory of the run.",
        )
    short = _short(lines, by_rank, history)
    if short:
        rank, came, last = short[0]
        more = (
            f"; {name_ranks([rank for rank, _, _ in short[1:]])} ended early too"
            if short[1:]
            else ""
        )
        return Defect(
            "ended-early",
            "red",
            f"The run ended with exit code {outcome.exit_code}, but rank {rank} came to step "
            f"{came} only, not to step {last} as in the undisturbed run{more}.",
            "Let the loop end at a number of steps, not after a number of them:\n"
            "    for step in range(next_step, total_steps):",
        )
    return None


def ranks_missing(
    lines: Mapping[int, ReferenceRun], by_rank: Mapping[int, Sequence[Life]]
) -> list[int]:
    """Return the ranks that took part in the undisturbed run only."""
    return sorted(rank for rank in lines if not by_rank.get(rank))


def nan_kept(reference: History, history: History) -> list[int]:
    """Return the ranks that ended with NaN or infinity, and did not in the undisturbed run."""
    ended = [rank for rank in history.records if _ends_with_nan(history, rank)]
    return sorted(rank for rank in ended if not _ends_with_nan(reference, rank))


def _ends_with_nan(history: History, rank: int) -> bool:
    records = history.records.get(rank)
    if not records:
        return False
    newest_first = [one for one in reversed(records) if one.pid == records[-1].pid]
    # A GradScaler leaves out all updates after one that has brought NaN.
    from_update = dropwhile(lambda one: one.at != UPDATE, newest_first)
    return _begin_with_nan(newest_first) or _begin_with_nan(list(from_update))


def _begin_with_nan(records: Sequence[Record]) -> bool:
    same = takewhile(lambda one: one.iteration == records[0].iteration, records)
    return any(one.finite == "no" for one in same)


def _last_told(history: History) -> int:
    """Return the last iteration of the last round that came to one, as the journal tells it."""
    told = [
        one.last_iteration
        for launch in history.launches
        for one in launch.summary.rounds
        if one.last_iteration is not None
    ]
    return told[-1] if told else -1


def _last_round(history: History) -> tuple[int, int]:
    rounds = history.launches[-1].summary.rounds if history.launches else []
    return len(history.launches) - 1, rounds[-1].round if rounds else 0


def _short(
    lines: Mapping[int, ReferenceRun], by_rank: Mapping[int, Sequence[Life]], history: History
) -> list[tuple[int, int, int]]:
    """Return ranks that did not come to their last iteration: rank, how far, last.

    Records may be lost, so that the journal is believed if it knows of later iterations.
    """
    found = []
    told = _last_told(history)
    for rank, line in lines.items():
        lives = by_rank.get(rank)
        if not lives or not all(life.placed for life in lives) or line.last is None:
            continue  # not known
        if lives[-1].records[-1].counted and lives[-1].start[:2] != _last_round(history):
            continue  # nothing is left of where its last process began
        offset = lives[-1].keys[-1].iteration - lives[-1].records[-1].iteration
        came = max(key.iteration for life in lives for key in life.keys)
        came = max(came, told + offset)
        if came < line.last:
            found.append((rank, came, line.last))
    return found


def _last_words(history: History) -> str:
    """Return what the journal says of the end."""
    if not history.launches:
        return "Its launcher has left no journal."
    summary = history.launches[-1].summary
    if summary.reason and summary.outcome not in ("", "finished"):
        return f"The launcher says: {one_line(summary.reason)}"
    causes = [one.cause for one in summary.rounds if one.cause]
    if causes:
        return f"Last failure: {one_line(causes[-1])}"
    return "Its journal names no failure."
