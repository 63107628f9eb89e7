"""The proving ground: real programs, each under faults: ``python -m tests.jobs``.

Each cell of the table runs in a process of its own. The result of the undisturbed run is what the
others are compared with, so it runs first, whether it was asked for or not. The exit code is 1 if
a cell is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tests.jobs.page import RESULTS
from tests.jobs.runner import ROOT, Cell, run_cell
from tests.jobs.table import FAULTS, JOBS, SAMPLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SPARE_S = 60.0  # what a cell may take beyond the deadline of its job


def cells_of(jobs: Sequence[str], faults: Sequence[str]) -> list[tuple[str, str]]:
    """Return the cells of these jobs and faults that the table has, job by job."""
    return [(job, fault) for job in jobs for fault in faults if fault in JOBS[job].faults]


def run_all(
    cells: Iterable[tuple[str, str]], keep: Path | None, record: Callable[[Cell], None] | None
) -> list[Cell]:
    """Run these cells, say of each how it went, and give it to ``record``."""
    references: dict[str, str] = {}
    results = []

    def run(job: str, fault: str) -> None:
        cell = _separately(job, fault, references.get(job, ""), keep)
        if fault == "none":
            references[job] = cell.result
        results.append(cell)
        say(cell)
        if record is not None and not cell.skipped:
            record(cell)

    for job, fault in cells:
        if job not in references and fault != "none":
            run(job, "none")
        run(job, fault)
    return results


def record(cell: Cell) -> None:
    """Put a cell into the file of results, in the place of an older one."""
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"cells": []}
    listed = (ROOT / "tests/jobs/requirements.txt").read_text().splitlines()
    names = [line.partition("==")[0] for line in listed if "==" in line]
    kept["versions"] = {name: metadata.version(name) for name in names}
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    kept["machine"] = f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.machine()}, no GPU"
    others = [old for old in kept["cells"] if (old["job"], old["fault"]) != (cell.job, cell.fault)]
    kept["cells"] = sorted([*others, asdict(cell)], key=lambda one: (one["job"], one["fault"]))
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def say(cell: Cell) -> None:
    """Print how a cell went."""
    if cell.skipped:
        print(f"skipped {cell.job} {cell.fault}: {cell.skipped}", flush=True)
        return
    took = "" if cell.recovery_s is None else f", first step {cell.recovery_s:.1f} s after"
    lost = f", {cell.lost} steps again" if cell.lost else ""
    word = "WRONG" if cell.wrong else "right"
    used = f"{cell.seconds:.0f} s, CPU {cell.cpu_s:.0f} s"
    print(f"{word} {cell.job} {cell.fault} ({used}{lost}{took})", flush=True)
    for line in cell.wrong:
        print(f"      {line}", flush=True)


def _separately(job: str, fault: str, reference: str, keep: Path | None) -> Cell:
    """Run a cell in a process of its own, with a deadline."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        words = ["--cell", job, fault, reference, str(answer), str(keep or "")]
        command = [sys.executable, "-m", "tests.jobs", *words]
        try:
            done = subprocess.run(command, cwd=ROOT, timeout=JOBS[job].deadline_s + SPARE_S)
            return Cell(**json.loads(answer.read_text()))
        except subprocess.TimeoutExpired:
            return Cell(job, fault, ["the runner does not end"])
        except OSError:
            return Cell(job, fault, [f"the runner ended with {done.returncode}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are asked for, all without arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.jobs", description=__doc__)
    parser.add_argument("--jobs", default=",".join(JOBS), help="rows, separated by commas")
    parser.add_argument("--faults", default=",".join(FAULTS), help="columns, likewise")
    parser.add_argument("--sample", action="store_true", help="the few cells that CI runs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folders of cells that are wrong")
    parser.add_argument("--record", action="store_true", help="keep results, for docs/proven.md")
    parser.add_argument("--cell", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cell:
        job, fault, reference, answer, keep = options.cell
        cell = run_cell(job, fault, reference, Path(keep) if keep else None)
        Path(answer).write_text(json.dumps(asdict(cell)))
        return 0
    jobs, faults = options.jobs.split(","), options.faults.split(",")
    if unknown := {*jobs} - {*JOBS} | {*faults} - {*FAULTS}:
        parser.error(f"not in the table: {', '.join(sorted(unknown))}")
    began = time.monotonic()
    cells = SAMPLE if options.sample else cells_of(jobs, faults)
    results = run_all(cells, options.keep, record if options.record else None)
    wrong = sum(bool(cell.wrong) for cell in results)
    print(f"{len(results)} cells, {wrong} wrong, {time.monotonic() - began:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
