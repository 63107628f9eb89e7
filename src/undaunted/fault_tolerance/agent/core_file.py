"""The file in which the kernel has put the memory of a process that it ended.

`core_pattern` names a file, with letters for what is known of the process, or a program that takes
it. Some letters stand for what nobody knows any more when the process has ended: any text fits.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

_SETTINGS = Path("/proc/sys/kernel")
_LETTER = re.compile(r"%(.)")
_SYSTEMD = "systemd-coredump"
_SYSTEMD_FILES = "/var/lib/systemd/coredump/core.*.{pid}.*"
_MOST = 4096  # characters
_MOST_FILES = 1000


def find(pid: int, cwd: str, since: float, settings: Path = _SETTINGS) -> str:
    """Say where the core of a process is that has ended, for people; "" = nowhere that is known.

    Waits for the disk: a deadline is the caller's.

    Args:
        pid: its.
        cwd: its current directory, as far as it is known.
        since: `time.time` when it began: older files are of others.
        settings: where the kernel's settings are.
    """
    pattern = _read(settings / "core_pattern")
    if pattern.startswith("|"):
        program = pattern[1:].split(" ")[0]
        if os.path.basename(program) != _SYSTEMD:  # noqa: PTH119 - text, as the kernel's
            return f"taken by {program}" if program else ""
        newest = _newest(_SYSTEMD_FILES.format(pid=pid), since)
        return f"coredumpctl info {pid}" + (f" ({newest})" if newest else "")
    if not pattern:
        return ""
    uses_pid = _read(settings / "core_uses_pid") not in ("", "0")
    return _newest(os.path.join(cwd, paths_of(pattern, pid, uses_pid=uses_pid)), since)  # noqa: PTH118


def paths_of(pattern: str, pid: int, *, uses_pid: bool = False) -> str:
    """Return the paths that a pattern of the kernel stands for, as a pattern of `glob`."""
    parts = _LETTER.split(pattern)
    path = glob.escape(parts[0])
    for letter, text in zip(parts[1::2], parts[2::2], strict=True):
        known = {"p": str(pid), "P": str(pid), "%": "%"}
        path += known.get(letter, "*") + glob.escape(text)
    named = "p" in parts[1::2] or "P" in parts[1::2]
    return path if named or not uses_pid else f"{path}.{pid}"


def _newest(paths: str, since: float) -> str:
    found: list[tuple[float, str]] = []
    for path in glob.iglob(paths):  # noqa: PTH207 - patterns, not paths
        try:
            found.append((os.stat(path).st_mtime, path))  # noqa: PTH116
        except OSError:
            continue
        if len(found) == _MOST_FILES:
            break
    return next((path for at, path in sorted(found, reverse=True) if at >= since), "")


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST).strip()
    except OSError:
        return ""
