"""Names of the package: that they are there, and that asking for one does not bring all."""

from __future__ import annotations

import pytest

from undaunted import inprocess
from undaunted.inprocess import rank_assignment, tools


def test_every_name_of_rank_assignment() -> None:
    for name in rank_assignment.__all__:
        assert getattr(rank_assignment, name).__name__ == name


@pytest.mark.parametrize("package", [inprocess, rank_assignment, tools])
def test_a_name_that_does_not_exist(package: object) -> None:
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = package.nothing  # type: ignore[attr-defined]


def test_older_place_of_fault_injection() -> None:
    from undaunted.shared_utils import inject_fault

    assert tools.inject_fault.Fault is inject_fault.Fault
