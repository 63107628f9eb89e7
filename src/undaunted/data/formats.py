"""The index of shards of each format, and their reading. Design: docs/design/data.md."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from array import array
from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Advance = Callable[[int], None]
    """Is called with the number of bytes done since the last call."""

_NEWS = 4 << 20  # bytes after which `Advance` is called
_LONGEST_LINE = 256 << 20
_BLOCK = 512  # of a tar
_LONGEST_HEADER = 1 << 20  # long names in a tar
_SUFFIXES = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
_BEGINNINGS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
}


class ShardError(Exception):
    """A shard cannot be used: it is missing, damaged, or another than before."""


class Index(NamedTuple):
    """The places of the samples of a shard.

    Attributes:
        samples: how many it has.
        digest: 16 bytes that depend on its content, or on names and sizes in it.
        starts: offset of each sample and of the end, in bytes; none if the format has its own.
    """

    samples: int
    digest: bytes
    starts: Sequence[int]


class Reader(Protocol):
    """A shard that is open."""

    def sample(self, number: int) -> Any:
        """Return a sample, counted from 0."""

    def close(self) -> None:
        """Close the file."""


class Format(Protocol):
    """A kind of shards."""

    def index(self, path: str, advance: Advance) -> Index:
        """Look through a shard."""

    def open(self, path: str, starts: Sequence[int]) -> Reader:
        """Open a shard for reading."""


def refuse_compressed(path: str, beginning: bytes = b"") -> None:
    """Raise `ShardError` if the name or the first bytes are those of a compressed file."""
    kind = _SUFFIXES.get(Path(path).suffix.lower()) or next(
        (kind for begins, kind in _BEGINNINGS.items() if beginning.startswith(begins)), None
    )
    if kind is not None:
        raise ShardError(
            f"{path} is compressed by {kind}, which has no random access\n"
            "  decompress the shards once, or write them as Parquet, which is compressed and has it"
        )


class File:
    """A file that is read at offsets; opened when it is first read."""

    def __init__(self, path: str) -> None:
        """Open nothing yet."""
        self.path = path
        self._fd: int | None = None

    def read(self, at: int, size: int) -> bytearray:
        """Return bytes from an offset on.

        Raises:
            ShardError: it is missing, or ends before.
        """
        if self._fd is None:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise ShardError(
                    f"{self.path} is out of reach: {error.strerror}\n  put it back as it was"
                ) from None
        found = bytearray(size)
        done = 0
        while done < size:
            count = os.preadv(self._fd, [memoryview(found)[done:]], at + done)
            if not count:
                raise ShardError(
                    f"{self.path} ends at byte {os.fstat(self._fd).st_size}, before {at + size}: "
                    "it was cut short under the job\n  put it back as it was"
                )
            done += count
        return found

    def close(self) -> None:
        """Close it; reading opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        """Close it."""
        self.close()

    def __reduce__(self) -> tuple[type[File], tuple[str]]:
        """Be opened anew in a process that gets it."""
        return File, (self.path,)


class _Slices:
    """A shard whose samples are slices of it."""

    def __init__(
        self, path: str, starts: Sequence[int], decode: Callable[[bytearray, str, int, int], Any]
    ) -> None:
        self._file = File(path)
        self._starts = starts
        self._decode = decode

    def sample(self, number: int) -> Any:
        start, end = self._starts[number], self._starts[number + 1]
        return self._decode(self._file.read(start, end - start), self._file.path, number, start)

    def close(self) -> None:
        self._file.close()


# --- JSON lines -----------------------------------------------------------------------------------


