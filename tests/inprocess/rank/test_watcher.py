from __future__ import annotations

import ctypes
import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from tests.inprocess.rank.calls import call
from undaunted.inprocess.rank.guard_link import StoppedGuard
from undaunted.inprocess.rank.watcher import Wake

if TYPE_CHECKING:
    from tests.inprocess.rank.fake_guard import FakeGuard

pytestmark = pytest.mark.torch

_libc = ctypes.CDLL(None)
_nothing = ctypes.cast(_libc.sched_yield, ctypes.c_void_p)  # gives 0
QUEUE = 32  # of pending calls, in CPython


def test_a_rank_that_stands_still_leaves_room_for_pending_calls_of_others(
    guard: FakeGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread waits in C, so that its interpreter does not turn; the watcher goes on."""
    added: list[int] = []
    looks = threading.Semaphore(0)
    monkeypatch.setattr(StoppedGuard, "look", lambda _: looks.release())
    begin, end = os.pipe()

    def add() -> None:
        for _ in range(2 * QUEUE):  # as often as the page is stamped
            if not looks.acquire(timeout=60):
                break
        else:
            added.append(ctypes.pythonapi.Py_AddPendingCall(_nothing, None))
        os.write(end, b"x")

    def train() -> None:
        thread = threading.Thread(target=add)
        thread.start()
        _libc.read(begin, ctypes.create_string_buffer(1), 1)
        thread.join()

    call(train, progress_watchdog_interval=timedelta(milliseconds=2))
    os.close(begin)
    os.close(end)
    assert added == [0]


def test_a_wake_that_comes_while_it_is_closed_writes_to_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wake = Wake()
    closing = threading.Thread(target=wake.close)
    kinds = []

    def write(fd: int, _: int) -> None:
        closing.start()
        closing.join(0.05)  # it has to wait
        kinds.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "eventfd_write", write)
    wake()
    closing.join()
    assert kinds == ["anon_inode:[eventfd]"]
    monkeypatch.undo()
    wake()
