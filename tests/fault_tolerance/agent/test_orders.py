"""The policy of a job of one node."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

import msgspec

from undaunted.coordinator.policy import messages as job
from undaunted.fault_tolerance.agent.orders import OwnOrders
from undaunted.fault_tolerance.agent.tasks import Turns
from undaunted.fault_tolerance.run_config import RunConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

CONFIG = RunConfig(
    run_id="x", node="here", nproc_per_node=1, max_restarts=9, kind="program", target="sleep",
    args=[], cwd="/", run_dir="/tmp", log_dir="/tmp", stdout=[0], stderr=[0],
)  # fmt: skip


class HeldTimers:
    """Timers that run out when a test says so."""

    def __init__(self) -> None:
        self.set_: dict[str, Callable[[], None]] = {}

    def set(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        assert delay_s > 0
        self.set_[name] = call

    def fire(self, name: str) -> None:
        self.set_.pop(name)()

    def cancel(self) -> None:
        self.set_.clear()


def test_rounds_of_a_later_start_of_the_job_have_later_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    epochs = []

    def obey(order: job.Command) -> None:
        if isinstance(order, job.Start):
            epochs.append(order.epoch)

    for now_s in (1.8e9, 1.8e9 + 1):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        asyncio.run(OwnOrders(CONFIG, Turns(), obey, print).join())
    assert epochs == sorted(set(epochs))


def test_restarts_pause_and_are_forgotten() -> None:
    config = msgspec.structs.replace(CONFIG, restart_intensity=(2, 60.0))
    started: list[int] = []
    ended: list[job.End] = []

    def obey(order: job.Command) -> None:
        if isinstance(order, job.Start):
            started.append(order.round)
        elif isinstance(order, job.End):
            ended.append(order)

    def fail() -> None:
        orders.post(job.NodeFailed("here", started[-1], "exit code 1"))
        orders.post(job.NodeStopped("here", started[-1]))

    orders, timers = OwnOrders(config, Turns(), obey, print), HeldTimers()
    orders._timers = cast("Any", timers)
    asyncio.run(orders.join())
    fail()
    assert started == [0, 1]
    fail()
    assert started == [0, 1], "after a pause"
    timers.fire("pause")
    assert started == [0, 1, 2]
    timers.fire("forget 0")
    timers.fire("forget 1")
    fail()
    assert started == [0, 1, 2, 3]
    assert set(timers.set_) == {"forget 2"}, "nobody else is waited for"
    assert not ended
