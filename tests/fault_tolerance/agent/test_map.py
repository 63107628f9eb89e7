"""The map of the agent in docs/design/run.md names each of its modules, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from undaunted.fault_tolerance import agent

DESIGN = Path(__file__).parents[3] / "docs" / "design" / "run.md"


def test_the_map_is_complete() -> None:
    section = DESIGN.read_text(encoding="utf-8").split("\n## The agent\n")[1].split("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    there = [path.stem for path in Path(agent.__file__).parent.glob("*.py")]
    assert sorted(named) == sorted(name for name in there if name not in ("__init__", "agent"))
