"""Reads torch's distributed checkpoints: metadata only once, every block with its checksum."""

from __future__ import annotations

import copy
import io
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType

from undaunted.checkpointing.async_ckpt import commit
from undaunted.checkpointing.dcp.objects import load_object
from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.files.direct import DirectReader
from undaunted.checkpointing.files.reading import (
    AT_ONCE_BYTES,
    DamagedBlock,
    Piece,
    in_batches,
    read_verified,
)
from undaunted.checkpointing.format import manifest as manifests
from undaunted.checkpointing.format.checksums import file_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem

THREADS = 4
_KEPT = 8


class _Known(NamedTuple):
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

    _cache: ClassVar[dict[str, _Known]] = {}
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
            known = _Known(file, self._read(path))
            if self.cache_metadata:
                with self._lock:
                    self._cache[key] = known
                    for old in list(self._cache)[:-_KEPT]:
                        del self._cache[old]
        metadata = copy.copy(known.metadata)
        metadata.storage_meta = copy.copy(metadata.storage_meta) or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Fill what the plan names.

        Raises:
            DamagedCheckpointError: a block is not what was written; names what is in it.
        """
        manifest = self._manifest()
        if manifest is None:
            return super().read_data(plan, planner)
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            name = self.storage_data[item.storage_index].relative_path
            by_file.setdefault(name, []).append(item)
        for name, wanted in by_file.items():
            for batch in self._batches(wanted):
                contents = self._verified(manifest, name, batch)
                for item, content in zip(batch, contents, strict=True):
                    _fill(planner, item, content, f"{self.path}/{name}")
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _read(self, path: Path) -> Metadata:
        content = path.read_bytes()
        manifest = self._manifest()
        expected = manifest.files.get(path.name) if manifest is not None else None
        if manifest is not None and expected != file_of(content, manifest.block_bytes):
            raise DamagedCheckpointError(f"{path}: damaged, its checksum is wrong", str(path))
        return commit.decode(content, str(path))

    def _manifest(self) -> manifests.Manifest | None:
        path = Path(self.path) / manifests.NAME
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        return manifests.decode(content, str(path))

    def _batches(self, wanted: Iterable[ReadItem]) -> Iterator[list[ReadItem]]:
        stored = self.storage_data
        ordered = sorted(wanted, key=lambda item: stored[item.storage_index].offset)
        return in_batches(ordered, lambda item: stored[item.storage_index].length, AT_ONCE_BYTES)

    def _verified(
        self, manifest: manifests.Manifest, name: str, wanted: Iterable[ReadItem]
    ) -> list[bytearray]:
        path = f"{self.path}/{name}"
        file = manifest.files.get(name)
        if file is None:
            raise DamagedCheckpointError(f"{path}: the manifest does not know this file", path)
        contents, pieces = [], []
        for item in wanted:
            place = self.storage_data[item.storage_index]
            contents.append(bytearray(place.length))
            pieces.append(Piece(place.offset, memoryview(contents[-1])))
        try:
            read_verified(
                lambda: DirectReader(path),
                file,
                manifest.block_bytes,
                pieces,
                THREADS,
                lambda _: None,
            )
        except DamagedBlock as damage:
            raise self._damaged(path, name, damage.block, manifest.block_bytes) from None
        except ValueError as error:
            raise DamagedCheckpointError(f"{path}: {error}", path) from error
        return contents

    def _damaged(self, path: str, name: str, block: int, size: int) -> DamagedCheckpointError:
        start, end = block * size, (block + 1) * size
        names = [
            index.fqn
            for index, place in self.storage_data.items()
            if place.relative_path == name
            and place.offset < end
            and place.offset + place.length > start
        ]
        return DamagedCheckpointError(
            f"{path}: block {block} is damaged or missing: {', '.join(names)}", path, names, block
        )


def _fill(planner: LoadPlanner, item: ReadItem, content: bytearray, path: str) -> None:
    loaded = load_object(content, item.storage_index.fqn, path)
    if item.type == LoadItemType.BYTE_IO:
        # Planners read it once more, without being particular: here it was found to be harmless.
        planner.load_bytes(item, io.BytesIO(content))
        return
    part = tuple(
        slice(at, at + length)
        for at, length in zip(item.storage_offsets, item.lengths, strict=True)
    )
    tensor = loaded[part]
    target = planner.resolve_tensor(item).detach()
    if target.size() != tensor.size():
        raise DamagedCheckpointError(
            f"{path}: {item.storage_index.fqn} is {tuple(tensor.size())} and not"
            f" {tuple(target.size())}",
            path,
        )
    target.copy_(tensor)
    planner.commit_tensor(item, target)


def _key(path: str | os.PathLike[str]) -> str:
    return str(Path(path).absolute())
