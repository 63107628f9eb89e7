"""docs/inprocess-plugins.md names every plug-in there is."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/inprocess-plugins.md").read_text(encoding="utf-8")
MODULES = (
    "completion",
    "finalize",
    "health_check",
    "initialize",
    "nested_restarter",
    "rank_assignment",
    "terminate",
)


@pytest.mark.parametrize("name", MODULES)
def test_public_names(name: str) -> None:
    module = import_module(f"undaunted.inprocess.{name}")
    known = set(re.findall(r"\w+", PAGE))
    ours = getattr(module, "__all__", None) or [
        public
        for public, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and public[0] != "_"
    ]
    assert set(ours) - known == set()
