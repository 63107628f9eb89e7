"""Reads torch's distributed checkpoints: metadata only once, every block with its checksum."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import StorageMeta

from undaunted.checkpointing.async_ckpt.filesystem_async import decode_metadata
from undaunted.checkpointing.dcp.reader import Reader, Verified, may_be_beside
from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.files.folder import OneFolder
from undaunted.checkpointing.format import manifest as manifests
from undaunted.checkpointing.format.manifest import file_of

if TYPE_CHECKING:
    import os

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner

THREADS = 4
_KEPT = 8


class _CachedMetadata(NamedTuple):
    """Metadata, and what the file was when they were read."""

    file: tuple[int, int, int]
    metadata: Metadata


class CachedMetadataFileSystemReader(FileSystemReader):  # type: ignore[misc]  # torch: no types
    """A storage reader for `torch.distributed.checkpoint.load`.

    ``.metadata`` is kept in memory, for all readers of the process, until the file is another one.
    It is a pickle: classes that do not belong into it are refused, except those that
    `torch.serialization.add_safe_globals` was told of. Where the writer has left a manifest, every
    block that is read is compared with its checksum.

    Args:
        path: folder of the checkpoint.
        cache_metadata: whether metadata are kept.
    """

    _cache: ClassVar[dict[str, _CachedMetadata]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: str | os.PathLike[str], cache_metadata: bool = True) -> None:
        super().__init__(path)
        self.cache_metadata = cache_metadata

    @classmethod
    def clear_metadata_cache(cls, path: str | os.PathLike[str] | None = None) -> None:
        """Forget the metadata of a folder, or of all."""
        with cls._lock:
            if path is None:
                cls._cache.clear()
            else:
                cls._cache.pop(_key(path), None)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata of the checkpoint.

        Raises:
            DamagedCheckpointError: they are damaged, or name what does not belong there.
            OSError: there are none.
        """
        del args
        rank = kwargs.get("rank")  # of a checkpoint whose ranks have metadata of their own
        path = Path(self.path) / (".metadata" if rank is None else f"__{rank}.metadata")
        status = path.stat()
        file = (status.st_ino, status.st_mtime_ns, status.st_size)
        key = _key(self.path)
        with self._lock:
            known = self._cache.get(key) if self.cache_metadata else None
        if known is None or known.file != file:
            known = _CachedMetadata(file, self._read(path))
            if self.cache_metadata:
                with self._lock:
                    self._cache[key] = known
                    for old in list(self._cache)[:-_KEPT]:
                        del self._cache[old]
        metadata = copy.copy(known.metadata)
        metadata.storage_meta = copy.copy(metadata.storage_meta) or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """See `StorageReader`."""
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        self._metadata = metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Fill what the plan names.

        Raises:
            DamagedCheckpointError: a block is not what was written; names what is in it.
        """
        manifest = self._manifest()
        if manifest is None:
            return super().read_data(plan, planner)
        storage = OneFolder(str(self.path))
        several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
        reader = Reader(
            Verified(storage, manifest, THREADS, lambda _: None),
            beside=may_be_beside(several=several),
        )
        reader.set_up_storage_reader(self._metadata)
        return reader.read_data(plan, planner)

    def _read(self, path: Path) -> Metadata:
        content = path.read_bytes()
        manifest = self._manifest()
        expected = manifest.files.get(path.name) if manifest is not None else None
        if manifest is not None and expected != file_of(content, manifest.block_bytes):
            raise DamagedCheckpointError(f"{path}: damaged, its checksum is wrong", str(path))
        return decode_metadata(content, str(path))

    def _manifest(self) -> manifests.Manifest | None:
        path = Path(self.path) / manifests.NAME
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        return manifests.decode(content, str(path))


def _key(path: str | os.PathLike[str]) -> str:
    return str(Path(path).absolute())
