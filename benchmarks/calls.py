"""What single calls cost: the programs that measure calls inside one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.launchers import source_path

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAMS = {"heartbeat": "heartbeat.py", "event": "event.py", "journal": "journal.py"}
DEADLINE_S = 300.0


def measure(name: str) -> dict[str, dict[str, float]]:
    """Run one of `PROGRAMS`; return call -> figure -> microseconds.

    Raises:
        subprocess.SubprocessError: it failed or took longer than `DEADLINE_S`.
    """
    script = Path(__file__).resolve().with_name(PROGRAMS[name])
    output = subprocess.run(
        [sys.executable, str(script), "--json"],
        env={"PYTHONPATH": source_path()},
        stdout=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=True,
    ).stdout
    results: dict[str, dict[str, float]] = json.loads(output)
    return results


def table(name: str, results: Mapping[str, Mapping[str, float]]) -> str:
    """Return a markdown table with one line per call."""
    figures = list(next(iter(results.values())))
    rows = [[name, *(figure.replace("_us", ", us") for figure in figures)]]
    rows += [[call, *(f"{one[figure]:.3g}" for figure in figures)] for call, one in results.items()]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join(lines)
