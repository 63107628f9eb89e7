"""Logs in the forms that public reports show, and what a careful reader says of them.

Each case: `log`, or `logs` by name of the file; `cause` (null: no failure), and what else must be
right: `ranks`, `nodes`, whether the root has a time (`dated`), a text of the line that is quoted.
`{steps N}` stands for steps of N ranks, `{steps}` for some of nobody in particular.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from undaunted.attribution.logs.analyse import read_folder

if TYPE_CHECKING:
    from undaunted.attribution.findings import Finding

CASES: list[dict[str, Any]] = msgspec.yaml.decode(
    Path(__file__).with_name("reported.yaml").read_text()
)


def _steps(found: re.Match[str]) -> str:
    ranks = [f"[rank{rank}]: " for rank in range(int(found[1]))] if found[1] else [""]
    lines = [f"{rank}step {step} loss 1.9 lr 0.02" for step in (41, 42) for rank in ranks]
    return "\n".join(lines)


def _root(case: dict[str, Any], folder: Path) -> Finding | None:
    for name, text in (case.get("logs") or {"job.log": case["log"]}).items():
        (folder / name).write_text(re.sub(r"\{steps ?(\d*)\}", _steps, text))
    findings = read_folder(sorted(folder.iterdir())).findings
    return findings[0] if findings else None


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_the_root_cause(case: dict[str, Any], tmp_path: Path) -> None:
    root = _root(case, tmp_path)
    assert (root and root.cause) == case["cause"]
    if root is None:
        return
    for key in ("ranks", "nodes"):
        if key in case:
            assert list(getattr(root, key)) == case[key]
    if "dated" in case:
        assert (root.t > 0) == case["dated"]
    assert str(case.get("quote", "")) in root.quote
    assert ("perhaps" in case) <= (root.confidence < 0.5)
