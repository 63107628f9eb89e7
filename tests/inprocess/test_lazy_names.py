"""Names of the package that are elsewhere now."""

from __future__ import annotations

import importlib.util

import pytest

from undaunted import inprocess


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("monitor_thread", "undaunted.inprocess.exception"),
        ("rank_filter", "nvidia_resiliency_ext.inprocess.rank_filter"),
        ("store", "nvidia_resiliency_ext.inprocess.store"),
        ("sibling_monitor", "nvidia_resiliency_ext.inprocess.sibling_monitor"),
        ("tools", "undaunted.shared_utils.inject_fault"),
    ],
)
def test_a_name_that_has_moved(name: str, place: str) -> None:
    with pytest.raises(ImportError, match=place):
        getattr(inprocess, name)
    assert importlib.util.find_spec(place) is not None
