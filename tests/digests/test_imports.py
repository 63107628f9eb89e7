"""Being called back after an import."""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING

import pytest

from undaunted.digests.imports import after_import

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "digests_example.py").write_text("ready = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "digests_example", raising=False)
    return "digests_example"


def test_at_once_if_it_is_imported() -> None:
    seen: list[str] = []
    after_import("json", lambda: seen.append(json.__name__))()
    assert seen == ["json"]


def test_after_the_import_when_everything_is_there(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(sys.meta_path)
    seen: list[bool] = []
    after_import(module, lambda: seen.append(sys.modules[module].ready))
    assert seen == []
    found = importlib.import_module(module)
    monkeypatch.delitem(sys.modules, module)
    assert seen == [True]
    assert sys.meta_path == before
    assert found.__spec__ is not None
    assert found.__loader__ is found.__spec__.loader
    assert "undaunted" not in type(found.__loader__).__module__
    importlib.import_module(module)
    assert seen == [True]


def test_a_module_that_is_not_there_is_not_there() -> None:
    forget = after_import("digests_absent", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("digests_absent")
    before = list(sys.meta_path)
    forget()
    assert len(sys.meta_path) == len(before) - 1
    forget()


def test_what_was_forgotten_is_not_called(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    after_import(module, lambda: seen.append(1))()
    importlib.import_module(module)
    monkeypatch.delitem(sys.modules, module)
    assert seen == []


def test_a_callback_that_raises_does_not_end_the_import(
    module: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    after_import(module, lambda: 1 / 0)
    assert importlib.import_module(module).ready
    monkeypatch.delitem(sys.modules, module)
    assert "digests_example cannot be watched: ZeroDivisionError" in capfd.readouterr().err
