"""From measured values to a table: medians, spread, and the ratio of the pairs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OURS = "undaunted"


@dataclass
class Result:
    """The values of one case. Index i of every list is from the same round of launchers.

    Attributes:
        name, title, ranks: of the case.
        values: launcher -> metric -> one value per round; None where the run failed.
        failures: one message per failed run.
    """

    name: str
    title: str
    ranks: int
    values: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, launcher: str, number: int, measured: Mapping[str, float]) -> None:
        """Note what round ``number`` measured; metrics it lacks count as failed."""
        metrics = self.values.setdefault(launcher, {})
        for metric in {**metrics, **measured}:
            row = metrics.setdefault(metric, [])
            row += [None] * (number - len(row)) + [measured.get(metric)]


def markdown(results: Sequence[Result]) -> str:
    """Return one table per case and number of ranks."""
    return "\n\n".join(table(result) for result in results)


def table(result: Result) -> str:
    launchers = list(result.values)
    metrics = list(dict.fromkeys(m for values in result.values.values() for m in values))
    others = [launcher for launcher in launchers if launcher != OURS]
    rows = [[result_head(result), *launchers, *(f"{other} / {OURS}" for other in others)]]
    for metric in metrics:
        row = {name: values.get(metric, []) for name, values in result.values.items()}
        ratios = [paired_ratio(row.get(OURS, []), row[other]) for other in others]
        rows.append(
            [metric, *map(cell, row.values()), *("-" if r is None else f"{r:.3g}" for r in ratios)]
        )
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join([*lines, *failures(result)])


def failures(result: Result) -> list[str]:
    """Return a line per kind of failure: what happened, how often, the last line of output."""
    kinds = Counter((lines[0], lines[-1]) for one in result.failures if (lines := one.splitlines()))
    return [f"\nFailed {n} times: {first} {last}" for (first, last), n in kinds.items()]


def result_head(result: Result) -> str:
    ranks = "1 rank" if result.ranks == 1 else f"{result.ranks} ranks"
    return f"{result.name}, {ranks}, {result.title}"


def cell(values: Sequence[float | None]) -> str:
    """Return median, range and number of the values: ``0.21 [0.2..0.25] n=9``."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle, low, high = (f"{value:.3g}" for value in (median(known), min(known), max(known)))
    return f"{middle} [{low}..{high}] n={len(known)}"


def paired_ratio(ours: Sequence[float | None], theirs: Sequence[float | None]) -> float | None:
    """Return the median of theirs/ours over the pairs in which both are known and not 0."""
    pairs = [b / a for a, b in zip(ours, theirs, strict=False) if a and b]
    return median(pairs) if pairs else None
