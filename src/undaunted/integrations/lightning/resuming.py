"""Which checkpoint of Lightning a script goes on from."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike


def last_checkpoint(folder: str | PathLike[str]) -> str | None:
    """Return the newest checkpoint in a folder that is whole, for ``fit(ckpt_path=...)``.

    One that was being written when its writer was killed is passed over: Lightning copies a
    checkpoint to its place, and a copy may be cut short.

    Args:
        folder: has files ``*.ckpt``, or folders of this name where a strategy shards them.

    Returns:
        None if there is none: training begins at its beginning.
    """
    whole = [path for path in Path(folder).glob("*.ckpt") if _is_whole(path)]
    return str(max(whole, key=lambda path: path.stat().st_mtime_ns)) if whole else None


def _is_whole(path: Path) -> bool:
    """Whether the end was written, where archives of torch, and of folders, have their index."""
    last_written = path / "meta.pt" if path.is_dir() else path
    return last_written.is_file() and zipfile.is_zipfile(last_written)
