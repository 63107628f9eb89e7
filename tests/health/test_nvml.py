"""The provider for NVIDIA, with a library that pretends to be the driver's."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.health import nvml
from undaunted.health.device_memory import decode

if TYPE_CHECKING:
    import pytest

OK, NOT_SUPPORTED, LOST = 0, 3, 15


class Library:
    """Two devices; attributes can be removed to make it an older one."""

    def __init__(self, processes: int = 1) -> None:
        self.count = processes
        self.nvmlInit_v2 = lambda: OK
        self.nvmlErrorString = self.words
        self.nvmlDeviceGetCount_v2 = self.set_count
        self.nvmlDeviceGetHandleByIndex_v2 = self.handle
        self.nvmlDeviceGetUUID = self.uuid
        self.nvmlDeviceGetMemoryInfo_v2 = self.memory_v2
        self.nvmlDeviceGetMemoryInfo = self.memory
        self.nvmlDeviceGetComputeRunningProcesses_v3 = self.processes
        self.lost: int | None = None

    def words(self, code: int) -> bytes:
        return {LOST: b"GPU is lost", NOT_SUPPORTED: b"Not Supported"}[code]

    def set_count(self, count: Any) -> int:
        count._obj.value = 2
        return OK

    def handle(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return LOST if index == self.lost else OK

    def uuid(self, handle: Any, name: Any, size: int) -> int:
        name.value = b"GPU-%d" % (handle.value - 1)
        return OK

    def memory_v2(self, handle: Any, memory: Any) -> int:
        assert memory._obj.version == 0x2000028
        memory._obj.used = 1000 * handle.value
        return OK

    def memory(self, handle: Any, memory: Any) -> int:
        memory._obj.used = 7000
        return OK

    def processes(self, handle: Any, count: Any, table: Any) -> int:
        room, count._obj.value = count._obj.value, self.count
        if room < self.count:
            return nvml._INSUFFICIENT_SIZE
        for i in range(self.count):
            table[i].pid = 100 + i
            table[i].used = nvml._UNKNOWN if i == 0 else i
        return OK


def test_what_is_said_of_a_device() -> None:
    first, second = nvml.Nvml(Library(processes=2)).devices()
    assert first == {
        "index": 0,
        "uuid": "GPU-0",
        "used": 1000,
        "processes": {"100": None, "101": 1},
        "throttled": [],
    }
    assert second["used"] == 2000


def test_more_processes_than_expected() -> None:
    device = nvml.Nvml(Library(processes=300)).devices()[0]
    assert len(device["processes"]) == 300


def test_why_a_device_has_low_clocks() -> None:
    library = Library()

    def reasons(handle: Any, found: Any) -> int:
        found._obj.value = 0x04 | 0x08 | 0x40 if handle.value == 1 else 0x01
        return OK

    library.nvmlDeviceGetCurrentClocksThrottleReasons = reasons  # type: ignore[attr-defined]
    first, second = nvml.Nvml(library).devices()
    assert first["throttled"] == ["HW Slowdown", "HW Thermal Slowdown"]
    assert second["throttled"] == [], "it is idle, which is no fault"


def test_a_lost_device_does_not_hide_the_others() -> None:
    library = Library()
    library.lost = 0
    first, second = nvml.Nvml(library).devices()
    assert first == {"index": 0, "problem": "nvmlDeviceGetHandleByIndex_v2: GPU is lost (15)"}
    assert second["used"] == 2000


def test_an_older_driver() -> None:
    library = Library()
    del library.nvmlDeviceGetMemoryInfo_v2
    library.nvmlDeviceGetComputeRunningProcesses_v2 = (
        library.nvmlDeviceGetComputeRunningProcesses_v3
    )
    del library.nvmlDeviceGetComputeRunningProcesses_v3
    device = nvml.Nvml(library).devices()[0]
    assert (device["used"], device["processes"]) == (7000, {"100": None})


def test_a_device_that_shares_the_memory_of_the_node() -> None:
    library = Library()
    library.nvmlDeviceGetMemoryInfo = library.nvmlDeviceGetMemoryInfo_v2 = lambda *_: NOT_SUPPORTED
    assert nvml.Nvml(library).devices()[0]["used"] is None


def test_no_driver_is_said_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_LIBRARY", "libnothing-of-this-name.so")
    reply, library = nvml.answer(None)
    assert library is None
    assert "libnothing-of-this-name.so" in reply["error"]
    working = nvml.Nvml(Library())
    assert nvml.answer(working)[1] is working


def test_an_answer_per_line_until_nobody_asks() -> None:
    """As a program: without site-packages, as it is started on any node."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(nvml.__file__)), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        with ours.makefile("rwb") as stream:
            for _ in range(2):
                stream.write(b"\n")
                stream.flush()
                line = stream.readline()
                assert json.loads(line)
                decode(line)
        ours.close()
        assert child.wait(30) == 0
