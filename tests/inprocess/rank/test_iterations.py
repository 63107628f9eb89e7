from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.inprocess.rank.calls import call
from undaunted.inprocess.call import CallWrapper
from undaunted.inprocess.core.messages import Completed, Enter, Fault, Join

if TYPE_CHECKING:
    from tests.inprocess.rank.fake_guard import FakeGuard


def test_a_function_that_returns(guard: FakeGuard) -> None:
    assert call(lambda: 5) == 5
    assert [type(message) for message in guard.said()] == [Enter, Join, Completed]


def test_a_function_that_raises_is_called_again(guard: FakeGuard) -> None:
    seen = []

    def train(wrapper: CallWrapper) -> int:
        seen.append(wrapper.iteration)
        if wrapper.iteration < 2:
            raise RuntimeError(f"fault {wrapper.iteration}")
        return wrapper.iteration

    assert call(train, None) == 2
    assert seen == [0, 1, 2]
    fault = guard.wait_for(Fault)
    assert fault.reason.kind == "EXCEPTION"
    assert "fault 0" in fault.reason.text


def test_a_stop_interrupts(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration == 0:
            guard.stop(0, 0)
            time.sleep(60)
        return wrapper.iteration

    begun = time.monotonic()
    assert call(train, None) == 1
    assert time.monotonic() - begun < 30
