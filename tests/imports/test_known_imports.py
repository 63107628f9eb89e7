"""The table of packages that templates import ahead of the ranks, held against real packages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.imports.compare import compare
from tests.imports.programs import PROGRAMS
from undaunted.fault_tolerance.worker import known_imports
from undaunted.fault_tolerance.worker.known_imports import RankValue, set_rank_values, unlisted


@pytest.mark.timeout(900)  # as often as it takes, and each import takes long on a busy machine
@pytest.mark.integration
@pytest.mark.parametrize("environment", PROGRAMS)
def test_packages_of_programs_can_be_imported_ahead_of_the_ranks(environment: str) -> None:
    if Path(sys.prefix).name != environment:
        pytest.skip("these packages are in another environment")
    found = compare(PROGRAMS[environment])
    assert found.left == {}
    assert unlisted(found.packages) == {}


@pytest.mark.e2e
def test_packages_of_ours_can_be_imported_ahead_of_the_ranks() -> None:
    found = compare(["import undaunted.training, undaunted.checkpointing, undaunted.inprocess"])
    assert found.left == {}
    assert unlisted(found.packages) == {}


def test_packages_that_are_not_on_the_list() -> None:
    assert list(unlisted(["torch", "pmine", "pother"])) == ["pmine", "pother"]
    assert list(unlisted(["torch", "pmine", "pother"], ["pmine.models"])) == ["pother"]


def test_numbers_of_the_rank_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pack")
    exec("def function(): pass\nfunction.rank = LOCAL = TEXT = 0", module.__dict__)
    monkeypatch.setitem(sys.modules, "pack", module)
    values = (
        RankValue("pack", "function.rank", "RANK"),
        RankValue("pack", "LOCAL", "NOT_SET"),
        RankValue("pack", "TEXT", "NAME"),
        RankValue("pack", "gone", "RANK"),
        RankValue("pack", "gone.rank", "RANK"),
        RankValue("not_there", "X", "RANK"),
    )
    monkeypatch.setattr(known_imports, "RANK_VALUES", values)
    set_rank_values({"RANK": "7", "NAME": "n"})
    assert (module.function.rank, module.LOCAL, module.TEXT) == (7, 0, 0)
    assert not hasattr(module, "gone")
