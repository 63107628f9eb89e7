"""NVLinks of a GPU: one that was active and is not any more.

Not among the checks of a node: a GPU with a lost link is slow, or ends jobs at once, but nothing is
known about jobs that do not use it.
"""

from __future__ import annotations

import ctypes
from typing import Any

from undaunted.health.check import GPU_DEADLINE_S, Check, Finding, skipped
from undaunted.health.checks.gpu import RecoveryNvml
from undaunted.health.nvml import NvmlError

_MOST_LINKS = 18  # NVML_NVLINK_MAX_LINKS


class _LinkNvml(RecoveryNvml):
    """Asks the driver about links."""

    def links(self, number: int) -> dict[int, bool]:
        """Return whether each link of a device is active; none where there are none.

        Raises:
            NvmlError: there is no such device, or it does not answer.
        """
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", number, ctypes.byref(handle))
        found: dict[int, bool] = {}
        for link in range(_MOST_LINKS):
            active = ctypes.c_uint()
            if self._code("nvmlDeviceGetNvLinkState", handle, link, ctypes.byref(active)) == 0:
                found[link] = bool(active.value)
        return found


class NvLinks(Check):
    """All NVLinks of one GPU."""

    name = "NVLink"
    deadline_s = GPU_DEADLINE_S

    def __init__(self, number: int, library: Any = None) -> None:
        """Check the GPU that the driver counts as ``number``; ``library`` is for tests."""
        self.subject = f"GPU {number}"
        self._number = number
        self._library = library
        self._nvml: _LinkNvml | None = None  # kept: to begin takes the driver long

    def run(self, seen: dict[str, Any]) -> Finding | None:
        """See `Check`; keeps the links that were active."""
        try:
            self._nvml = self._nvml or _LinkNvml(self._library)
            links = self._nvml.links(self._number)
        except (OSError, NvmlError) as error:
            self._nvml = None
            return skipped(str(error))
        for link in (link for link, active in links.items() if active):
            seen[str(link)] = True
        lost = [link for link in seen if not links.get(int(link))]
        return Finding(f"link {', '.join(lost)} was active and is not") if lost else None
