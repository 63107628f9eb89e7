"""Which attempts at a folder can no longer become a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.checkpointing.async_ckpt import attempts as module
from undaunted.checkpointing.async_ckpt.attempts import Attempts

if TYPE_CHECKING:
    import pytest


class Owner:
    pass


def test_files_are_dropped_with_their_owner_and_told_once() -> None:
    attempts, owner = Attempts(), Owner()
    attempts.add("/c", owner, ["a", "b"])
    assert attempts.has("/c")
    assert attempts.take_dropped("/c") == []
    del owner
    assert attempts.take_dropped("/d") == []
    assert attempts.take_dropped("/c") == ["a", "b"]
    assert attempts.take_dropped("/c") == []
    assert attempts.has("/c")


def test_what_may_be_committed_is_never_dropped() -> None:
    attempts, owner = Attempts(), Owner()
    attempts.add("/c", owner, ["a"]).may_be_committed = True
    del owner
    assert attempts.take_dropped("/c") == []


def test_few_folders_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FOLDERS_KEPT", 2)
    attempts, owner = Attempts(), Owner()
    for folder in "abc":
        attempts.add(folder, owner, [])
    assert [attempts.has(folder) for folder in "abc"] == [False, True, True]
