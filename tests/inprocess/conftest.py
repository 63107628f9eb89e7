from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.inprocess.rank.fake_guard import FakeGuard
from undaunted.base import threads
from undaunted.inprocess.communication import c10d
from undaunted.inprocess.guard import start
from undaunted.inprocess.rank import guard_link

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_group_is_kept() -> Iterator[None]:
    """What a call that is over keeps until the next epoch."""
    yield
    c10d.release()
    threads.settle()


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGuard]:
    """What calls of wrapped functions in this process are connected to."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", start.VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    made = FakeGuard()
    made_guard = start.Guard(made.rank_end, os.getpid(), own=False)
    monkeypatch.setattr(start, "connect", lambda *_, **__: made_guard)
    guard_link.close()
    yield made
    guard_link.close()
    made.close()
