from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from typing import Any

from undaunted.doctor.programs import driver_program
from undaunted.doctor.programs.driver_program import answer


class Library:
    """Stands in for the driver's library: no GPU, version 570.1."""

    def nvmlInit_v2(self) -> int:  # noqa: N802 - as the library has it
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 0
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:  # noqa: N802
        ctypes.memmove(text, b"570.1\0", 6)
        return 0

    def nvmlErrorString(self, code: int) -> bytes:  # noqa: N802
        return b"Driver/library version mismatch"


class Mismatch(Library):
    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 18


def test_a_driver() -> None:
    assert answer(Library()) == {"version": "570.1", "count": 0, "states": "", "problem": ""}


def test_a_driver_that_does_not_fit_its_library() -> None:
    found = answer(Mismatch())
    assert found["count"] is None
    assert found["problem"] == "nvmlInit_v2: Driver/library version mismatch (18)"


def test_as_a_program() -> None:
    command = [sys.executable, "-I", "-S", str(driver_program.__file__)]
    output = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
    assert json.loads(output).keys() == {"version", "count", "states", "problem"}
