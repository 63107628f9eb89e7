"""From what a user gives as the place of checkpoints to the storage there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from undaunted.checkpointing.files import blocks
from undaunted.checkpointing.files.folder import FolderStorage

if TYPE_CHECKING:
    from undaunted.checkpointing.files.storage import Storage

_FILE = "file://"


def open_storage(
    where: str | os.PathLike[str], options: blocks.WriteOptions = blocks.DEFAULTS
) -> Storage:
    """Return the storage of a folder.

    Args:
        where: a path, or ``file://`` and an absolute path.
        options: of writing.

    Raises:
        ValueError: it is something else.
    """
    place = os.fspath(where)
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if place.startswith(_FILE):
        place = place.removeprefix(_FILE)
        if not place.startswith("/"):
            raise ValueError(f"{where}: a file URL has three slashes, as in file:///data/run1")
    elif "://" in place:
        raise ValueError(f"{where}: object stores are not built yet; give a folder")
    if not place:
        raise ValueError("the place of checkpoints is empty: give a folder")
    return FolderStorage(place, run, options)
