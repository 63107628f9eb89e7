"""The maps in docs/design name each module of agent, worker and output, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from undaunted import fault_tolerance

DESIGN = Path(__file__).parents[3] / "docs" / "design"


def rows(heading: str, page: str = "run.md") -> list[str]:
    text = (DESIGN / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")]


def modules(folder: str) -> list[str]:
    path = Path(fault_tolerance.__file__).parent / folder
    return [found.stem for found in path.glob("*.py") if found.stem != "__init__"]


def test_the_map_of_the_agent_is_complete() -> None:
    named = re.findall(r"`(\w+)`", "".join(row.split(" | ")[0] for row in rows("The agent")))
    assert sorted([*named, "agent"]) == sorted(modules("agent"))


def test_the_map_of_workers_is_complete() -> None:
    named = re.findall(r"`(\w+)`", "".join(rows("Workers and their output")))
    assert sorted(named) == sorted(modules("worker"))


def test_the_map_of_output_is_complete() -> None:
    named = re.findall(r"`(\w+)`", "".join(rows("Files", "output.md")))
    assert sorted(named) == sorted(modules("output"))
