"""Where the output of ranks is kept, and its last lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Stream = Literal["stdout", "stderr", "output"]  # output: both of them

_TAIL_CAP_BYTES = 64 * 1024


def log_path(log_dir: str | Path, round_no: int, local_rank: int, stream: Stream) -> str:
    """Path of one stream of a rank in a round, laid out as torchrun does."""
    return str(Path(log_dir, f"attempt_{round_no}", str(local_rank), f"{stream}.log"))


def last_lines(path: str, count: int, cap_bytes: int = _TAIL_CAP_BYTES) -> list[str]:
    """Read the last lines of a file, for a crash report. Never raises.

    Args:
        path: the file; missing or unreadable means no lines.
        count: how many lines at most.
        cap_bytes: how much of the end of the file is looked at; a longer line loses its start.

    Returns:
        Lines without their ends; bytes that are not UTF-8 show as replacement characters.
    """
    if count <= 0:
        return []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        start = max(0, os.fstat(fd).st_size - cap_bytes)
        data = os.pread(fd, cap_bytes, start)
    except OSError:
        return []
    finally:
        os.close(fd)
    lines = data.decode(errors="replace").splitlines()
    return lines[-count:]
