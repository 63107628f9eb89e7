"""The files of local checkpoints on one node: names, listing, writing, reading, deleting.

``root/session/rank/iter_{iteration:07d}_{shard}_local.pt``: the folder is that of the rank that has
written the file, the number in the name is that of the rank whose state it is. All ranks of a node
read what any of them has written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.directories import make_private
from undaunted.base.machine import boot_id
from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.files.blocks import DEFAULTS, WriteOptions, write_image
from undaunted.checkpointing.files.direct import DirectReader
from undaunted.checkpointing.files.durable import sync_folder
from undaunted.checkpointing.files.reading import DamagedBlock, Piece, read_verified
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.format.manifest import File
from undaunted.checkpointing.local import shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from undaunted.checkpointing.local.shard import Head

_log = logging.getLogger("undaunted")
_NAME = re.compile(r"iter_([0-9]{7,20})_([0-9]{1,10})_local\.pt")
_TEMPORARY = re.compile(r"\.iter_[0-9]+_[0-9]+_local\.pt\.[0-9a-z]+\.tmp")
# What is not trusted, once another save has its iteration.
_DOUBTED = "doubted-"
_RANK = re.compile(r"[0-9]{1,10}")


class ShardFile(NamedTuple):
    """A file whose head and end are whole; its tensors were not read.

    Attributes:
        path: of it.
        head: what it says it is.
        prefix: its first bytes.
        head_bytes: length of prefix and head.
        image_bytes: length of the image.
        crc32: checksums of the image's blocks.
    """

    path: Path
    head: Head
    prefix: bytes
    head_bytes: int
    image_bytes: int
    crc32: str


def name_of(iteration: int, rank: int) -> str:
    """Return the name of the file of a rank's shard."""
    return f"iter_{iteration:07d}_{rank}_local.pt"


def iteration_of(path: Path) -> int:
    """Return the iteration of a file that is called as `name_of` calls it."""
    return int(path.name.split("_")[1])


class ShardFolder:
    """The files of one run on one node, and the folder of one rank in it."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        session: str,
        rank: int,
        options: WriteOptions = DEFAULTS,
    ) -> None:
        """Name the folders; nothing is touched.

        Args:
            root: on the node's own disk.
            session: name of the run; one part of a path, or nothing.
            rank: whose folder is written to.
            options: of writes.

        Raises:
            ValueError: the session is not a name.
        """
        check_session(session)
        self.session = Path(root).absolute() / session
        self.own = self.session / str(rank)
        self._options = options

    def write(
        self,
        memory: memoryview,
        size: int,
        head: Head,
        wrote: Callable[[int], None],
        expected: str | None = None,
    ) -> str:
        """Write a shard and make it durable; it appears under its name at once or not at all.

        Args:
            memory: with room up to the next multiple of 4096 behind the image.
            size: of the image.
            head: of it.
            wrote: called with the bytes of each block; what it raises ends the write.
            expected: the checksums it must have; None = whatever it has.

        Returns:
            The checksums of the blocks.

        Raises:
            OSError: with the path.
            DamagedCheckpointError: the checksums are not those that were expected.
        """
        make_private(self.own)
        path = self.own / name_of(head.iteration, head.rank)
        temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
        try:
            image = Image(temporary.name, 0, size)
            crc32 = write_image(
                str(temporary), memory, image, shard.BLOCK_BYTES, wrote, self._options
            )
            if expected not in (None, crc32):
                raise shard.damaged(str(path), f"the bytes of rank {head.rank} arrived changed")  # noqa: TRY301 - removed like the others
            self._append(
                temporary, shard.encode_trailer(crc32, bytes(memory[: shard.PREFIX_BYTES]))
            )
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        for folder in (self.own, self.session, self.session.parent):
            sync_folder(str(folder))
        return crc32

    def _append(self, path: Path, content: bytes) -> None:
        files = self._options.files
        fd = files.open(str(path), os.O_WRONLY | os.O_APPEND)
        try:
            while content:
                content = content[os.write(fd, content) :]
            files.sync(fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            files.close(fd)

    def scan(self, complain: Callable[[str], None] = _log.warning) -> list[ShardFile]:
        """Return all shards on this node whose head and end are whole.

        Args:
            complain: told what is left out and why.
        """
        return [file for path in self.paths() if (file := _look_if_whole(path, complain))]

    def delete(self, unwanted: Callable[[int], bool]) -> list[Path]:
        """Delete the shards in this rank's folder of all iterations that are not wanted.

        What cannot be deleted is logged, and stays.

        Returns:
            What was deleted.
        """
        return [path for path, iteration in self._own() if unwanted(iteration) and _removed(path)]

    def put_aside(self, iteration: int) -> None:
        """Give the shards of an iteration in this rank's folder a name by which they stay.

        Raises:
            OSError: they cannot be renamed.
        """
        for path, one in self._own():
            aside = path.with_name(f"{_DOUBTED}{path.name}")
            if one == iteration and not aside.exists():
                path.rename(aside)

    def delete_aside(self, unwanted: Callable[[int], bool], most: int) -> None:
        """Delete what was put aside: of iterations that are not wanted, and the oldest of many."""
        found: dict[int, list[Path]] = {}
        for entry in _entries(self.own):
            if _is_aside(entry.name):
                found.setdefault(iteration_of(Path(entry)), []).append(Path(entry))
        newest = sorted(found)[-most:]
        for iteration, paths in found.items():
            if iteration not in newest or unwanted(iteration):
                for path in paths:
                    _removed(path)

    def delete_old(self, oldest: int) -> list[Path]:
        """Delete all shards on this node of iterations before this one, whichever rank's they were.

        Returns:
            What was deleted.
        """
        old = [path for path in self.paths() if iteration_of(path) < oldest]
        return [path for path in old if _removed(path)]

    def sweep(self) -> list[Path]:
        """Delete what writes of this rank that were broken off have left; nobody else writes there.

        Returns:
            What was deleted.
        """
        left = [one for one in _entries(self.own) if _TEMPORARY.fullmatch(one.name)]
        return [Path(one) for one in left if _removed(Path(one))]

    def identity(self) -> str:
        """Return what is the same for two ranks only if they write to the same disk and folder."""
        make_private(self.session)
        status = self.session.stat()
        return f"{boot_id()}/{status.st_dev}/{status.st_ino}"

    def _own(self) -> Iterable[tuple[Path, int]]:
        for entry in _entries(self.own):
            match = _NAME.fullmatch(entry.name)
            if match:
                yield Path(entry), int(match[1])

    def paths(self) -> list[Path]:
        """Return the files on this node that are called like shards, sorted."""
        ranks = [entry for entry in _entries(self.session) if _RANK.fullmatch(entry.name)]
        return sorted(
            Path(entry) for rank in ranks for entry in _entries(rank) if _NAME.fullmatch(entry.name)
        )

    def aside(self) -> list[Path]:
        """Return the files on this node that `put_aside` has renamed, sorted."""
        ranks = [entry for entry in _entries(self.session) if _RANK.fullmatch(entry.name)]
        return sorted(Path(one) for rank in ranks for one in _entries(rank) if _is_aside(one.name))


def _is_aside(name: str) -> bool:
    return name.startswith(_DOUBTED) and _NAME.fullmatch(name.removeprefix(_DOUBTED)) is not None


def has_shards(session: Path) -> bool:
    """Return whether a folder is that of a run: a rank's folder in it has a shard."""
    ranks = [entry for entry in _entries(session) if _RANK.fullmatch(entry.name)]
    return any(_NAME.fullmatch(one.name) for rank in ranks for one in _entries(rank))


