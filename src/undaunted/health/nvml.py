"""Provider of device memory for NVIDIA, see `device_memory`; run by path, as a program of its own.

    python -I -S nvml.py FD

It speaks on the socket FD. Only the standard library is used, since nothing else is on its path,
and only the driver's own library, which is where the driver is. Any call may hang for as long as
the driver does.
"""

from __future__ import annotations

import ctypes
import json
import socket
import sys
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_INSUFFICIENT_SIZE = 7
_UNKNOWN = 2**64 - 1  # memory of a process the driver does not tell
_MEMORY_V2 = 40 | (2 << 24)  # size of the structure and its version
_MOST_PROCESSES = 65536
# Bits of nvmlDeviceGetCurrentClocksThrottleReasons, in the words of nvidia-smi. The other bits are
# no fault: it is idle, at the power that it may use, or at clocks that somebody has set.
_THROTTLED = {
    0x08: "HW Slowdown",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
}


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _MemoryV2(ctypes.Structure):
    """Unlike the first version, it does not count what the driver reserves for itself as used."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class NvmlError(Exception):
    """The driver refused; the text says what and why."""


class Nvml:
    """The devices of this node, as the driver's library sees them."""

    def __init__(self, library: Any = None) -> None:
        """Load and initialise the library.

        Args:
            library: stands in for the driver's in tests.

        Raises:
            OSError: there is no such library.
            NvmlError: there is no driver.
        """
        if library is None:
            library = ctypes.CDLL(_LIBRARY)
            library.nvmlErrorString.restype = ctypes.c_char_p
        self._library = library
        self._call("nvmlInit_v2")

    def devices(self) -> list[dict[str, Any]]:
        """Return one object per device, as in `device_memory.DeviceUse`.

        Raises:
            NvmlError: the driver does not even count them.
        """
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._device(index) for index in range(count.value)]

    def _device(self, index: int) -> dict[str, Any]:
        found: dict[str, Any] = {"index": index}
        try:
            handle = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
            found["uuid"] = self._uuid(handle)
            found["processes"] = self._processes(handle)
            found["used"] = self._used(handle)
            found["throttled"] = self._throttled(handle)
        except NvmlError as error:
            found["problem"] = str(error)
        return found

    def _uuid(self, handle: ctypes.c_void_p) -> str:
        name = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetUUID", handle, name, len(name))
        return name.value.decode("ascii", "replace")

    def _used(self, handle: ctypes.c_void_p) -> int | None:
        """Bytes in use; None for devices that share the memory of the node."""
        for name, memory in (
            ("nvmlDeviceGetMemoryInfo_v2", _MemoryV2(version=_MEMORY_V2)),
            ("nvmlDeviceGetMemoryInfo", _Memory()),
        ):
            try:
                self._call(name, handle, ctypes.byref(memory))
            except NvmlError:
                continue
            return int(memory.used)
        return None

    def _throttled(self, handle: ctypes.c_void_p) -> list[str]:
        """Why its clocks are lower than they should be; [] also where the driver does not tell."""
        reasons = ctypes.c_ulonglong()
        try:
            name = "nvmlDeviceGetCurrentClocksThrottleReasons"
            self._call(name, handle, ctypes.byref(reasons))
        except NvmlError:
            return []
        return [text for bit, text in _THROTTLED.items() if reasons.value & bit]

    def _processes(self, handle: ctypes.c_void_p) -> dict[str, int | None]:
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        if not self._has(name):
            name = "nvmlDeviceGetComputeRunningProcesses_v2"
        size = 64
        while True:
            count = ctypes.c_uint(size)
            table = (_Process * size)()
            code = self._code(name, handle, ctypes.byref(count), table)
            if code != _INSUFFICIENT_SIZE or size >= _MOST_PROCESSES:
                break
            size *= 4
        if code:
            raise NvmlError(self._problem(name, code))
        return {
            str(table[i].pid): None if table[i].used == _UNKNOWN else int(table[i].used)
            for i in range(min(count.value, size))
        }

    def _has(self, name: str) -> bool:
        return getattr(self._library, name, None) is not None

    def _call(self, name: str, *args: Any) -> None:
        code = self._code(name, *args)
        if code:
            raise NvmlError(self._problem(name, code))

    def _code(self, name: str, *args: Any) -> int:
        function = getattr(self._library, name, None)
        if function is None:
            raise NvmlError(f"{_LIBRARY} has no {name}: the driver is too old")
        return int(function(*args))

    def _problem(self, name: str, code: int) -> str:
        text = self._library.nvmlErrorString(code) or b"unknown"
        return f"{name}: {text.decode('ascii', 'replace')} ({code})"


def answer(nvml: Nvml | None) -> tuple[dict[str, Any], Nvml | None]:
    """Return what to say about the devices, and the library if it works."""
    try:
        nvml = nvml or Nvml()
        return {"devices": nvml.devices()}, nvml
    except (OSError, NvmlError) as error:
        return {"error": str(error)}, None


def serve(sock: socket.socket) -> None:
    """Answer every line until the other side is gone."""
    nvml: Nvml | None = None
    with sock.makefile("rwb") as stream:
        for _ in stream:
            reply, nvml = answer(nvml)
            stream.write(json.dumps(reply).encode("ascii") + b"\n")
            stream.flush()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _SOCKET:
        try:
            serve(_SOCKET)
        except ConnectionError:  # the agent is gone
            sys.exit(1)
