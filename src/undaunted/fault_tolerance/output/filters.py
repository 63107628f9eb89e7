"""Filters of lines: what nobody wants in the log of a round, and what the user looks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

# Takes whole lines of one stream, with their ends, in order; returns those to keep. It is made anew
# for each stream and may remember what came before.
LineFilter = Callable[[bytes], bytes]

_HEADINGS = (b"Character devices:", b"Block devices:")
_DEVICE = re.compile(rb"\s*\d{1,4} \S+\s*")
_NVIDIA_DEVICE = re.compile(rb"\s*\d{1,4} nvidia[\w-]*\s*")


class ContainsFilter:
    """Keeps lines that contain one of several texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        needles = (re.escape(text.encode(errors="surrogateescape")) for text in texts)
        self._found = re.compile(b"|".join(needles)).search

    def __call__(self, lines: bytes) -> bytes:
        """Return the lines to keep."""
        if not self._found(lines):  # nearly always
            return b""
        return b"".join(line for line in _lines(lines) if self._found(line))


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
