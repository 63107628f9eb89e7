"""What a reader of a job's summary should know. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import format_duration, format_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.journal.job.launches import Attempt
    from undaunted.journal.job.values import Clock

# A larger uncertainty is worth a line.
_UNCERTAIN_NS = 1_000_000_000
_SHOWN = 5


def notes_of(attempts: Sequence[Attempt], clocks: Sequence[Clock]) -> list[str]:
    """Return one line for each thing that limits what the summary says."""
    return [*_missing(attempts), *_other_runs(attempts), *_clocks(clocks)]


def _missing(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Yield which ranks no journal tells of."""
    rounds: dict[tuple[range, ...], list[str]] = {}
    for index, attempt in enumerate(attempts):
        for world in attempt.worlds:
            if missing := world.missing:
                name = f"{world.number}" if len(attempts) == 1 else f"{index}.{world.number}"
                rounds.setdefault(missing, []).append(name)
    for ranks, numbers in rounds.items():
        who = f"rank{'s' * (sum(map(len, ranks)) > 1)} {format_ranges(ranks)}"
        which = f"round {numbers[0]}"
        if len(numbers) > 1:
            which = f"{len(numbers)} rounds ({numbers[0]} to {numbers[-1]})"
        yield (
            f"no journal tells of {who} in {which}; their time is not in the sums: "
            "either their node was lost before it could write, or its journal is missing here"
        )


def _other_runs(attempts: Sequence[Attempt]) -> Iterator[str]:
    names = {
        launch.started.run_id
        for attempt in attempts
        for launch in attempt.launches
        if launch.started is not None
    }
    if len(names) > 1:
        yield f"the journals are of several runs ({', '.join(sorted(names))}), counted as one job"


def _clocks(clocks: Sequence[Clock]) -> Iterator[str]:
    for method, how in (
        ("wall", "only by wall clocks, which may be wrong"),
        ("start", "by nothing; they are shown as if they had begun with the job"),
    ):
        if nodes := [node for clock in clocks if clock.method == method for node in clock.nodes]:
            yield f"the times of {_names(nodes)} are related to the others {how}"
    if drifting := [node for clock in clocks if clock.drifts for node in clock.nodes]:
        yield f"the clocks of {_names(drifting)} run at another rate than those of the others"
    unsure = [clock for clock in clocks if (clock.uncertainty_ns or 0) > _UNCERTAIN_NS]
    if unsure:
        nodes = [node for clock in unsure for node in clock.nodes]
        most = max(clock.uncertainty_ns or 0 for clock in unsure)
        yield f"the times of {_names(nodes)} are known to ±{format_duration(most / 1e9)} only"


def _names(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:_SHOWN])
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"{'node' if len(nodes) == 1 else 'nodes'} {shown}{more}"
