"""The directory in which torch leaves the errors of ranks.

On a local disk, since the agent reads it: a hung file system must not stop the agent.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "undaunted-errors-"


def make() -> str:
    """Make one for this process, the agent; return its path, "" if that cannot be done."""
    with contextlib.suppress(OSError):
        return tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    return ""


def remove(directory: str) -> None:
    """Remove what `make` has made."""
    if directory:
        shutil.rmtree(directory, ignore_errors=True)


def remove_of(agent: int) -> None:
    """Remove what an agent that was killed has left."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{agent}-*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                remove(str(path))
