"""Times of sections on the device: two events for each, read when the device has passed them."""

from __future__ import annotations

import logging
import sys
from collections import deque
from typing import Any, Protocol

_log = logging.getLogger("undaunted")

_OPEN = 1024
"""Sections a device may have before it: further ones are not timed until it has passed some."""


class Event(Protocol):
    """As `torch.cuda.Event`, `torch.xpu.Event`."""

    def record(self) -> None: ...  # noqa: D102
    def query(self) -> bool: ...  # noqa: D102
    def elapsed_time(self, end: Any, /) -> float: ...  # noqa: D102


class Device(Protocol):
    """As the module `torch.cuda`, or `torch.xpu`."""

    def is_initialized(self) -> bool: ...  # noqa: D102
    def Event(self, *, enable_timing: bool) -> Event: ...  # noqa: D102, N802


def device() -> Any:
    """Return torch's module for this machine's device; None if there is none, or no torch yet."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    for name in ("cuda", "xpu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return module
    return None


class DeviceClock:
    """Times of sections on the current stream. Never waits for the device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._capturing = getattr(device, "is_current_stream_capturing", lambda: False)
        self._free: list[Event] = []
        self._open: deque[tuple[deque[float], Event, Event]] = deque()
        self._broken = False

    def start(self) -> Event | None:
        """Note where the stream is; None if this section is not timed."""
        if self._broken or len(self._open) >= _OPEN or not self._device.is_initialized():
            return None
        try:
            # In a graph that is captured an event would belong to the graph.
            return None if self._capturing() else self._recorded()
        except RuntimeError as error:
            self._give_up(error)
            return None

    def stop(self, times: deque[float], begin: Event, keep: bool) -> None:
        """Note the end; the time, µs, is added to `times` once the device has passed it."""
        if not keep:
            self._free.append(begin)
            return
        try:
            if not self._capturing():
                self._open.append((times, begin, self._recorded()))
            self.collect()
        except RuntimeError as error:
            self._give_up(error)

    def collect(self) -> None:
        """Read the events that the device has passed."""
        try:
            while self._open and self._open[0][2].query():
                times, begin, end = self._open.popleft()
                times.append(begin.elapsed_time(end) * 1e3)
                self._free += (begin, end)
        except RuntimeError as error:
            self._give_up(error)

    def _recorded(self) -> Event:
        event = self._free.pop() if self._free else self._device.Event(enable_timing=True)
        event.record()
        return event

    def _give_up(self, error: RuntimeError) -> None:
        """An error of the device, of which the program learns at its own next call."""
        self._broken = True
        self._open.clear()
        _log.warning("Sections are not timed on the device any more: %s", error)
