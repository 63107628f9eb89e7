"""Where a checkpoint of torch's layout goes, and how it comes into being there.

Data files first, then ``.metadata``: only with it is there a checkpoint. Where there is one
already, its data files are left alone until the new ``.metadata`` has replaced the old one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import time
import uuid
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from undaunted import __version__
from undaunted.checkpointing.dcp import metadata as metadata_format
from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.files import durable
from undaunted.checkpointing.format import manifest as manifests
from undaunted.checkpointing.format.checksums import file_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed.checkpoint.metadata import Metadata

MSC = "msc://"
METADATA = metadata_format.NAME
DATA = ".distcp"
_PLANNER = "torch.distributed.checkpoint.planner"
_PLANS = frozenset(
    (_PLANNER, name) for name in ("SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
)
_UNIQUE = re.compile(rf".*__\d+_[01]\.[0-9a-f]{{8}}\{DATA}")


class Destination:
    """A folder, or a place that only ``open_file`` knows.

    Attributes:
        id: as the user has named it.
        folder: the same as a string.
        open_file: how files are opened there.
    """

    def __init__(self, path: str | os.PathLike[str], open_file: Callable[..., Any]) -> None:
        self.id = path
        self.folder = os.fspath(path).rstrip("/") or "/"
        self.is_folder = "://" not in self.folder
        if self.folder.startswith(MSC) and open_file is open:
            open_file = importlib.import_module("multistorageclient").open
        elif not self.is_folder and open_file is open:
            raise ValueError(f"{path}: only folders and {MSC} are known; give open_file for others")
        self.open_file = open_file

    def make(self) -> None:
        """Make the folder."""
        if self.is_folder:
            durable.make_folder(str(Path(self.folder).absolute()))

    def is_occupied(self) -> bool:
        """Return whether a checkpoint is here."""
        if self.is_folder:
            return os.path.lexists(self._path(METADATA))
        try:
            with self.open_file(self._path(METADATA), "rb"):
                return True
        except OSError:
            return False

    def leftovers(self) -> list[str]:
        """Return the data files with unique names that are not part of the checkpoint here."""
        if not self.is_folder:
            return []
        try:
            names = [path.name for path in Path(self.folder).iterdir()]
            here = [name for name in names if _UNIQUE.fullmatch(name)]
            known = self._listed() if here and self.is_occupied() else set()
        except (OSError, DamagedCheckpointError):  # nobody knows what is part of it
            return []
        return [name for name in here if name not in known]

    def remove(self, names: Iterable[str]) -> None:
        """Remove files of a save that can become no checkpoint, if they are there."""
        for name in names if self.is_folder else ():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._remove(name)

    def commit(self, metadata: Metadata, files: dict[str, manifests.File], world_size: int) -> None:
        """Make the files that are here a checkpoint, in place of the one that was here.

        Args:
            metadata: says where every item is.
            files: all data files, for the manifest; none = no manifest is written.
            world_size: ranks that have written.

        Raises:
            OSError: with the path.
        """
        content = metadata_format.dumps(metadata)
        former: set[str] = set()
        if self.is_folder and self.is_occupied():
            with contextlib.suppress(OSError, DamagedCheckpointError):
                former = self._data_files()  # of one that cannot be read they stay
        if self.is_folder:
            with contextlib.suppress(FileNotFoundError):
                self._remove(manifests.NAME)  # of the former one: it is gone before that is
            durable.sync_folder(self.folder)
        self._write(METADATA, content)
        if files:
            self._write(manifests.NAME, _manifest(self.folder, content, files, world_size))
        for name in former - {one.relative_path for one in metadata.storage_data.values()}:
            with contextlib.suppress(OSError):
                self._remove(name)

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _remove(self, name: str) -> None:
        Path(self._path(name)).unlink()

    def _listed(self) -> set[str]:
        """Return the files of the checkpoint that is here, the sooner where it has a manifest."""
        path = self._path(manifests.NAME)
        try:
            return set(manifests.decode(Path(path).read_bytes(), path).files)
        except FileNotFoundError:
            return self._data_files()

    def _data_files(self) -> set[str]:
        path = self._path(METADATA)
        metadata = decode(Path(path).read_bytes(), path)
        names = {one.relative_path for one in (metadata.storage_data or {}).values()}
        return {name for name in names if "/" not in name}

    def _write(self, name: str, content: bytes) -> None:
        if not self.is_folder:
            write_through(self.open_file, self._path(name), memoryview(content))
            return
        beside = self._path(f"{name}.tmp-{uuid.uuid4().hex[:8]}")
        try:
            durable.replace_file(self._path(name), content, beside)
        except OSError:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
            raise


def decode(content: bytes, path: str) -> Metadata:
    """Read ``.metadata``: with plans in it, and with classes that the user has declared safe.

    Raises:
        DamagedCheckpointError: it is no metadata, or names something that has no business there.
    """
    safe = torch.serialization.get_safe_globals()
    more = {(one.__module__, one.__qualname__) for one in safe if isinstance(one, type)}
    return metadata_format.decode(content, path, _PLANS | more)


def write_through(open_file: Callable[..., Any], path: str, content: memoryview) -> str:
    """Write a file by a function like `open`; return the checksums as in `manifest.File`."""
    checksums = ""
    with open_file(path, "wb") as file:
        for at in range(0, len(content), manifests.BLOCK_BYTES):
            block = content[at : at + manifests.BLOCK_BYTES]
            checksums += f"{zlib.crc32(block):08x}"
            file.write(block)
        file.flush()
        with contextlib.suppress(AttributeError, OSError):
            os.fsync(file.fileno())
    return checksums


def step_of(folder: str) -> int:
    """Return the step that the name of a checkpoint's folder ends with, or 0."""
    number = re.search(r"(\d+)/*$", folder)
    return int(number[1]) if number else 0


def _manifest(
    folder: str, metadata: bytes, files: dict[str, manifests.File], world_size: int
) -> bytes:
    return manifests.encode(
        manifests.Manifest(
            format=manifests.FORMAT_VERSION,
            step=step_of(folder),
            epoch=0,
            world_size=world_size,
            session=uuid.uuid4().hex,
            attempt=0,
            structure="",
            block_bytes=manifests.BLOCK_BYTES,
            files={**files, METADATA: file_of(metadata)},
            saved_at=time.time(),
            writer=f"undaunted {__version__}",
        )
    )
