from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from undaunted.inprocess.exception import TimeoutError as TookTooLong
from undaunted.inprocess.finalize import Finalize, ThreadedFinalize
from undaunted.inprocess.state import FrozenState

STATE = FrozenState(rank=0, world_size=1)
DEADLINE = timedelta(seconds=60)


def test_the_function_is_called() -> None:
    calls = []
    finalize = ThreadedFinalize(DEADLINE, lambda *a, **k: calls.append((a, k)), (1,), {"b": 2})
    assert isinstance(finalize, Finalize)
    assert finalize(STATE) is finalize(STATE) is STATE
    assert calls == [((1,), {"b": 2})] * 2


def test_its_errors_are_seen() -> None:
    with pytest.raises(ZeroDivisionError):
        ThreadedFinalize(DEADLINE, lambda: 1 / 0)(STATE)


def test_it_may_not_hang() -> None:
    over, ended = threading.Event(), threading.Event()

    def hang() -> None:
        over.wait(60)
        ended.set()

    with pytest.raises(TookTooLong, match=r"finalize .*hang has taken longer"):
        ThreadedFinalize(timedelta(milliseconds=10), hang)(STATE)
    over.set()
    assert ended.wait(60)
