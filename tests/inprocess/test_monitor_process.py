"""The guard as a rank sees it. That it is the right one is shown in the tests of guard.start."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests.inprocess.rank.calls import call
from undaunted.base import process
from undaunted.inprocess.monitor_process import MonitorProcess
from undaunted.inprocess.wrap import CallWrapper  # noqa: TC001 - looked up at run time

if TYPE_CHECKING:
    import pytest

    from tests.inprocess.rank.fake_guard import FakeGuard


def test_the_function_sees_its_guard(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> MonitorProcess:
        return wrapper.monitor_process

    seen = call(train, None)
    assert seen.pid == os.getpid()  # where the fake guard is a thread
    assert seen.is_alive()


def test_a_guard_that_has_ended() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        guard = MonitorProcess(child.pid)
        assert guard.is_alive()
    assert not guard.is_alive()
    assert not MonitorProcess(child.pid).is_alive()


def test_another_process_that_got_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = MonitorProcess(os.getpid())
    known = process.read_stat(os.getpid())
    assert known is not None
    later = known._replace(start_time=known.start_time + 1)
    monkeypatch.setattr(process, "read_stat", lambda pid: later)
    assert not guard.is_alive()
