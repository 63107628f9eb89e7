"""Xid errors in the kernel's log: what NVIDIA's driver says of a GPU that no job survives.

What was in the log before the first look is of others. Errors that a program causes by itself, such
as Xid 31, a page fault, say nothing of the node.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from undaunted.health.check import Check, Finding, Settings, close_quietly, join, reason, skipped

_LINE = re.compile(rb"NVRM: Xid \(PCI:([\w:.]{4,20})\): (\d{1,4})\b")
# After these a GPU has to be reset, or more; see NVIDIA's catalogue of Xid errors.
FATAL = {
    48: "uncorrectable memory error",
    61: "its microcontroller has halted",
    62: "its microcontroller has halted",
    64: "a row of its memory could not be replaced",
    74: "NVLink error",
    79: "it has fallen off the bus",
    95: "uncontained memory error",
    119: "its system processor does not answer",
    120: "error of its system processor",
    140: "unrecovered memory error",
}
_RECORD = 8192  # bytes, as much as the kernel gives at once
_MOST = 1 << 20  # records in one look
_NEXT = "next"


class KernelLog(Check):
    """All GPUs of this node."""

    name = "Xid"
    periodic = True

    def __init__(self, root: str) -> None:
        """Read the log below ``root``."""
        self._path = Path(root, "dev/kmsg")

    def run(self, seen: dict[str, Any]) -> Finding | None:
        """See `Check`; keeps which record comes next."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return skipped(f"the kernel's log cannot be read: {reason(error)}")
        try:
            return self._read(fd, seen)
        finally:
            close_quietly(fd)

    def _read(self, fd: int, seen: dict[str, Any]) -> Finding | None:
        first, begin = _NEXT not in seen, seen.get(_NEXT, 0)
        problems: list[str] = []
        for _ in range(_MOST):
            try:
                record = os.read(fd, _RECORD)
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except BlockingIOError:
                break
            except OSError as error:
                return join(problems, [f"the kernel's log cannot be read: {reason(error)}"])
            if not record:
                break
            number = _number(record)
            if number < begin:
                continue
            seen[_NEXT] = number + 1
            if not first and (problem := fatal(record)):
                problems.append(problem)
        seen.setdefault(_NEXT, 0)
        return join(list(dict.fromkeys(problems)), [])


def fatal(record: bytes) -> str:
    """Return what a record says of a GPU that cannot be used any more, "" = nothing."""
    found = _LINE.search(record)
    if found is None or (number := int(found[2])) not in FATAL:
        return ""
    return f"GPU at {found[1].decode('ascii')}: Xid {number}, {FATAL[number]}"


def _number(record: bytes) -> int:
    """Place in the log: ``6,1234,5678,-;text``."""
    parts = record.split(b",", 2)
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0


def checks(settings: Settings) -> list[Check]:
    """Return the check if it was asked for."""
    return [KernelLog(settings.root)] if settings.xid else []