class JsonLines:
    """A line is a sample; empty ones do not count."""

    def index(self, path: str, advance: Advance) -> Index:
        """Find the lines. Only the last one is decoded, if it has no end."""
        starts, checksum, at, told, line = array("Q"), 0, 0, 0, b""
        with Path(path).open("rb") as file:
            refuse_compressed(path, file.peek(8))
            for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
                if len(line) == _LONGEST_LINE:
                    raise ShardError(
                        f"{path} has a line of more than {_LONGEST_LINE >> 20} MiB at byte {at}: "
                        "these are no JSON lines"
                    )
                if not line.isspace():
                    starts.append(at)
                checksum = zlib.crc32(line, checksum)
                at += len(line)
                if at - told >= _NEWS:
                    advance(at - told)
                    told = at
        advance(at - told)
        count = len(starts)
        if line and not line.endswith(b"\n") and not line.isspace():
            _check_last(line, path, count - 1)
        starts.append(at)
        digest = hashlib.blake2b(f"{checksum} {at} {count}".encode(), digest_size=16).digest()
        return Index(count, digest, starts)

    def open(self, path: str, starts: Sequence[int]) -> Reader:
        """Open it."""
        return _Slices(path, starts, _from_json)


def _check_last(line: bytes, path: str, number: int) -> None:
    try:
        json.loads(line)
    except ValueError:
        raise ShardError(
            f"{path} ends within a line, sample {number}: it was cut short\n"
            "  copy or write it again, or remove that line"
        ) from None


