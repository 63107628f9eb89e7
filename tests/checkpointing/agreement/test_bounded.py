from __future__ import annotations

import threading

import pytest

from undaunted.checkpointing.agreement.bounded import AbortedError, Bounded, TimedOutError

LONG_S = 60.0


def test_results_and_errors_are_handed_on() -> None:
    bounded = Bounded(lambda: None)
    assert bounded.call(lambda: 7, LONG_S) == 7

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        bounded.call(fail, LONG_S)
    assert bounded.call(lambda: 8, LONG_S) == 8


def test_a_call_that_hangs_is_interrupted() -> None:
    interrupted, ended = threading.Event(), threading.Event()

    def hang() -> None:
        interrupted.wait(LONG_S)
        ended.set()

    with pytest.raises(TimedOutError, match=r"within 0\.05 s"):
        Bounded(interrupted.set).call(hang, 0.05)
    assert ended.wait(LONG_S)


def test_abort_from_another_thread() -> None:
    interrupted, begun, ended = threading.Event(), threading.Event(), threading.Event()
    bounded = Bounded(interrupted.set)

    def hang() -> None:
        begun.set()
        interrupted.wait(LONG_S)
        ended.set()

    def abort() -> None:
        assert begun.wait(LONG_S)
        bounded.abort()

    thread = threading.Thread(target=abort)
    thread.start()
    with pytest.raises(AbortedError):
        bounded.call(hang, LONG_S)
    thread.join()
    assert ended.wait(LONG_S)
    with pytest.raises(AbortedError):
        bounded.call(lambda: 7, LONG_S)
