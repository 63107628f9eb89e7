from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from undaunted.shared_utils import inject_fault as module
from undaunted.shared_utils.inject_fault import (
    Fault,
    InjectedException,
    clear_workload_exception,
    dispatch_fault_injection,
    inject_fault,
    maybe_raise_workload_exception,
    register_fault,
)

DEADLINE_S = 60


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_registered", {})


def chosen(monkeypatch: pytest.MonkeyPatch, world_size: int, **how: Any) -> dict[int, Any]:
    """What each rank of a job gets."""
    found: dict[int, Any] = {}
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    for rank in range(world_size):
        monkeypatch.setenv("RANK", str(rank))
        for name in ("a", "b"):
            register_fault(name, lambda *how, r=rank, n=name: found.update({r: (n, *how)}))
        inject_fault(**{"faults": ("a", "b"), "keep_alive": 0, "delay": 1.0, "seed": 1, **how})
    return found


def test_as_many_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, 8, num_faults=3, keep_alive=2, callback=print)
    assert len(found) == 3
    assert min(found) >= 2
    assert {(delay, callback) for _, delay, callback in found.values()} == {(1.0, print)}


def test_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, 32, num_faults=(20, 30), delay=(1.0, 2.0))
    assert 20 <= len(found) <= 30
    assert {name for name, _, _ in found.values()} == {"a", "b"}
    delays = {delay for _, delay, _ in found.values()}
    assert len(delays) > 1
    assert all(1 <= delay <= 2 for delay in delays)


def test_not_more_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(chosen(monkeypatch, 3, num_faults=9, keep_alive=1)) == {1, 2}
    assert chosen(monkeypatch, 2, num_faults=1, keep_alive=5) == {}


def test_the_seed_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [chosen(monkeypatch, 64, num_faults=4, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_inactive_ranks_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "None")
    monkeypatch.setenv("WORLD_SIZE", "None")
    register_fault("a", pytest.fail)
    inject_fault(("a",), 1, 0, 0.0, 1)


def test_nothing_to_pick_from() -> None:
    with pytest.raises(ValueError, match="faults is empty"):
        inject_fault((), 1, 0, 0.0, 1)


def test_an_unknown_fault_is_named() -> None:
    register_fault("MINE", print)
    with pytest.raises(ValueError, match=r"'OTHER' is not a fault; known: GPU_ERROR, .*MINE"):
        dispatch_fault_injection("OTHER", 0.0)


def test_a_registered_one_takes_the_place_of_ours() -> None:
    calls: list[Any] = []
    register_fault(Fault.SIGKILL, lambda delay, callback: calls.append((delay, callback)))
    dispatch_fault_injection(Fault.SIGKILL, 0.5, print)
    assert calls == [(0.5, print)]


def join(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(DEADLINE_S)


def test_workload_exception() -> None:
    told = threading.Event()
    dispatch_fault_injection(Fault.WORKLOAD_EXC, 0.0, told.set)
    assert told.wait(DEADLINE_S)
    join("inject-Fault.WORKLOAD_EXC")
    with pytest.raises(InjectedException):
        maybe_raise_workload_exception()
    clear_workload_exception()
    maybe_raise_workload_exception()


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (Fault.ASYNC_EXC, 1, "injected fault: ASYNC_EXC"),
        (Fault.SIGNAL_EXC, 1, "injected fault: SIGNAL_EXC"),
        (Fault.SIGINT, -signal.SIGINT, "KeyboardInterrupt"),
        (Fault.SIGTERM, -signal.SIGTERM, ""),
        (Fault.SIGKILL, -signal.SIGKILL, ""),
        (Fault.SEGFAULT, -signal.SIGSEGV, ""),
        (Fault.OS_ABORT, -signal.SIGABRT, ""),
    ],
)
def test_how_the_process_ends(fault: Fault, code: int, said: str) -> None:
    waiting = "while True: pass" if fault is Fault.ASYNC_EXC else "time.sleep(60)"
    program = (
        "import time\n"
        "from undaunted.shared_utils.inject_fault import Fault, inject_fault\n"
        f"inject_fault((Fault.{fault.name},), 1, 0, 0.0, 1)\n"
        f"{waiting}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=DEADLINE_S, capture_output=True, text=True
    )
    assert ended.returncode == code
    assert said in ended.stderr
