from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from undaunted.faults import calling, gradients
from undaunted.faults.injectors import InjectedError
from undaunted.faults.plan import FaultPlan, FaultPlanError
from undaunted.faults.trigger import Trigger, install
from undaunted.progress import writer

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 30


class Reports(list[tuple[str, str]]):
    def __call__(self, name: str, text: str) -> None:
        self.append((name, text))


def trigger(plan: str, reports: Reports) -> Trigger:
    return Trigger(FaultPlan.parse(plan).due(rank=0, round_=0, world_size=1), reports)


@pytest.fixture
def hook() -> Iterator[None]:
    yield
    writer.on_step = None


def test_fires_at_its_iteration_once() -> None:
    reports = Reports()
    faults = trigger("exception:rank=0,iteration=3", reports)
    faults.start()
    faults.on_step(2)
    with pytest.raises(InjectedError):
        faults.on_step(3)
    faults.on_step(3)
    assert reports == [("fault", "exception-1")]


def test_fires_when_the_iteration_is_passed_but_not_when_resumed_beyond() -> None:
    faults = trigger("exception:rank=0,iteration=35", Reports())
    faults.on_step(30)
    with pytest.raises(InjectedError):
        faults.on_step(40)
    beyond = trigger("exception:rank=0,iteration=35", Reports())
    for iteration in range(36, 50):
        beyond.on_step(iteration)


def test_fires_at_the_start_without_iteration_and_time() -> None:
    reports = Reports()
    with pytest.raises(InjectedError):
        trigger("exception:rank=0", reports).start()
    assert reports == [("fault", "exception-1")]


def test_a_timed_exception_reaches_the_main_thread_in_a_wait() -> None:
    faults = trigger("exception:rank=0,after=0.01", Reports())
    old = signal.getsignal(signal.SIGRTMIN + 8)

    def start_and_wait() -> None:
        faults.start()  # it may come before this returns
        threading.Event().wait(DEADLINE_S)

    try:
        with pytest.raises(InjectedError):
            start_and_wait()
    finally:
        faults.close()
    assert signal.getsignal(signal.SIGRTMIN + 8) == old


def test_a_timed_kill_needs_no_main_thread() -> None:
    code = """
import ctypes
from undaunted.faults.plan import FaultPlan
from undaunted.faults.trigger import Trigger
Trigger(FaultPlan.parse("sigkill:rank=0,after=0.01").due(rank=0, round_=0, world_size=1),
        lambda name, text: print(name, text, flush=True)).start()
ctypes.CDLL(None).sleep(30)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=DEADLINE_S, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == "fault sigkill-1\n"


def test_close_before_its_time() -> None:
    reports = Reports()
    faults = trigger("sigkill:rank=0,after=1000;exception:rank=0,iteration=1", reports)
    faults.start()
    faults.close()
    faults.on_step(1)
    assert reports == []


def test_a_forked_child_is_spared() -> None:
    faults = trigger("exception:rank=0,iteration=1", Reports())
    faults._pid = os.getppid()
    faults.on_step(1)


def test_slow_pauses_in_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    reports = Reports()
    faults = trigger("slow:rank=0,iteration=3,steps=2,seconds=0.5;slow:rank=0,iteration=4", reports)
    seen = []
    for iteration in range(2, 20):
        faults.on_step(iteration)
        seen.append(len(pauses))
    assert seen[:4] == [0, 1, 3, 4]
    assert pauses == [0.5, 0.5, *[0.2] * 10]
    assert reports == [("fault", "slow-1"), ("fault", "slow-2")]


def test_faults_of_one_iteration_happen_in_the_order_of_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        calling, "call", lambda fault, rank, iteration: calls.append((fault, rank, iteration))
    )
    reports = Reports()
    plan = "call:rank=2,iteration=3,id=b;exception:rank=2,iteration=3,id=a"
    due = FaultPlan.parse(plan).due(rank=2, round_=0, world_size=3)
    with pytest.raises(InjectedError):
        Trigger(due, reports, rank=2).on_step(3)
    assert calls == [("b", 2, 3)]
    assert reports == [("fault", "b"), ("fault", "a")]


@pytest.mark.usefixtures("hook")
def test_slow_from_the_start_needs_the_steps() -> None:
    assert install({"UNDAUNTED_FAULTS": "slow:rank=0,seconds=0"}) is not None
    assert writer.on_step is not None


@pytest.mark.usefixtures("hook")
def test_install_hooks_the_steps_of_the_right_rank_and_round() -> None:
    environ = {
        "UNDAUNTED_FAULTS": "exception:rank=2,iteration=1,round=1",
        "RANK": "2",
        "WORLD_SIZE": "4",
        "TORCHELASTIC_RESTART_COUNT": "1",
    }
    assert install({**environ, "RANK": "1"}) is None
    assert install({**environ, "TORCHELASTIC_RESTART_COUNT": "0"}) is None
    assert writer.on_step is None
    assert install(environ) is not None
    assert writer.on_step is not None
    with pytest.raises(InjectedError):
        writer.on_step(1)


@pytest.mark.parametrize("environ", [{}, {"UNDAUNTED_FAULTS": ""}])
def test_install_without_a_plan(environ: dict[str, str]) -> None:
    assert install(environ) is None
    assert writer.on_step is None


def test_install_refuses_a_bad_plan() -> None:
    with pytest.raises(FaultPlanError, match="typo"):
        install({"UNDAUNTED_FAULTS": "typo:rank=0"})


def test_the_event_survives_the_death_of_the_process() -> None:
    """End to end with a real page: the launcher side reads it after a SIGKILL."""
    area_module = pytest.importorskip("undaunted.progress.area")
    area = area_module.PageArea.create(1)
    try:
        code = """
from undaunted.faults.trigger import install
install()
import undaunted
for iteration in range(10):
    undaunted.step(iteration)
"""
        env = {
            **os.environ,
            "UNDAUNTED_PAGE": area.env_value(0),
            "UNDAUNTED_FAULTS": "sigkill:rank=0,iteration=4",
            "RANK": "0",
        }
        child = subprocess.Popen([sys.executable, "-c", code], env=env, pass_fds=area.fds())
        assert child.wait(DEADLINE_S) == -signal.SIGKILL
        events, lost = area.drain_events(0)
        assert [(event.name, event.text) for event in events] == [("fault", "sigkill-1")]
        assert lost == 0
        assert area.snapshot(0).iteration == 4
    finally:
        area.close()


def test_a_slot_that_computes_wrong_does_so_after_resuming_beyond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[bool] = []
    monkeypatch.setattr(gradients, "flip_a_bit", lambda *, always: made.append(always))
    faults = trigger("wrong-result-always:rank=0,iteration=35", Reports())
    for iteration in range(36, 40):
        faults.on_step(iteration)
    assert made == [True]
