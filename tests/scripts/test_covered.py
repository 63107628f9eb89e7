"""The table of `make coverage`, and its floors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from scripts import covered
from scripts.covered import FLOORS, Floor, Reached, below, by_package
from tests.test_layers import SRC

if TYPE_CHECKING:
    from pathlib import Path


def summary(*counts: int) -> dict[str, dict[str, int]]:
    names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
    return {"summary": dict(zip(names, counts, strict=True))}


REPORT = {
    "files": {
        "src/undaunted/journal/a.py": summary(9, 10, 1, 2),
        "/elsewhere/src/undaunted/journal/page/b.py": summary(1, 10, 0, 0),
        "src/undaunted/__init__.py": summary(5, 5, 0, 0),
    }
}


def test_files_are_summed_up_by_package() -> None:
    assert by_package(REPORT) == {
        "journal": Reached(10, 20, 1, 2),
        "undaunted": Reached(5, 5, 0, 0),
    }
    assert by_package(REPORT)["undaunted"].shares() == (100, 100), "no branches are all of them"


@pytest.mark.parametrize(
    ("floor", "about"),
    [(Floor(50, 50), []), (Floor(51, 50), ["lines"]), (Floor(60, 60), ["lines", "branches"])],
)
def test_a_package_below_its_floor_is_named(floor: Floor, about: list[str]) -> None:
    problems = list(below(by_package(REPORT), {"journal": floor, "not measured": floor}))
    assert [line.split()[4] for line in problems] == about
    assert all(line.startswith("journal: 50.0 %") for line in problems)


@pytest.mark.parametrize(("names", "code"), [([], 1), (["journal"], 1), (["undaunted"], 0)])
def test_only_packages_that_were_named_count(
    names: list[str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "report").write_text(json.dumps(REPORT))
    monkeypatch.setattr(covered, "REPORT", tmp_path / "report")
    monkeypatch.setattr(covered, "FLOORS", {"journal": Floor(99, 99)})
    assert covered.main(names) == code
    printed = capsys.readouterr().out
    assert ("| journal | 20 | 50.0 % | 2 | 50.0 % |" in printed) == (names != ["undaunted"])


def test_there_are_such_packages() -> None:
    assert FLOORS
    for name in FLOORS:
        assert (SRC / "undaunted" / name).is_dir(), name
