"""Times on a device that is made up."""

from __future__ import annotations

import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.attribution.straggler import Detector, Statistic, detector, timing
from undaunted.attribution.straggler.timing import DeviceClock

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stream:
    """A device with one stream: `done` is how far it has come, `at` what it has been given, ms."""

    def __init__(self) -> None:
        self.at = self.done = 0.0
        self.events = 0
        self.initialized = True
        self.capturing = False
        self.error = ""

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        if self.error:
            raise RuntimeError(self.error)
        return self.capturing

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802
        assert enable_timing
        self.events += 1
        stream = self

        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = stream.at

            def query(self) -> bool:
                return stream.done >= self.at

            def elapsed_time(self, end: Any) -> float:
                return float(end.at - self.at)

        return Event()


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def clock(stream: Stream) -> DeviceClock:
    return DeviceClock(stream)


def take(clock: DeviceClock, stream: Stream, times: deque[float], *, keep: bool = True) -> None:
    begin = clock.start()
    stream.at += 2
    if begin is not None:
        clock.stop(times, begin, keep)


def test_a_time_is_read_when_the_device_has_passed_it(clock: DeviceClock, stream: Stream) -> None:
    times: deque[float] = deque()
    take(clock, stream, times)
    take(clock, stream, times)
    clock.collect()
    assert not times
    stream.done = 2
    clock.collect()
    assert list(times) == [2000.0]
    stream.done = 4
    take(clock, stream, times)
    assert list(times) == [2000.0, 2000.0]


def test_events_are_used_again(clock: DeviceClock, stream: Stream) -> None:
    times: deque[float] = deque()
    for _ in range(100):
        stream.done = stream.at
        take(clock, stream, times)
        take(clock, stream, times, keep=False)
    assert stream.events <= 6


def test_a_device_that_is_far_behind_is_not_given_more(clock: DeviceClock, stream: Stream) -> None:
    times: deque[float] = deque()
    stream.at = 1
    for _ in range(5000):
        take(clock, stream, times)
    assert stream.events == 2 * 1024
    stream.done = stream.at
    clock.collect()
    assert len(times) == 1024
    assert clock.start() is not None


def test_nothing_is_recorded_before_the_program_uses_the_device(
    clock: DeviceClock, stream: Stream
) -> None:
    stream.initialized = False
    assert clock.start() is None
    assert stream.events == 0


def test_nothing_is_recorded_into_a_graph(clock: DeviceClock, stream: Stream) -> None:
    begin = clock.start()
    assert begin is not None
    stream.capturing = True
    assert clock.start() is None
    times: deque[float] = deque()
    clock.stop(times, begin, keep=True)
    stream.capturing = False
    clock.collect()
    assert not times


def test_an_error_of_the_device_ends_the_timing(
    clock: DeviceClock, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    times: deque[float] = deque()
    stream.error = "an illegal memory access"
    take(clock, stream, times)
    take(clock, stream, times)
    stream.error = ""
    take(clock, stream, times)
    assert stream.events == 0
    assert len(caplog.records) == 1
    assert "an illegal memory access" in caplog.text


def test_the_device_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def torch(**available: bool) -> Any:
        return types.SimpleNamespace(
            **{
                name: types.SimpleNamespace(is_available=lambda value=value: value)
                for name, value in available.items()
            }
        )

    for available, name in (
        ({"cuda": False, "xpu": True}, "xpu"),
        ({"cuda": True, "xpu": True}, "cuda"),
    ):
        there = torch(**available)
        monkeypatch.setitem(sys.modules, "torch", there)
        assert timing.device() is getattr(there, name)
    for nothing in (torch(cuda=False), None):
        monkeypatch.setitem(sys.modules, "torch", nothing)
        assert timing.device() is None


@pytest.fixture
def on_device(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    monkeypatch.setattr(detector, "device", lambda: stream)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    Detector.initialize()
    yield stream
    Detector.shutdown()


def test_the_score_of_a_gpu_is_that_of_the_device(on_device: Stream) -> None:
    """A report does not wait: the next one has what the device had not done."""
    with Detector.detection_section("a"):
        on_device.at += 1
    with Detector.detection_section("host", profile_cuda=False):
        on_device.at += 1
    with pytest.raises(KeyError), Detector.detection_section("a"):
        raise KeyError
    first = Detector.generate_report()
    assert first is not None
    assert not first.local_kernel_summaries
    assert set(first.local_section_summaries) == {"a", "host"}
    on_device.done = on_device.at
    second = Detector.generate_report()
    assert second is not None
    assert second.local_kernel_summaries["a"][Statistic.MED] == 1000
    assert second.local_kernel_summaries["a"][Statistic.NUM] == 1
    assert second.gpu_relative_perf_scores == {0: 1.0}
    with Detector.detection_section("a"):
        on_device.at = on_device.done = on_device.at + 4
    third = Detector.generate_report()
    assert third is not None
    assert third.gpu_individual_perf_scores == {0: 0.25}