def check_session(session: str) -> None:
    """Refuse what is not one part of a path.

    Raises:
        ValueError: with the reason.
    """
    if session in (".", "..") or "/" in session or "\0" in session or len(session.encode()) > 200:
        raise ValueError(
            f"session_id {session!r} must be the name of a folder: no slashes, at most 200 bytes"
        )


def look(path: Path) -> ShardFile:
    """Read head and end of a file.

    Raises:
        DamagedCheckpointError: they are not whole, or belong to another file.
        OSError: it cannot be read.
    """
    where = str(path)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb", buffering=0) as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedCheckpointError(f"{where}: not a file", where)
        prefix = os.pread(fd, shard.PREFIX_BYTES, 0)
        head_bytes, image_bytes = shard.head_length(prefix, where)
        end_bytes = shard.trailer_bytes(image_bytes)
        if status.st_size != image_bytes + end_bytes:
            raise DamagedCheckpointError(
                f"{where}: has {status.st_size} bytes instead of {image_bytes + end_bytes}", where
            )
        head = shard.decode_head(_read_exactly(file.fileno(), head_bytes, 0), where)
        end = _read_exactly(fd, end_bytes, image_bytes)
    crc32 = shard.decode_trailer(end, prefix, where)
    if path.name != name_of(head.iteration, head.rank):
        raise DamagedCheckpointError(
            f"{where}: is the shard of rank {head.rank} at iteration {head.iteration}", where
        )
    return ShardFile(path, head, prefix, head_bytes, image_bytes, crc32)


def _look_if_whole(path: Path, complain: Callable[[str], None]) -> ShardFile | None:
    try:
        return look(path)
    except FileNotFoundError:
        return None  # deleted meanwhile
    except DamagedCheckpointError as error:
        complain(f"A local checkpoint is left out: {error}")
    except OSError as error:
        complain(f"A local checkpoint is left out: {path}: {error}")
    return None


def read(
    file: ShardFile, pieces: Sequence[Piece], threads: int, on_block: Callable[[int], None]
) -> None:
    """Fill pieces of memory from a file, and check every block that they are in.

    Raises:
        DamagedCheckpointError: with the indices of the tensors in the block.
        OSError: it cannot be read.
    """
    whole = File(size=file.image_bytes, crc32=file.crc32)
    try:
        read_verified(
            lambda: DirectReader(str(file.path)),
            whole,
            shard.BLOCK_BYTES,
            pieces,
            threads,
            on_block,
        )
    except DamagedBlock as error:
        names = tensors_in(file, error.block)
        raise DamagedCheckpointError(
            f"{file.path}: block {error.block} is damaged ({', '.join(names[:8]) or 'no tensor'})",
            str(file.path),
            names,
            error.block,
        ) from error


def tensors_in(file: ShardFile, block: int) -> list[str]:
    """Return what the tensors are called that have bytes in a block: their number in the state."""
    start = block * shard.BLOCK_BYTES - shard.data_offset(file.head_bytes)
    return [
        f"tensor {at}"
        for at, one in enumerate(file.head.tensors)
        if one.offset < start + shard.BLOCK_BYTES and one.offset + one.size > start
    ]


def pieces_of(file: ShardFile, tensors: Sequence[memoryview]) -> list[Piece]:
    """Return where the bytes of tensors come from; those that are empty, or tied, once or never."""
    start = shard.data_offset(file.head_bytes)
    places = {
        one.offset: Piece(start + one.offset, memory)
        for one, memory in zip(file.head.tensors, tensors, strict=True)
        if one.size
    }
    return list(places.values())


def _read_exactly(fd: int, count: int, offset: int) -> bytes:
    content = b""
    while len(content) < count:
        more = os.pread(fd, count - len(content), offset + len(content))
        if not more:
            break  # noticed by its checksum
        content += more
    return content


def _entries(folder: os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _removed(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("A file that is not needed any more stays: %s", error)
        return False
    return True
