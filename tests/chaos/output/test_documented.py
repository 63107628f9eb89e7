"""What programs and users write or read is documented: keys of JSON and findings, kinds."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from undaunted.chaos.checker.values import Blame, Defect, Difference, Judgement
from undaunted.chaos.kinds import KINDS
from undaunted.chaos.plan import Planned
from undaunted.chaos.result import Moment, Result, RoundOf, RunOf

if TYPE_CHECKING:
    from collections.abc import Iterator

    import msgspec

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "chaos.md").read_text(encoding="utf-8")
CHECKER = ROOT / "src" / "undaunted" / "chaos" / "checker"


@pytest.mark.parametrize(
    "kind", [Result, RunOf, RoundOf, Moment, Judgement, Planned, Blame, Difference, Defect]
)
def test_keys_of_the_json_are_documented(kind: type[msgspec.Struct]) -> None:
    section = PAGE.partition("\n## JSON\n")[2].partition("\n## ")[0]

    missing = [name for name in kind.__struct_fields__ if f"`{name}`" not in section]

    assert missing == []


def test_kinds_of_faults_are_documented_and_exist() -> None:
    assert list_of("\n## Kinds of faults\n", "| kind |") == set(KINDS)


def test_ways_of_bad_checkpoints_are_documented_and_exist() -> None:
    assert list_of("\n### Bad checkpoints\n", "| way |") == set(KINDS["bad-checkpoint"].hows)


def list_of(heading: str, columns: str) -> set[str]:
    """Return the names in the first column of a table below a heading."""
    table = PAGE.partition(heading)[2].partition(columns)[2].partition("\n\n")[0]
    return set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE))


def test_keys_of_findings_are_documented_and_exist() -> None:
    section = PAGE.partition("\n## Findings\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = {key for row in rows for key in re.findall(r"`([a-z-]+)`", row)}

    assert documented == set(keys_of_findings())


def keys_of_findings() -> Iterator[str]:
    for path in CHECKER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Defect":
                yield from strings(node.args[0])
            named = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "key"
            if named:
                yield from strings(node.value)  # type: ignore[attr-defined]


def strings(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
