"""From what a user gives as the place of checkpoints to the storage there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from undaunted.base.text import is_utf8
from undaunted.checkpointing.files import blocks
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.format import manifest

if TYPE_CHECKING:
    from undaunted.checkpointing.files.storage import Storage

_FILE = "file://"
_OF_ONE_PROCESS = ("memory",)
_OF_BUCKETS = ("s3", "s3a", "gs", "gcs")


def open_storage(
    where: str | os.PathLike[str], options: blocks.WriteOptions = blocks.DEFAULTS
) -> Storage:
    """Return the storage of a folder or of an object store.

    Args:
        where: a path; ``file://`` and an absolute path; or another URL of fsspec, such as
            ``s3://bucket/run1``. Its settings are those of fsspec and of the store's client: their
            files and variables, such as ``AWS_ENDPOINT_URL``.
        options: of writing.

    Raises:
        ValueError: it is none of these, or lives in one process only, or what fsspec needs for it
            is not installed.
    """
    place = os.fspath(where)
    if not is_utf8(place):
        raise ValueError(f"{place!a}: the name of the place is no valid UTF-8: give another")
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if place.startswith(_FILE):
        place = place.removeprefix(_FILE)
        if not place.startswith("/"):
            raise ValueError(f"{where}: a file URL has three slashes, as in file:///data/run1")
    elif "://" in place:
        _check_url(place)
        from undaunted.checkpointing.files.objects import ObjectStorage

        return ObjectStorage(place, run, options.threads)
    if not place:
        raise ValueError("the place of checkpoints is empty: give a folder")
    return FolderStorage(place, run, options)


def refuse_one_checkpoint(place: str) -> None:
    """Refuse the folder of one checkpoint, in which others would be looked for, and saved.

    Raises:
        ValueError: it is one.
    """
    if os.path.isfile(os.path.join(place, manifest.NAME)):  # noqa: PTH113, PTH118 - or a URL
        above = os.path.dirname(os.path.realpath(place))  # noqa: PTH120 - or a link to it
        raise ValueError(
            f"{place} is one checkpoint: give the folder it is in, {above}, and load(step=...)"
        )


def _check_url(url: str) -> None:
    protocol, _, path = url.partition("://")
    if not protocol or not path.strip("/"):
        raise ValueError(
            f"{url}: names no place in the store: give its bucket and a name, as in "
            "s3://bucket/run1"
        )
    if protocol in _OF_BUCKETS and "//" in path.rstrip("/"):
        corrected = "/".join(part for part in path.split("/") if part)
        raise ValueError(
            f"{url}: has an empty name between two slashes, which clients of the store lose: give "
            f"{protocol}://{corrected}"
        )
    if protocol in _OF_ONE_PROCESS:
        raise ValueError(
            f"{url}: this memory is that of one process, and checkpoints are written by another: "
            "give a folder or the URL of an object store"
        )
