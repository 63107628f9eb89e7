"""Memory errors that could not be corrected, of the node's memory and of its GPUs: counters.

One that rises makes the node unhealthy. What they were at first is kept: it is of others.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from undaunted.health.check import (
    GPU_DEADLINE_S,
    Check,
    Finding,
    Settings,
    has_gpus,
    join,
    read_text,
    skipped,
)
from undaunted.health.nvml import Nvml, NvmlError

_UNCORRECTED, _SINCE_RESET = 1, 0  # NVML_MEMORY_ERROR_TYPE_..., NVML_VOLATILE_ECC


class Memory(Check):
    """The node's own memory, as the kernel counts (EDAC)."""

    name = "ECC"
    subject = "main memory"
    periodic = True

    def __init__(self, root: str) -> None:
        """Read the counters below ``root``."""
        self._directory = Path(root, "sys/devices/system/edac/mc")

    def run(self, seen: dict[str, Any]) -> Finding | None:
        """See `Check`; keeps each counter's value at first."""
        try:
            counts = {
                path.parent.name: int(read_text(path))
                for path in sorted(self._directory.glob("mc*/ue_count"))
            }
        except (OSError, ValueError) as error:
            return skipped(str(error))
        return _risen(counts, seen) if counts else skipped("the kernel counts none (EDAC)")


class _EccNvml(Nvml):
    def errors(self) -> dict[str, int]:
        """Return the errors of each device that has such memory.

        Raises:
            NvmlError: the driver does not even count devices.
        """
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found: dict[str, int] = {}
        for index in range(count.value):
            handle, errors = ctypes.c_void_p(), ctypes.c_ulonglong()
            name, place = "nvmlDeviceGetTotalEccErrors", ctypes.byref(errors)
            if self._code("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)):
                continue  # the check of GPUs says so
            if self._code(name, handle, _UNCORRECTED, _SINCE_RESET, place) == 0:
                found[f"GPU {index}"] = errors.value
        return found


class GpuMemory(Check):
    """The memory of all GPUs."""

    name = "ECC"
    subject = "GPUs"
    deadline_s = GPU_DEADLINE_S
    periodic = True

    def __init__(self, library: Any = None) -> None:
        """Check GPUs; ``library`` stands in for the driver's in tests."""
        self._library = library
        self._nvml: _EccNvml | None = None  # kept: to begin takes the driver long

    def run(self, seen: dict[str, Any]) -> Finding | None:
        """See `Check`; keeps each counter's value at first."""
        try:
            self._nvml = self._nvml or _EccNvml(self._library)
            return _risen(self._nvml.errors(), seen)
        except (OSError, NvmlError) as error:
            self._nvml = None
            return skipped(str(error))


def _risen(counts: dict[str, int], seen: dict[str, Any]) -> Finding | None:
    problems = []
    for name, count in counts.items():
        more = count - seen.setdefault(name, count)
        if more > 0:
            problems.append(f"{name}: {more} uncorrected since the start")
    return join(problems, [])


def checks(settings: Settings) -> list[Check]:
    """Return the checks if they were asked for."""
    if not settings.ecc:
        return []
    gpus: list[Check] = [GpuMemory()] if has_gpus(settings.root) else []
    return [Memory(settings.root), *gpus]
