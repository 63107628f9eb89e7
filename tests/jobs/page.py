"""Makes docs/proven.md of the results that ``python -m tests.jobs --record`` has kept."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.jobs.table import FAULTS, JOBS

RESULTS = Path(__file__).parent / "results.json"

_HEAD = """\
# Proven on real jobs

Programs as users write them, with the real packages, each run undisturbed and then under faults.
`make test-jobs JOBS_ARGS=--record` runs them, and `make generated` makes this page of the results.
A cell that went wrong stays. The programs are in `tests/jobs/programs`, and `tests/jobs/table.py`
says what must come out.

A cell is **right** if all of this holds:

* The launcher ends with the expected exit code, after the expected number of restarts.
* The first verdict names the rank at fault, where one rank is.
* No more steps are done again than lie between two saves; twice as many if the fault hits a save
  or a checkpoint.
* The parameters are those of the undisturbed run, bit for bit.
* No process is left, no file in `/dev/shm`, and no file but those of the program.

On an x86-64 machine without AVX-512, where torch is slow with bf16, the programs compute in
float32.
"""


def page() -> str:
    """Return the page."""
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    cells = {(cell["job"], cell["fault"]): cell for cell in kept.get("cells", [])}
    parts = [_HEAD, _origin(kept, cells), _table(cells), _wrong(cells), _programs(cells), _faults()]
    return "\n".join(part for part in parts if part)


def _origin(kept: dict[str, Any], cells: dict[tuple[str, str], Any]) -> str:
    if not cells:
        return "Nothing has been recorded yet.\n"
    dates = sorted({cell["date"] for cell in cells.values()})
    loads = sorted(cell["load"] for cell in cells.values())
    versions = "; ".join(f"{name} {number}" for name, number in sorted(kept["versions"].items()))
    count = Counter(word(cells.get((job, fault))) for job in JOBS for fault in JOBS[job].faults)
    return (
        f"{sum(count.values())} cells: {count['right']} right, {count['wrong']} wrong,"
        f" {count['not run']} not run.\n"
        f"Recorded from {dates[0]} to {dates[-1]} on {kept['machine']}.\n"
        f"The load of the machine was {loads[0]} to {loads[-1]}: times are upper bounds.\n\n"
        f"Versions: {versions}.\n"
    )


def word(cell: dict[str, Any] | None) -> str:
    """Return what is said of a cell."""
    if cell is None:
        return "not run"
    return "wrong" if cell["wrong"] else "right"


def _table(cells: dict[tuple[str, str], Any]) -> str:
    lines = [
        "## The cells\n",
        "The number is the time from the fault to the first step after it, in seconds. `-` means",
        "that there is no such cell: the table of the programs says why.\n",
        "| program | " + " | ".join(FAULTS) + " |",
        "|---|" + "---|" * len(FAULTS),
    ]
    for name, job in JOBS.items():
        words = []
        for fault in FAULTS:
            cell = cells.get((name, fault))
            text = word(cell) if fault in job.faults else "-"
            text = f"**{text}**" if text == "wrong" else text
            if text != "-" and cell and cell["recovery_s"] is not None:
                text += f" {cell['recovery_s']:.0f}"
            words.append(text)
        lines.append(f"| {name} | " + " | ".join(words) + " |")
    return "\n".join(lines) + "\n"


def _wrong(cells: dict[tuple[str, str], Any]) -> str:
    lines = [
        f"* {name}, {fault}: {'; '.join(cells[name, fault]['wrong'])}"
        for name, job in JOBS.items()
        for fault in job.faults
        if word(cells.get((name, fault))) == "wrong"
    ]
    return "\n".join(["## Wrong cells\n", *lines, ""]) if lines else ""


def _programs(cells: dict[tuple[str, str], Any]) -> str:
    lines = [
        "## The programs\n",
        "| program | | same parameters | other faults |",
        "|---|---|---|---|",
    ]
    for name, job in JOBS.items():
        tried = [cells[name, f] for f in job.faults if f != "none" and (name, f) in cells]
        same = f"{sum(bool(cell['same']) for cell in tried)} of {len(tried)}"
        lines.append(f"| {name} | {job.text} | {same} | {job.why or 'None.'} |")
    return "\n".join(lines) + "\n"


def _faults() -> str:
    lines = ["## The faults\n", "| fault | |", "|---|---|"]
    lines += [f"| {name} | {fault.text} |" for name, fault in FAULTS.items()]
    return "\n".join(lines) + "\n"
