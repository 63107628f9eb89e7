"""Prints facts from NVIDIA's driver; a separate program, run by path, since it may hang.

    python -I -S driver_program.py

Prints one line of JSON: ``{"version": ..., "count": ..., "states": ..., "problem": ...}``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[3]))

from undaunted.health.checks.gpu import RecoveryNvml, judge
from undaunted.health.nvml import NvmlError


class DriverNvml(RecoveryNvml):
    """Asks for the version as well."""

    def version(self) -> str:
        """Return the version of the driver.

        Raises:
            NvmlError: it does not tell.
        """
        text = ctypes.create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", text, len(text))
        return text.value.decode("ascii", "replace")


def answer(library: object = None) -> dict[str, object]:
    """Return what the driver tells.

    Args:
        library: stands in for the driver's in tests.
    """
    try:
        nvml = DriverNvml(library)
        states = nvml.states()
        finding = judge(states, os.environ.get("CUDA_VISIBLE_DEVICES"))
        needed = finding.text if finding is not None and finding.failed else ""
        return {"version": nvml.version(), "count": len(states), "states": needed, "problem": ""}
    except (OSError, NvmlError) as error:
        return {"version": "", "count": None, "states": "", "problem": str(error)}


if __name__ == "__main__":
    print(json.dumps(answer()))
