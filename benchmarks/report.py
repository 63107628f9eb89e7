"""How long `undaunted report` takes on the journals of a large job.

    python -m benchmarks.report [--nodes 125] [--slots 8] [--restarts 100] [--saves] [--runs 5]
        [--json]

The journals are simulated (`benchmarks.simulated_job`). Each way to call the report is a process
of its own, from its start to its end; the ways take turns, so that a change of the machine's load
meets all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.simulated_job import simulate, write

WAYS = {
    "terminal": [],
    "--json": ["--json"],
    "--outcome": ["--outcome"],
    "--html": ["--html", "page.html"],
}


class Took(NamedTuple):
    """One call: seconds that passed, seconds of CPU, largest memory in MB."""

    wall_s: float
    cpu_s: float
    memory_mb: float


def call(directory: Path, options: list[str]) -> Took:
    """Make one report, its output thrown away."""
    command = [sys.executable, "-m", "undaunted.cli.main", "report", "journals", *options]
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # nobody else waits for it
    took = time.perf_counter() - began
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Took(took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def measure(directory: Path, runs: int) -> dict[str, list[Took]]:
    """Call the report in all ways, in turns."""
    results: dict[str, list[Took]] = {way: [] for way in WAYS}
    for _ in range(runs):
        for way, options in WAYS.items():
            results[way].append(call(directory, options))
    return results


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, default in (("nodes", 125), ("slots", 8), ("restarts", 100), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--saves", action="store_true", help="ranks tell of their checkpoints")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        job = simulate(
            nodes=options.nodes, slots=options.slots, restarts=options.restarts, seed=options.seed,
            saves=options.saves,
        )  # fmt: skip
        files = write(job, directory / "journals")
        size_mb = sum(file.stat().st_size for file in files) / 1e6
        events = sum(len(node.events) for node in job.nodes)
        del job
        load = os.getloadavg()[0]
        results = measure(directory, options.runs)
    if options.json:
        print(json.dumps({"events": events, "size_mb": size_mb, "load": load, "took": results}))
        return 0
    print(f"{events:,} events, {size_mb:.0f} MB; load average {load:.1f}")
    print("| `undaunted report` | seconds | CPU seconds | memory, MB |\n|---|---|---|---|")
    for way, took in results.items():
        wall, cpu, memory = (statistics.median(column) for column in zip(*took, strict=True))
        longest = max(each.wall_s for each in took)
        print(f"| {way} | {wall:.1f}, longest {longest:.1f} | {cpu:.1f} | {memory:.0f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
