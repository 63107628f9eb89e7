"""How soon learned limits find a hang, and how often they are wrong: the figures of
docs/design/learned-timeouts.md.

Simulated programs in virtual time, see tests/progress/workloads.py; takes a minute.

    python benchmarks/learned_timeouts.py [PROGRAMS]
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.progress import workloads
from undaunted.progress.learning import MANY
from undaunted.progress.limits import FLOOR_S

if TYPE_CHECKING:
    from collections.abc import Callable


def measure(make: Callable[[int], workloads.Workload], programs: int) -> list[str]:
    """Lines of a Markdown table about so many programs."""
    results = [workloads.simulate(make(seed)) for seed in range(programs)]
    wrong = sum(bool(result.false_kills) for result in results)
    lines = [f"{make.__name__}: {programs} programs, {wrong} ended without need", ""]
    lines.append("| limit of | programs | at the floor | median | largest | above 3 |")
    lines.append("|---|---|---|---|---|---|")
    for key, found in sorted(by_key(results).items()):
        above_floor = (each for each in found if each.limit_s > FLOOR_S + 0.1)
        ratios = [each.limit_s / each.quantile_s for each in above_floor]
        cells = [key, len(found), len(found) - len(ratios)]
        if ratios:
            cells += [f"{statistics.median(ratios):.2f}", f"{max(ratios):.2f}"]
            cells.append(sum(round(ratio, 2) > 3 for ratio in ratios))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def tails(programs: int) -> list[str]:
    """Lines of a Markdown table about steps with a Pareto tail."""
    lines = ["| exponent | programs | ended without need |", "|---|---|---|"]
    for exponent in (3, 4, 5, 6, 8):
        results = [workloads.simulate(workloads.pareto(exponent, n)) for n in range(programs)]
        wrong = sum(bool(result.false_kills) for result in results)
        lines.append(f"| {exponent} | {programs} | {wrong} |")
    return lines


def by_key(results: list[workloads.Result]) -> dict[str, list[workloads.Found]]:
    """What was found for each kind of limit."""
    kinds = defaultdict(list)
    for result in results:
        for key, found in result.found.items():
            kinds[key + samples(found.count)].append(found)
    return kinds


def samples(count: int) -> str:
    """How many there were, in words."""
    if count >= MANY:
        return ""
    return f", fewer than {MANY} samples"


def main() -> None:
    programs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print("\n".join(measure(workloads.ordinary, programs)), end="\n\n")
    print("\n".join(measure(workloads.long, programs // 10)), end="\n\n")
    print("\n".join(measure(workloads.rare, programs // 4)), end="\n\n")
    print("\n".join(tails(programs // 2)))


if __name__ == "__main__":
    main()
