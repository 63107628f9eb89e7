"""Our modules under NVIDIA's names are not what benchmarks compare with."""

from __future__ import annotations

import sys
from importlib import invalidate_caches
from typing import TYPE_CHECKING

import pytest

from benchmarks.nvidia import PACKAGE, has_nvrx

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(("files", "theirs"), [([], True), (["_installed.py"], False)])
def test_only_theirs_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], theirs: bool
) -> None:
    for name in ["__init__.py", *files]:
        path = tmp_path / PACKAGE / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.syspath_prepend(tmp_path)
    invalidate_caches()

    assert has_nvrx() is theirs
