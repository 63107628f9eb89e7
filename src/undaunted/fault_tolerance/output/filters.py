"""Filters of the lines that ranks print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

# Takes whole lines of one stream, with their ends, in order; returns the lines to keep. Made anew
# for each stream and may remember what came before.
LineFilter = Callable[[bytes], bytes]

_HEADINGS = (b"Character devices:", b"Block devices:")
_DEVICE = re.compile(rb"\s*\d{1,4} \S+\s*")
_NVIDIA_DEVICE = re.compile(rb"\s*\d{1,4} nvidia[\w-]*\s*")


def everything(lines: bytes) -> bytes:
    """Keep all lines."""
    return lines


class CarriageReturns:
    """Ends lines at carriage returns as well, so that progress bars show up."""

    def __init__(self) -> None:
        self._after_return = False

    def __call__(self, lines: bytes) -> bytes:
        """Return the lines, each with a line feed. They may end with a carriage return."""
        if self._after_return and lines.startswith(b"\n"):
            lines = lines[1:]  # second half of a CR LF whose line was given out already
        self._after_return = lines.endswith(b"\r")
        if b"\r" in lines:
            lines = lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return lines


class DeviceListFilter:
    """Drops copies of ``/proc/devices``, which libraries of NVIDIA print, each rank its own.

    A copy begins with one of the two headings; the lines of devices and the empty lines after it
    belong to it. A line that names a device of NVIDIA in that form is dropped wherever it is.
    """

    def __init__(self) -> None:
        self._inside = False

    def __call__(self, lines: bytes) -> bytes:
        """Return the lines to keep."""
        suspect = self._inside or b" devices:" in lines or b" nvidia" in lines
        if not suspect:  # nearly always: one search, no copy
            return lines
        return b"".join(line for line in _lines(lines) if self._keeps(line))

    def _keeps(self, line: bytes) -> bool:
        text = line.strip()
        if text in _HEADINGS:
            self._inside = True
            return False
        self._inside = self._inside and (not text or _DEVICE.fullmatch(line) is not None)
        return not self._inside and _NVIDIA_DEVICE.fullmatch(line) is None


def _lines(lines: bytes) -> Iterator[bytes]:
    """Split at line feeds alone; `bytes.splitlines` does so at carriage returns as well."""
    return (line + b"\n" for line in lines.split(b"\n")[:-1])
