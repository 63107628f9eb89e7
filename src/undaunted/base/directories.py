"""Making directories that only this user can enter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def make_private(directory: Path) -> None:
    """Make a directory and those above it that are missing, each with mode 0700.

    ``Path.mkdir(parents=True)`` would give its mode to the last one only. What exists stays as it
    is.

    Raises:
        OSError: it cannot be made.
    """
    for path in (*reversed(directory.parents), directory):
        if not path.exists():
            path.mkdir(0o700, exist_ok=True)
