"""The map of the agent in docs/design/run.md names each of its modules, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from undaunted.fault_tolerance import agent

DESIGN = Path(__file__).parents[3] / "docs" / "design" / "run.md"


def test_the_map_is_complete() -> None:
    section = DESIGN.read_text(encoding="utf-8").split("\n## The agent\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    there = [path.stem for path in Path(agent.__file__).parent.rglob("*.py")]
    assert sorted(named) == sorted(name for name in there if name not in ("__init__", "agent"))


def test_the_map_names_the_folder_of_each_module() -> None:
    folder = Path(agent.__file__).parent
    for line in DESIGN.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\| (\w+)/ \|", line):
            named = re.findall(r"`(\w+)`", line)
            there = {path.stem for path in (folder / found[1]).glob("*.py")} - {"__init__"}
            assert sorted(named) == sorted(there), found[1]
