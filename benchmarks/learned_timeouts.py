"""How soon learned limits find a hang, and how often they are wrong: the figures of
docs/design/learned-timeouts.md.

Simulated programs in virtual time, see tests/progress/workloads.py; takes ten seconds.

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
from undaunted.progress.learning import FLOOR_S, MANY

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
        ratios = [limit_s / quantile_s for limit_s, quantile_s in found if limit_s > FLOOR_S + 0.1]
        cells = [key, len(found), len(found) - len(ratios)]
        if ratios:
            cells += [f"{statistics.median(ratios):.2f}", f"{max(ratios):.2f}"]
            cells.append(sum(ratio > 3 for ratio in ratios))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def by_key(results: list[workloads.Result]) -> dict[str, list[tuple[float, float]]]:
    """Limit and true quantile of each kind of limit, in seconds."""
    found = defaultdict(list)
    for result in results:
        for key, (limit_s, quantile_s, count) in result.found.items():
            kind = key if count >= MANY else f"{key}, fewer than {MANY} samples"
            found[kind].append((limit_s, quantile_s))
    return found


def main() -> None:
    programs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print("\n".join(measure(workloads.ordinary, programs)), end="\n\n")
    print("\n".join(measure(workloads.rare, programs // 4)))


if __name__ == "__main__":
    main()
