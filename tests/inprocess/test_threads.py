from __future__ import annotations

import gc
import sys
import threading
import types
import weakref
from datetime import timedelta

import pytest

from undaunted.inprocess.exception import RestartAbort
from undaunted.inprocess.exception import TimeoutError as TookTooLong
from undaunted.inprocess.threads import call_within

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
