"""Functions one after the other, on a thread that is there only while there is work."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.checkpointing.async_ckpt import runner as runner_module
from undaunted.checkpointing.async_ckpt.runner import Runner
from undaunted.checkpointing.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 30.0


@pytest.fixture
def runner() -> Iterator[Runner]:
    made = Runner()
    yield made
    assert made.join(DEADLINE_S)


class Stays:
    """A function that runs until it is let go; it can be cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.free = threading.Event()
        self.cancelled = 0

    def __call__(self) -> None:
        self.begun.set()
        assert self.free.wait(DEADLINE_S)

    def cancel(self) -> None:
        self.cancelled += 1
        self.free.set()


def test_functions_run_in_their_order(runner: Runner) -> None:
    seen: list[int] = []
    calls = [runner.submit(lambda n=n: seen.append(n), DEADLINE_S) for n in range(5)]  # type: ignore[misc]
    assert all(call.wait(DEADLINE_S) for call in calls)
    assert seen == [0, 1, 2, 3, 4]


def test_an_error_is_kept_and_the_next_function_runs(runner: Runner) -> None:
    def fails() -> None:
        raise OSError(28, "No space left on device", "/x")

    bad, good = runner.submit(fails, DEADLINE_S), runner.submit(lambda: None, DEADLINE_S)
    assert good.wait(DEADLINE_S)
    assert isinstance(bad.error, OSError)
    assert good.error is None


def test_the_thread_ends_when_nothing_is_left(runner: Runner) -> None:
    before = threading.active_count()
    runner.submit(lambda: None, DEADLINE_S)
    assert runner.join(DEADLINE_S)
    assert threading.active_count() <= before + 1  # it may be ending
    assert runner.submit(lambda: None, DEADLINE_S).wait(DEADLINE_S)


def test_a_full_queue_makes_the_next_one_wait(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "WAITING_AT_MOST", 1)
    stays = Stays()
    runner.submit(stays, DEADLINE_S)
    assert stays.begun.wait(DEADLINE_S)
    runner.submit(lambda: None, DEADLINE_S)
    with pytest.raises(SaveError, match="1 saves wait to be written"):
        runner.submit(lambda: None, 0.01)
    stays.free.set()
    assert runner.submit(lambda: None, DEADLINE_S).wait(DEADLINE_S)


def test_what_is_abandoned_has_failed_at_once_and_is_cancelled(runner: Runner) -> None:
    stays, never = Stays(), Stays()
    running = runner.submit(stays, DEADLINE_S)
    assert stays.begun.wait(DEADLINE_S)
    waiting = runner.submit(never, DEADLINE_S)
    assert runner.abandon("it was aborted") == 2
    assert str(running.error) == str(waiting.error) == "it was aborted"
    assert (stays.cancelled, never.cancelled) == (1, 1)
    assert not never.begun.is_set()


def test_the_interpreter_ends_though_a_function_does_not() -> None:
    code = """
import threading
from undaunted.checkpointing.async_ckpt import runner
runner.EXIT_GRACE_S = 0.1
begun = threading.Event()
def forever():
    begun.set()
    threading.Event().wait()
kept = runner.Runner()
kept.submit(forever, 30)
kept.submit(print, 30)
begun.wait(30)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout + ended.stderr == ""
