"""Where the bytes of a checkpoint come from: one of ours, or a folder that torch has written."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.files.reading import DamagedBlock, Unreadable, Wanted, read_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from undaunted.checkpointing.files.reading import Piece
    from undaunted.checkpointing.files.storage import Readable
    from undaunted.checkpointing.format.manifest import File, Manifest


class Source(Protocol):
    """The files of one checkpoint.

    Attributes:
        path: of the checkpoint.
        framed: whether tensors have the frames of our format.
        block_bytes: of what has one checksum.
    """

    path: str
    framed: bool
    block_bytes: int

    def size(self, file: str) -> int:
        """Return how long a file is; a DamagedCheckpointError when it is not there."""

    def read(self, pieces: Mapping[str, Sequence[Piece]], shared: Collection[str] = ()) -> None:
        """Fill all destinations.

        Args:
            pieces: by file, relative to the checkpoint.
            shared: the files of which other ranks of this machine read most of the same.

        Raises:
            DamagedCheckpointError: that cannot be done, or the content is wrong; the names of
                tensors are not known here.
            OSError: something else is wrong with the storage.
        """


class Verified:
    """A checkpoint of our own: every block is checked. See `Source`."""

    framed = True

    def __init__(
        self, storage: Readable, manifest: Manifest, threads: int, progress: Callable[[int], None]
    ) -> None:
        """Nothing is opened yet."""
        self.path = storage.locate(manifest.step)
        self.block_bytes = manifest.block_bytes
        self._storage = storage
        self._manifest = manifest
        self._threads = threads
        self._progress = progress

    def size(self, file: str) -> int:
        """See `Source.size`."""
        return self._listed(file).size

    def read(self, pieces: Mapping[str, Sequence[Piece]], shared: Collection[str] = ()) -> None:
        """See `Source.read`."""
        step, files = self._manifest.step, list(pieces)
        wanted = [
            Wanted(
                partial(self._storage.open, step, file, shared=file in shared),
                self._listed(file),
                pieces[file],
            )
            for file in files
        ]
        try:
            read_files(wanted, self.block_bytes, self._threads, self._progress)
        except DamagedBlock as damaged:
            file = files[damaged.file]
            path = f"{self.path}/{file}"
            start = damaged.block * self.block_bytes
            end = min(start + self.block_bytes, self._listed(file).size)
            raise DamagedCheckpointError(
                f"{path}: block {damaged.block} (bytes {start} to {end}) is not what was written",
                path,
                block=damaged.block,
            ) from damaged
        except Unreadable as failed:
            _raise_damage(failed.error, f"{self.path}/{files[failed.file]}")
            raise failed.error from None

    def _listed(self, file: str) -> File:
        listed = self._manifest.files.get(file)
        if listed is None:
            path = f"{self.path}/{file}"
            raise DamagedCheckpointError(f"{path} is not in the manifest", path)
        return listed


class Foreign:
    """A folder that ``torch.distributed.checkpoint`` has written: nothing can be checked."""

    framed = False
    block_bytes = 0

    def __init__(self, folder: str, progress: Callable[[int], None] = lambda _: None) -> None:
        """Nothing is opened yet."""
        self.path = folder
        self._progress = progress

    def size(self, file: str) -> int:
        """See `Source.size`."""
        path = self._place(file)
        try:
            return path.stat().st_size
        except OSError as error:
            _raise_damage(error, str(path))
            raise

    def read(self, pieces: Mapping[str, Sequence[Piece]], shared: Collection[str] = ()) -> None:  # noqa: ARG002
        """See `Source.read`; it goes through the page cache in any case."""
        for file, wanted in pieces.items():
            path = self._place(file)
            try:
                stream = path.open("rb")
            except (ValueError, OSError) as error:
                _raise_damage(error, str(path))
                raise
            with stream:
                for piece in wanted:
                    try:
                        complete = _filled(stream, piece)
                    except (ValueError, OSError) as error:
                        _raise_damage(error, str(path))
                        raise
                    if not complete:
                        raise DamagedCheckpointError(f"{path} is cut short", str(path))
                    self._progress(len(piece.destination))

    def _place(self, file: str) -> Path:
        path = Path(self.path, file)
        if path.parent != Path(self.path):
            raise DamagedCheckpointError(f"{path} is not in the checkpoint's folder", str(path))
        return path


def _filled(stream: BinaryIO, piece: Piece) -> bool:
    stream.seek(piece.offset)
    count: int = stream.readinto(piece.destination)  # type: ignore[attr-defined]
    return count == len(piece.destination)


def _raise_damage(error: ValueError | OSError, path: str) -> None:
    """Raise what is wrong with a file itself; other errors of a storage say nothing of it."""
    if isinstance(error, OSError) and error.errno not in (errno.ENOENT, errno.EIO):
        return
    raise DamagedCheckpointError(f"{path} cannot be read: {error}", path) from error
