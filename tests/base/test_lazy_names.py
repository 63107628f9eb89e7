"""Packages that import their names when they are first used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from tests.test_layers import modules

PACKAGES = [
    name
    for name, path in modules().items()
    if path.name == "__init__.py" and "\n__all__ = " in path.read_text("utf-8")
]
NAMES = [
    (package, name) for package in PACKAGES for name in importlib.import_module(package).__all__
]


@pytest.mark.torch
@pytest.mark.parametrize(("package", "name"), NAMES)
def test_every_public_name_can_be_imported(package: str, name: str) -> None:
    pytest.importorskip("torch")
    value = getattr(importlib.import_module(package), name)
    assert getattr(value, "__name__", name).rpartition(".")[2] == name


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_does_not_exist(package: str) -> None:
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'nothing'"):
        _ = importlib.import_module(package).nothing


def test_nothing_is_imported_before_it_is_used() -> None:
    code = f"import sys, {', '.join(PACKAGES)}; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    imported = {name for name in done.stdout.split() if name.startswith("undaunted")}
    parents = {one.rpartition(".")[0] for one in PACKAGES} - {""}
    assert imported == {*PACKAGES, *parents, "undaunted.base", "undaunted.base.lazy_names"}
