from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from undaunted.inprocess.core.reading import Phase
from undaunted.inprocess.monitor_process import MonitorProcess
from undaunted.inprocess.rank.guard_link import LostGuard, StoppedGuard
from undaunted.inprocess.rank.page import Page

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page()
    made.set_phase(Phase.RUNNING)
    yield made
    made.close()


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *what: signals.append(what))
    return signals


def test_it_is_killed_when_its_time_is_over(
    page: Page, killed: list[tuple[int, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    alone = LostGuard(page, 0.0)
    alone.end_if_due()
    assert not killed
    alone.begin()
    alone.end_if_due()
    assert killed == [(os.getpid(), signal.SIGKILL)]
    assert "has not left the call 0 s after its guard has ended" in capfd.readouterr().err


def test_not_before(page: Page, killed: list[tuple[int, int]]) -> None:
    alone = LostGuard(page, 60.0)
    alone.begin()
    alone.end_if_due()
    assert not killed


def test_one_that_has_left_may_take_its_time(page: Page, killed: list[tuple[int, int]]) -> None:
    alone = LostGuard(page, 0.0)
    alone.begin()
    page.set_phase(Phase.OUTSIDE)
    alone.end_if_due()
    assert not killed


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as made:
        yield made
        made.kill()


def test_a_guard_that_stays_stopped_is_killed(
    child: subprocess.Popen[bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    watch = StoppedGuard(MonitorProcess(child.pid), looks=3)
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    for _ in range(3):
        watch.look()
    assert child.poll() is None
    watch.look()
    assert child.wait() == -signal.SIGKILL
    watch.look()
    assert f"its guard (process {child.pid}) was stopped" in capfd.readouterr().err


def test_a_guard_that_goes_on_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    watch = StoppedGuard(MonitorProcess(child.pid), looks=1)
    for _ in range(3):
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        watch.look()
        os.kill(child.pid, signal.SIGCONT)
        os.waitpid(child.pid, os.WCONTINUED)
        watch.look()
    assert child.poll() is None


def test_the_agent_is_not_ours_to_kill() -> None:
    StoppedGuard(None, looks=0).look()
