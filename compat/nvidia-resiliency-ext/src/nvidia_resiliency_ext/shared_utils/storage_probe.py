"""Finds paths that cannot be used."""

from __future__ import annotations

import os

from undaunted.health.checks.storage import Storage


def _storage_path_probe(paths: list[str] | None = None) -> dict[str, list[str]]:
    """Sort paths that cannot be used by what is wrong; it may take as long as a disk hangs.

    Args:
        paths: of files and directories; empty ones are left out.

    Returns:
        Lists ``invalid`` (no absolute path), ``missing`` and ``unreadable``.
    """
    found: dict[str, list[str]] = {"invalid": [], "missing": [], "unreadable": []}
    for path in filter(None, paths or ()):
        if not isinstance(path, str) or not os.path.isabs(path):  # noqa: PTH117 - any text
            found["invalid"].append(str(path))
        elif not os.path.exists(path):  # noqa: PTH110 - any text
            found["missing"].append(path)
        elif Storage(path).run({}) is not None:
            found["unreadable"].append(path)
    return found
