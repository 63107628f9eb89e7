"""torch's error files: what ``@record`` leaves behind, and what launchers above us read.

A file is JSON: ``{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "...",
"timestamp": "1700000000"}}}``, or ``{"message": "text", "timestamp": 1700000000}``. Everything read
may have been written by a dying process, so anything unexpected is "no report", never an error.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from undaunted.progress.snapshot import ErrorRecord

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The words of a rank about its end.

    Attributes:
        message: ``ValueError: bad batch``; never empty.
        traceback: as Python prints it, "" if there is none.
        wall_s: Unix time in whole seconds, 0 = not known.
    """

    message: str
    traceback: str = ""
    wall_s: int = 0


def from_record(record: ErrorRecord, *, wall_s: int) -> ErrorReport:
    """Make a report of what the exception hook wrote into a page."""
    message = f"{record.type}: {record.message}" if record.message else record.type
    return ErrorReport(message or "unknown error", record.traceback, wall_s)


def decode(text: str) -> ErrorReport | None:
    """Read the content of an error file; None if it holds no message."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    message = value.get("message") if isinstance(value, dict) else value
    if isinstance(message, str):
        when = value.get("timestamp") if isinstance(value, dict) else 0
        return ErrorReport(message, wall_s=_whole(when)) if message else None
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    said, traceback = _text(message.get("message")), _text(extra.get("py_callstack"))
    said = said or _last_line(traceback)
    return ErrorReport(said, traceback, _whole(extra.get("timestamp"))) if said else None


def encode(report: ErrorReport) -> str:
    """The content of an error file that torch's launchers read."""
    extra = {"py_callstack": report.traceback, "timestamp": str(report.wall_s)}
    return json.dumps({"message": {"message": report.message, "extraInfo": extra}})


def read(path: str | Path) -> ErrorReport | None:
    """Read an error file of a rank; None if there is none or it cannot be read.

    Reads regular files only, at most 1 MiB of them, and never waits for a writer.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        content = _read_regular(fd)
    except OSError:
        return None
    finally:
        os.close(fd)
    return decode(content.decode(errors="replace")) if len(content) <= MAX_BYTES else None


def write(path: str | Path, report: ErrorReport) -> None:
    """Write an error file, 0600, so that a reader sees all of it or none.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(beside, flags, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(encode(report))
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _read_regular(fd: int) -> bytes:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return b""
    content = b""
    while len(content) <= MAX_BYTES and (chunk := os.read(fd, MAX_BYTES + 1 - len(content))):
        content += chunk
    return content


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    try:
        return max(0, min(int(value), 2**53))
    except (TypeError, ValueError, OverflowError):
        return 0


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
