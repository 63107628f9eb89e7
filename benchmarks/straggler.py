"""What the straggler detector costs: a section, and the report of many ranks.

    python -m benchmarks.straggler [--ranks 512] [--sections 10] [--json]

A section is entered and left, on a machine without a device. A report is what rank 0 computes out
of what all ranks have sent: it decodes them, scores them with either reference, and looks for
stragglers; the collective is not in it, and its CPU time is taken. A figure is the mean of one
round of calls; shown are median, least and largest over the rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import TYPE_CHECKING

from benchmarks.heartbeat import mean_ns
from undaunted.attribution.straggler import Detector, Report
from undaunted.attribution.straggler import detector as module
from undaunted.attribution.straggler.report import RankTimes, Reference, decode, encode, gathered

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 15
CALLS = 20_000
REPORTS = 5


def section() -> None:
    """Enter and leave a section."""
    with Detector.detection_section("forward"):
        pass


def unnamed() -> None:
    """Enter and leave a section without a name."""
    with Detector.detection_section():
        pass


def sent(ranks: int, sections: int) -> list[bytes]:
    """Return what ranks send for a report."""
    rng = random.Random(1)
    contents = []
    for rank in range(ranks):
        medians = {f"section {number}": rng.gauss(20, 1) for number in range(sections)}
        contents.append(
            encode(
                RankTimes(
                    rank=rank,
                    node=f"node{rank // 8}",
                    sections=medians,
                    kernels={
                        name: (median * 1e3, median * 1e5) for name, median in medians.items()
                    },
                    gpu_individual=0.99,
                    sections_individual=dict.fromkeys(medians, 0.99),
                )
            )
        )
    return contents


def report(contents: list[bytes], reference: Reference) -> Callable[[], object]:
    """Return what computes a report."""

    def compute() -> object:
        scores = gathered(decode(contents), reference, relative=True, individual=True)
        return Report(
            **scores,
            local_section_summaries={},
            local_kernel_summaries={},
            generate_report_elapsed_time=0.0,
            gather_on_rank0=True,
            rank=0,
        ).identify_stragglers()

    return compute


def mean_cpu_ns(case: Callable[[], object], calls: int) -> float:
    """Return the CPU time of a call: other work on the machine is not in it."""
    began = time.process_time_ns()
    for _ in range(calls):
        case()
    return (time.process_time_ns() - began) / calls


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=512, help="of the report (512)")
    parser.add_argument("--sections", type=int, default=10, help="of each rank (10)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    module.device = lambda: None
    Detector.initialize()
    contents = sent(options.ranks, options.sections)
    cases = {
        "section": (section, CALLS),
        "section without a name": (unnamed, CALLS),
        "report: decode": (lambda: decode(contents), REPORTS),
        "report, best": (report(contents, "best"), REPORTS),
        "report, peers": (report(contents, "peers"), REPORTS),
    }
    found = {}
    for name, (case, calls) in cases.items():
        mean = mean_cpu_ns if name.startswith("report") else mean_ns
        mean(case, calls)
        rounds = sorted(mean(case, calls) / 1e3 for _ in range(ROUNDS))
        found[name] = {
            "median_us": round(rounds[ROUNDS // 2], 3),
            "least_us": round(rounds[0], 3),
            "largest_us": round(rounds[-1], 3),
        }
    if options.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(f"{name:<24}" + "".join(f"{key} {value:>10.3f}  " for key, value in figures.items()))


if __name__ == "__main__":
    main()
