"""Why the GPU of a slow rank has low clocks, as a provider of devices says."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

from tests.fault_tolerance.agent.devices import device, devices, provider
from undaunted.fault_tolerance.agent import devices as module
from undaunted.fault_tolerance.agent.devices import PROVIDER_VARIABLE, Throttling
from undaunted.health import device_memory

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

HOT = {"throttled": ["HW Thermal Slowdown"]}


def found(directory: Path, *answers: dict[str, Any] | str) -> list[int]:
    """The devices of process 77 that have low clocks."""
    environ = {**os.environ, PROVIDER_VARIABLE: provider(directory, *answers)}
    throttling = Throttling(environ)
    try:
        return [each.index for each in asyncio.run(throttling.devices(77))]
    finally:
        throttling.close()


def test_of_the_process_only(tmp_path: Path) -> None:
    answer = devices(
        device(0, pids=(76,)) | HOT, device(1, pids=(76, 77)) | HOT, device(2, pids=(77,))
    )
    assert found(tmp_path, answer) == [1]


def test_a_driver_that_does_not_say(tmp_path: Path) -> None:
    assert found(tmp_path, {"error": "no driver"}) == []
    assert found(tmp_path, "end") == []
    assert found(tmp_path, "nonsense") == []


def test_a_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.1)
    assert found(tmp_path, "hang") == []


def test_a_provider_that_the_driver_holds_up_belongs_to_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.1)
    asked = Throttling({**os.environ, PROVIDER_VARIABLE: provider(tmp_path, "hang")})
    with monkeypatch.context() as held_up:
        held_up.setattr(os, "killpg", lambda *_: None)
        for _ in range(module._MOST + 1):
            asyncio.run(asked.devices(77))
    stuck = asked.pids()
    assert len(stuck) == module._MOST
    for pid in stuck:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert asked.pids() == set()


def test_a_node_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "present", lambda: False)
    assert asyncio.run(Throttling({}).devices(77)) == []
