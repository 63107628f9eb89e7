"""From a checkpoint to files of safetensors, as Transformers and others load them.

A file of safetensors is a length of 8 bytes, a header of JSON with dtype, shape and place of each
tensor, and then the tensors, one after the other without gaps.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.checkpointing.content import batches, is_ordinary
from undaunted.checkpointing.errors import CheckpointError
from undaunted.checkpointing.files import durable
from undaunted.checkpointing.files.direct import file_mode, folder_mode
from undaunted.checkpointing.format.image import DTYPES
from undaunted.checkpointing.memory.copy import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from undaunted.checkpointing.content import Contents, TensorEntry

SHARD_BYTES = 5_000_000_000  # as Transformers has it
INDEX = "model.safetensors.index.json"

_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
}  # fmt: skip
_ALIGNMENT = 8
_AT_ONCE_BYTES = 16 << 20  # in one call
_SYNCED_BYTES = 256 << 20
_MOST_HEADER_BYTES = 100_000_000  # readers refuse more


class Exported(NamedTuple):
    """The files that were written.

    Attributes:
        files: names of the files with tensors.
        tensors: how many.
        size: bytes of these.
        left_out: names of objects under the prefix, which such files cannot have.
    """

    files: list[str]
    tensors: int
    size: int
    left_out: list[str]


class ExportSelection(NamedTuple):
    """The tensors that are going to be written, by their new names."""

    tensors: dict[str, TensorEntry]
    left_out: list[str]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(one.size for one in self.tensors.values())


def select(contents: Contents, prefix: str) -> ExportSelection:
    """Return what lies under a prefix, which the new names do not have any more.

    Raises:
        CheckpointError: nothing does, or a tensor is of a dtype that safetensors does not know.
    """
    found = {
        one.name.removeprefix(prefix): one
        for one in contents.tensors
        if one.name.startswith(prefix) and one.name != prefix
    }
    if not found:
        tops = dict.fromkeys(one.name.partition(".")[0] for one in contents.tensors)
        there = ", ".join(f"{top}." for top in tops) or "no tensors at all"
        raise CheckpointError(
            f"{contents.path}: no tensor has a name that begins with {prefix!r} and goes on; give "
            f"another --prefix. There are {there}"
        )
    for one in found.values():
        if one.dtype not in _DTYPES:
            raise CheckpointError(
                f"{contents.path}: {one.name} is {one.dtype}, which safetensors does not have; "
                "narrow the --prefix"
            )
    left_out = [one.name for one in contents.objects if one.name.startswith(prefix)]
    return ExportSelection(found, left_out)


def export(
    contents: Contents,
    selection: ExportSelection,
    folder: str,
    shard_bytes: int = SHARD_BYTES,
    wrote: Callable[[int], None] = lambda _: None,
) -> Exported:
    """Write tensors to a new folder, which is there with all its files or not at all.

    Args:
        contents: of the checkpoint.
        selection: what of it.
        folder: does not exist yet, or is empty.
        shard_bytes: of tensors in one file, at most; a larger tensor has a file of its own.
        wrote: called with the number of bytes; what it raises ends the export.

    Raises:
        CheckpointError: a tensor cannot be read, or has no plain values.
        OSError: with the path; nothing is left.
    """
    if "://" in folder:
        raise OSError(errno.EINVAL, "name a folder of this machine, not a URL", folder)
    target = os.path.abspath(folder)  # noqa: PTH100 - no links are followed
    _check_target(target)
    above, name = os.path.split(target)
    durable.make_folder(above)
    _sweep(above, name)
    with _Attempt(above, name) as attempt:
        free = os.statvfs(attempt.path)
        if free.f_bavail * free.f_frsize < selection.size:
            missing = selection.size - free.f_bavail * free.f_frsize
            raise OSError(
                errno.ENOSPC, f"{selection.size} bytes are needed, {missing} too many", above
            )
        shards = list(_shards(selection.tensors, shard_bytes))
        files = {}
        for number, shard in enumerate(shards, start=1):
            file = "model.safetensors"
            if len(shards) > 1:
                file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            _write_shard(f"{attempt.path}/{file}", contents, shard, wrote)
            files[file] = shard
        index = {
            "metadata": {"total_size": selection.size},
            "weight_map": {name: file for file, shard in files.items() for name in shard},
        }
        body = msgspec.json.format(msgspec.json.encode(index), indent=2)
        durable.write_file(f"{attempt.path}/{INDEX}", body + b"\n")
        durable.sync_folder(attempt.path)
        attempt.commit(target)
    return Exported(list(files), len(selection.tensors), selection.size, selection.left_out)


def _check_target(target: str) -> None:
    try:
        if os.listdir(target):
            raise FileExistsError(errno.EEXIST, "there are files in it: name a new folder", target)
    except FileNotFoundError:
        pass


class _Attempt:
    """A folder beside the one that it becomes, gone if it does not.

    Its descriptor holds a lock, so that others see whether it is still being written.
    """

    def __init__(self, above: str, name: str) -> None:
        self._above = above
        self.path = f"{above}/{_beginning(name)}{os.urandom(8).hex()}"
        self._fd = -1

    def __enter__(self) -> Self:
        os.mkdir(self.path, folder_mode())  # noqa: PTH102 - as in `durable`
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # there are no locks
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self

    def commit(self, target: str) -> None:
        try:
            os.rename(self.path, target)  # noqa: PTH104 - as in `durable`
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                said = "somebody has made it meanwhile: name a new folder"
                raise OSError(error.errno, said, target) from error
            raise
        durable.sync_folder(self._above)

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        with contextlib.suppress(OSError):
            durable.remove_tree(self.path)


def _beginning(name: str) -> str:
    return f".{name[:200]}.export-"


def _sweep(above: str, name: str) -> None:
    """Remove what exports to the same folder have left that were killed."""
    for entry in list(Path(above).glob("*")):
        if not entry.name.startswith(_beginning(name)):
            continue
        with contextlib.suppress(OSError):
            fd = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                durable.remove_tree(str(entry))
            finally:
                os.close(fd)


def _shards(tensors: dict[str, TensorEntry], most_bytes: int) -> Iterator[dict[str, TensorEntry]]:
    """Divide tensors in their order; in a file, those with longer elements come first.

    So each begins at a multiple of the length of its elements, although there are no gaps.
    """
    shard: dict[str, TensorEntry] = {}
    size = 0
    for name, one in tensors.items():
        if shard and size + one.size > most_bytes:
            yield _ordered(shard)
            shard, size = {}, 0
        shard[name] = one
        size += one.size
    yield _ordered(shard)


def _ordered(shard: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    return dict(sorted(shard.items(), key=lambda item: -DTYPES[item[1].dtype][0]))


def _header(shard: dict[str, TensorEntry], path: str) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, one in shard.items():
        header[name] = {
            "dtype": _DTYPES[one.dtype],
            "shape": one.shape,
            "data_offsets": (at, at + one.size),
        }
        at += one.size
    body = msgspec.json.encode(header)
    body += b" " * (-len(body) % _ALIGNMENT)
    if len(body) > _MOST_HEADER_BYTES:
        raise CheckpointError(
            f"{path}: {len(shard)} tensors are too many for one file; give a smaller --shard-size"
        )
    return struct.pack("<Q", len(body)) + body


def _write_shard(
    path: str, contents: Contents, shard: dict[str, TensorEntry], wrote: Callable[[int], None]
) -> None:
    new_names = {one.name: name for name, one in shard.items()}
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, file_mode())
    try:
        try:
            _write(fd, memoryview(_header(shard, path)), lambda _: None)
            for batch in batches(shard.values()):
                names = [one.name for one in batch]
                values = contents.read(names)
                for one in batch:
                    value = values.pop(one.name)
                    if not is_ordinary(value) or value.nbytes != one.size:
                        kind = type(value).__name__
                        raise CheckpointError(
                            f"{contents.path}: {new_names[one.name]} is no tensor of plain values "
                            f"({kind}, {value.layout}), which safetensors cannot have"
                        )
                    _write(fd, memory_of(value), wrote)
            os.fsync(fd)
        except OSError as error:
            if error.filename is not None:
                raise
            raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(fd)


def _write(fd: int, content: memoryview, wrote: Callable[[int], None]) -> None:
    """Write all; a part of it is synced at a time, as the sync at the end would take minutes."""
    unsynced = 0
    while content:
        done = os.write(fd, content[:_AT_ONCE_BYTES])
        unsynced += done
        if unsynced >= _SYNCED_BYTES:
            os.fdatasync(fd)
            unsynced = 0
        wrote(done)
        content = content[done:]