def _from_json(line: bytearray, path: str, number: int, _: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ShardError(
            f"sample {number} of {path} is no JSON: {error}\n  it begins with "
            f"{bytes(line[:60])!r}; repair or remove that line (then the data are others, and a "
            "saved state is refused)"
        ) from None


# --- tar ------------------------------------------------------------------------------------------


class Tar:
    """Members of one name up to the first dot, one after the other, are a sample."""

    def index(self, path: str, advance: Advance) -> Index:
        """Look at the headers, and check that nothing is missing."""
        starts, digest = array("Q"), hashlib.blake2b(digest_size=16)
        key, fields, seen, told = "", set[str](), set[str](), 0
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            refuse_compressed(path, file.peek(8))
            members = _Members(path, size, lambda at, count: _seek_and_read(file, at, count))
            for name, at, start, length in members:
                digest.update(f"{length} {name}\n".encode(errors="surrogateescape"))
                if (parts := _key_and_field(name)) is None:
                    continue
                if parts[0] != key:
                    key, fields = parts[0], set()
                    if key in seen:
                        raise ShardError(
                            f"{path} has members of {key!r} in two places; one is sample "
                            f"{len(starts)}\n  members of a sample must follow one another: "
                            "make the shard again, with tar --sort=name"
                        )
                    seen.add(key)
                    starts.append(at)
                if parts[1] in fields:
                    raise ShardError(
                        f"{path} has {name!r} twice, in sample {len(starts) - 1}\n  make the "
                        "shard again, with another name for each sample"
                    )
                fields.add(parts[1])
                if start - told >= _NEWS:
                    advance(start - told)
                    told = start
        advance(size - told)
        count = len(starts)
        starts.append(members.end)
        return Index(count, digest.digest(), starts)

    def open(self, path: str, starts: Sequence[int]) -> Reader:
        """Open it."""
        return _Slices(path, starts, _from_members)


def _seek_and_read(file: Any, at: int, count: int) -> bytes:
    file.seek(at)
    found: bytes = file.read(count)
    return found


def _key_and_field(name: str) -> tuple[str, str] | None:
    """Return the key of a sample and the name of its part; None for what is no part of one."""
    folder, slash, base = name.rpartition("/")
    key, dot, field = base.partition(".")
    if not key or not dot or (key.startswith("__") and key.endswith("__")):
        return None
    return folder + slash + key, field.lower()


def _from_members(found: bytearray, path: str, number: int, begin: int) -> dict[str, Any]:
    sample: dict[str, Any] = {}
    view = memoryview(found)

    def read(at: int, size: int) -> bytes:
        return bytes(view[at : at + size])

    try:
        for name, _, start, length in _Members(path, len(found), read, begin=begin):
            if (parts := _key_and_field(name)) is not None:
                sample["__key__"] = parts[0]
                sample[parts[1]] = read(start, length)
    except ShardError as error:
        raise ShardError(f"sample {number} of {error}") from None
    if not sample:
        raise ShardError(f"sample {number} of {path} has no members: the shard was changed")
    return sample


class _Members:
    """Name, offsets of header and content, and size of each regular file in a tar.

    Attributes:
        end: where the last of them ends.
    """

    def __init__(
        self, path: str, size: int, read: Callable[[int, int], bytes], *, begin: int | None = None
    ) -> None:
        """``begin`` = these bytes are some members from there on, without the end mark of a tar."""
        self.end = 0
        self._path = path
        self._size = size
        self._read = read
        self._part = begin is not None
        self._begin = begin or 0

    def __iter__(self) -> Iterator[tuple[str, int, int, int]]:
        at, ended = 0, self._part
        first: int | None = None  # of the headers that belong to the next member
        name: str | None = None  # from a header before, as the size is
        size: int | None = None
        while at < self._size:
            block = self._read(at, _BLOCK)
            if not any(block):
                at, ended = at + _BLOCK, True
                continue
            header = self._header(block, at, name)
            start = at + _BLOCK
            if header.kind in b"xgLK":
                length = header.size
                if length > _LONGEST_HEADER:
                    raise self._damaged(at, name, "has a header of more than 1 MiB")
                content = self._content(start, length, at, header.name)
                if header.kind == b"L":
                    name = _text(content)
                elif header.kind == b"x":
                    name, size = _extended(content, name, size)
                first = at if first is None else first
            else:
                length = self._length(header, size, at, name)
                full = header.name if name is None else name
                if start + length > self._size:
                    end = self._begin + self._size
                    raise self._damaged(at, full, f"ends after {end} bytes, within it")
                if header.kind in b"0\x007":
                    self.end = start + -(-length // _BLOCK) * _BLOCK
                    yield full, at if first is None else first, start, length
                first = name = size = None
            at, ended = start + -(-length // _BLOCK) * _BLOCK, self._part
        if not ended:
            raise ShardError(
                f"{self._path} has no end mark, so it was cut short, after byte {self.end}\n"
                "  copy or write it again; if it is whole, add the mark: "
                f"head -c 1024 /dev/zero >> {self._path}"
            )

    def _header(self, block: bytes, at: int, name: str | None) -> _Header:
        if len(block) < _BLOCK:
            raise self._damaged(at, name, "is cut short there")
        try:
            checksum = _number(block[148:156])
        except ValueError:
            checksum = -1
        if checksum != sum(block) - sum(block[148:156]) + 8 * ord(" "):
            raise self._damaged(at, name, "has no header of a tar there")
        own = _text(block[:100])
        if block[257:263] == b"ustar\0" and block[345]:
            own = f"{_text(block[345:500])}/{own}"
        try:
            return _Header(own, _number(block[124:136]), block[156:157])
        except ValueError:
            raise self._damaged(at, own, "has a size that is no number") from None

    def _length(self, header: _Header, size: int | None, at: int, name: str | None) -> int:
        if header.kind in b"12" and _key_and_field(name or header.name) is not None:
            raise self._damaged(
                at,
                name or header.name,
                "has a link there; use tar --dereference --hard-dereference",
            )
        if header.kind == b"S":
            raise self._damaged(at, name or header.name, "has a sparse file; leave out --sparse")
        if header.kind in b"123456":
            return 0
        return header.size if size is None else size

    def _content(self, start: int, length: int, at: int, name: str) -> bytes:
        content = self._read(start, length)
        if len(content) < length:
            raise self._damaged(at, name, "is cut short there")
        return content

    def _damaged(self, at: int, name: str | None, what: str) -> ShardError:
        member = "" if name is None else f" (member {name!r})"
        return ShardError(
            f"{self._path} {what}: byte {self._begin + at}{member}\n  copy or write this shard "
            "again, or leave it out"
        )


class _Header(NamedTuple):
    name: str
    size: int
    kind: bytes


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode(errors="surrogateescape")


def _number(field: bytes) -> int:
    """Return a number in octal digits, or in binary after a first bit that is set."""
    if field[0] & 0x80:
        return int.from_bytes(field) & ((1 << (8 * len(field) - 1)) - 1)
    return int(field.split(b"\0", 1)[0].strip() or b"0", 8)


def _extended(content: bytes, name: str | None, size: int | None) -> tuple[str | None, int | None]:
    """Return name and size from records ``LENGTH KEY=VALUE`` of a header of POSIX's pax."""
    at = 0
    while at < len(content):
        digits, space, _ = content[at : at + 20].partition(b" ")
        if not space or not digits.isdigit() or int(digits) < len(digits) + 2:
            break
        record = content[at + len(digits) + 1 : at + int(digits) - 1]
        key, _, value = record.partition(b"=")
        if key == b"path":
            name = value.decode(errors="surrogateescape")
        elif key == b"size" and value.isdigit():
            size = int(value)
        at += int(digits)
    return name, size


# --- Parquet --------------------------------------------------------------------------------------


class Parquet:
    """A row is a sample: a dictionary. Needs pyarrow."""

    def __init__(self, columns: Sequence[str] | None, memory: int) -> None:
        """Args: those that are read, None = all; how many bytes of row groups are kept decoded."""
        self._columns = None if columns is None else list(columns)
        self._groups = _Groups(memory)

    def index(self, path: str, advance: Advance) -> Index:
        """Read the footer."""
        file = _parquet(path)
        with file:
            metadata = file.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            content = (
                str(file.schema_arrow.remove_metadata()),
                [(group.num_rows, group.total_byte_size) for group in groups],
            )
        advance(Path(path).stat().st_size)
        digest = hashlib.blake2b(repr(content).encode(), digest_size=16).digest()
        return Index(metadata.num_rows, digest, ())

    def open(self, path: str, starts: Sequence[int]) -> Reader:  # noqa: ARG002 - of the interface
        """Open it."""
        return _Rows(path, self._columns, self._groups)


class _Groups:
    """Row groups that are decoded, the latest ones up to a number of bytes, and always one."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._tables: OrderedDict[tuple[str, int], tuple[Any, int]] = OrderedDict()
        self._size = 0

    def table(self, path: str, number: int, decode: Callable[[int], Any]) -> Any:
        if (found := self._tables.get((path, number))) is not None:
            self._tables.move_to_end((path, number))
            return found[0]
        import pyarrow as pa

        before = pa.total_allocated_bytes()
        table = decode(number)
        # Buffers take more than what is in them.
        size = max(table.nbytes, pa.total_allocated_bytes() - before)
        self._tables[path, number] = table, size
        self._size += size
        while self._size > self._memory and len(self._tables) > 1:
            self._size -= self._tables.popitem(last=False)[1][1]
        return table

    def __getstate__(self) -> dict[str, Any]:  # for workers that are spawned
        return {"_memory": self._memory, "_tables": OrderedDict(), "_size": 0}


class _Rows:
    def __init__(self, path: str, columns: list[str] | None, groups: _Groups) -> None:
        self._path = path
        self._columns = columns
        self._groups = groups
        self._file = _parquet(path)
        names = set(self._file.schema_arrow.names)
        if missing := [one for one in columns or () if one.split(".")[0] not in names]:
            raise ShardError(f"{path} has no column {missing[0]!r}, but {', '.join(sorted(names))}")
        metadata = self._file.metadata
        sizes = (metadata.row_group(one).num_rows for one in range(metadata.num_row_groups))
        self._starts = [0, *accumulate(sizes)]

    def sample(self, number: int) -> Any:
        group = bisect_right(self._starts, number) - 1
        table = self._groups.table(self._path, group, self._decode)
        return table.slice(number - self._starts[group], 1).to_pylist()[0]

    def _decode(self, number: int) -> Any:
        import pyarrow as pa

        try:
            # Without threads: they would not live on in a worker that is forked.
            return self._file.read_row_group(number, columns=self._columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise ShardError(
                f"row group {number} of {self._path} cannot be read: {error}\n"
                "  copy or write this shard again, or leave it out"
            ) from None

    def close(self) -> None:
        self._file.close()


def _parquet(path: str) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ShardError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        return pq.ParquetFile(path)
    except pa.ArrowException as error:
        raise ShardError(
            f"{path} is no whole Parquet file: {error}\n  copy or write it again, or leave it out"
        ) from None


FORMATS = {".tar": "tar", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""Format of a file by how its name ends."""
