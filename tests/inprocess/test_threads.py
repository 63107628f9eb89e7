from __future__ import annotations

import gc
import subprocess
import sys
import threading
import types
import weakref
from datetime import timedelta

import pytest

from undaunted.inprocess import threads
from undaunted.inprocess.exception import RestartAbort
from undaunted.inprocess.exception import TimeoutError as TookTooLong
from undaunted.inprocess.threads import call_within

PROGRAM = """
import os, threading
from undaunted.inprocess import threads
threads.start(lambda: (threading.Event().wait(0.05), os.write(1, b"done")), "test")
"""


def test_it_is_a_daemon_with_a_name() -> None:
    ended = threading.Event()
    thread = threads.start(lambda: ended.wait(20), "test")
    assert thread.name == "undaunted-test"
    assert thread.daemon
    threads.settle(0.01)
    assert thread.is_alive()
    ended.set()
    threads.settle(20)
    assert not thread.is_alive()


def test_the_end_of_the_process_waits_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    assert done.stdout == b"done"


DEADLINE = timedelta(seconds=60)


def test_result() -> None:
    assert call_within(DEADLINE, lambda: 3, "three") == 3


@pytest.mark.parametrize("error", [ValueError("bad"), RestartAbort("end")])
def test_errors_are_those_of_the_function(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        call_within(DEADLINE, fail, "fail")
    assert caught.value is error


def test_too_long() -> None:
    over, ended = threading.Event(), threading.Event()

    def hang() -> None:
        over.wait(60)
        ended.set()

    with pytest.raises(TookTooLong, match=r"cleaning has taken longer than 0:00:00.01"):
        call_within(timedelta(milliseconds=10), hang, "cleaning")
    over.set()
    assert ended.wait(60)


def test_errors_are_not_kept() -> None:
    class Large:
        pass

    def fail() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        raise ValueError(large)

    kept: list[weakref.ref[Large]] = []
    gc.disable()
    try:
        with pytest.raises(ValueError, match="Large"):
            call_within(DEADLINE, fail, "fail")
        assert kept[0]() is None
    finally:
        gc.enable()


def test_the_device_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[int] = []
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 5,
        set_device=devices.append,
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    call_within(DEADLINE, lambda: None, "nothing")
    assert devices == [5]
