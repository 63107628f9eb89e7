from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import pytest

import undaunted.faults
from undaunted.faults import FaultPlanError, InjectedError
from undaunted.faults.injectors import inject
from undaunted.progress import writer

DEADLINE_S = 30


def fate(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", f"from undaunted.faults.injectors import inject\n{code}"],
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("sigkill", -signal.SIGKILL),
        ("sigterm", -signal.SIGTERM),
        ("segfault", -signal.SIGSEGV),
        ("abort", -signal.SIGABRT),
        ("exception", 1),
        ("oom", 1),
        ("exit", 1),
    ],
)
def test_how_the_process_ends(kind: str, code: int) -> None:
    assert fate(f"inject({kind!r})").returncode == code


def test_exit_code() -> None:
    assert fate("inject('exit', code=42)").returncode == 42


def test_sigstop_stops_and_goes_on() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "from undaunted.faults import inject; inject('sigstop')"]
    )
    try:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert status & 0xFF == 0x7F  # stopped
        child.send_signal(signal.SIGCONT)
        assert child.wait(DEADLINE_S) == 0
    finally:
        child.kill()
        child.wait()


def test_exception() -> None:
    with pytest.raises(InjectedError, match="injected"):
        inject("exception")


def test_memory_exhaustion_is_a_real_memory_error_and_leaves_the_limit_as_it_was() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MemoryError) as caught:
        inject("oom")
    assert str(caught.value) == ""  # Python's own, not ours
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib < 64 << 10


def test_sleep_ends_after_its_seconds() -> None:
    began = time.monotonic()
    inject("sleep", seconds=0.01)
    assert time.monotonic() - began >= 0.01


def test_gil_is_held_for_its_seconds_also_when_signals_arrive() -> None:
    """A thread that counts makes no step while the lock is held."""
    done = fate(
        """
import faulthandler, os, select, signal, threading, time
faulthandler.register(signal.SIGRTMIN + 7, all_threads=True, chain=False)
count = 0
counting = threading.Event()
def run():
    global count
    while True:
        count += 1
        counting.set()
threading.Thread(target=run, daemon=True).start()
counting.wait()
# Signals come from outside, also while the lock is held, until this end of the pipe is closed.
ended, end = os.pipe()
if (child := os.fork()) == 0:
    os.close(end)
    while not select.select([ended], [], [], 0.02)[0]:
        os.kill(os.getppid(), signal.SIGRTMIN + 7)
    os._exit(0)
start, before = time.monotonic(), count
inject("gil", seconds=0.2)
after, took = count, time.monotonic() - start
os.close(end)
os.waitpid(child, 0)
print(took >= 0.19, after - before < 200_000)
"""
    )
    assert done.stdout.split() == ["True", "True"], done
    assert "in _hold_gil" in done.stderr


def test_unknown_kind() -> None:
    with pytest.raises(FaultPlanError, match="did you mean 'sleep'"):
        inject("sleeep")  # type: ignore[arg-type]


def test_the_function_is_offered_by_the_package() -> None:
    assert undaunted.faults.inject is inject
    with pytest.raises(AttributeError, match="nothing"):
        _ = undaunted.faults.nothing


@pytest.mark.parametrize(("asks", "wanted"), [(True, ["deadline"]), (False, [])])
def test_the_end_of_the_time_is_told_to_ranks_that_ask(
    asks: bool, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    page = writer.NullWriter("a test")
    monkeypatch.setattr(writer, "current", page)
    monkeypatch.setattr(page, "want_stop", found.append)
    if asks:
        page.will_ask()
    inject("deadline")
    page.asks_no_more()
    inject("deadline")
    assert found == wanted
