"""Index files of shards: made once, checked, kept beside them. Design: docs/design/data.md."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import struct
import threading
import time
import uuid
import zlib
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.shown import Shown
from undaunted.base.text import count, format_duration
from undaunted.data.formats import Index, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.data.formats import Advance, Format

_log = logging.getLogger("undaunted")
_THREADS = 8
_FOLDER = ".undaunted"
# Version and format; checksums of the rest of the header, and of the offsets; size (bytes) and time
# of change (ns) of the shard; samples; offsets; digest. Byte order of the machine: on another one
# it is damaged.
_HEADER = struct.Struct("=8sIIQqQQ16s")
_CHECKED = 12  # where the part begins that the first checksum is of


class Header(NamedTuple):
    """The facts of an index file about its shard; see `Index`."""

    kind: bytes
    offsets_checksum: int
    size: int
    changed_ns: int
    samples: int
    offsets: int
    digest: bytes

    def is_of(self, status: os.stat_result) -> bool:
        """Return whether the shard is as it was when it was indexed."""
        return (self.size, self.changed_ns) == (status.st_size, status.st_mtime_ns)


class Indexer:
    """Finds the index of a shard, or makes it."""

    def __init__(self, kind: str, form: Format, folder: str | os.PathLike[str] | None) -> None:
        """Prepare; nothing is read.

        Args:
            kind: name of the format.
            form: how shards are looked through.
            folder: for index files; None = beside the shards, or else below the user's cache.
        """
        self._kind = b"UDX1" + kind.encode()[:4].ljust(4, b"\0")
        self._format = form
        self._folder = None if folder is None else Path(folder)

    def headers(self, paths: Sequence[str]) -> list[Header]:
        """Return what is known of shards; those without an index get one.

        Raises:
            ShardError: a shard is missing or damaged, or no index file can be written.
        """
        rank, ranks = _place()
        with ThreadPoolExecutor(_THREADS, "undaunted-index") as pool:
            found = list(pool.map(self._found, paths))
        missing = [number for number, (header, _) in enumerate(found) if header is None]
        headers = [header for header, _ in found]
        changed = [number for number, (_, changed) in enumerate(found) if changed]
        if changed and rank == 0:
            _log.warning(
                "%s changed after being indexed, such as %s: indexing again",
                count(len(changed), "shard"),
                paths[changed[0]],
            )
        # Ranks that do this at once begin in different places, and skip what others have done.
        turned = rank * len(missing) // ranks
        for number, header in self._make_all(paths, missing[turned:] + missing[:turned], rank):
            headers[number] = header
        return [header for header in headers if header is not None]

    def index(self, path: str) -> Index:
        """Return the index of a shard; its offsets are mapped, not read.

        Raises:
            ShardError: as for `headers`.
        """
        for again in (False, True):
            status = _status(path)
            for file in self._files(path):
                with contextlib.suppress(OSError):
                    if (found := self._mapped(file, status)) is not None:
                        return found
            if not again:
                self._make(path, lambda _: None)
        raise ShardError(f"the index of {path} is damaged each time it is made: is the disk full?")

    def _make_all(
        self, paths: Sequence[str], missing: list[int], rank: int
    ) -> list[tuple[int, Header]]:
        if not missing:
            return []
        stopped = threading.Event()
        began = time.monotonic()
        made: list[tuple[int, Header]] = []
        with Shown(f"indexing {count(len(missing), 'shard')}", rank) as shown:
            shown.expect(sum(_status(paths[number]).st_size for number in missing))

            def advance(size: int) -> None:
                if stopped.is_set():
                    raise ShardError("indexing was stopped")
                shown.advance(size)

            def make(number: int) -> tuple[int, Header]:
                header, _ = self._found(paths[number])  # another rank may have made it
                if header is None:
                    return number, self._make(paths[number], advance)
                shown.advance(header.size)
                return number, header

            pool = ThreadPoolExecutor(_THREADS, "undaunted-index")
            try:
                made = list(pool.map(make, missing))
            finally:
                stopped.set()
                pool.shutdown(cancel_futures=True)
        if rank == 0:
            _log.info(
                "indexed %s in %s",
                count(len(made), "shard"),
                format_duration(time.monotonic() - began),
            )
            for number, header in made:
                if not header.samples:
                    _log.warning("%s has no samples", paths[number])
        return made

    def _found(self, path: str) -> tuple[Header | None, bool]:
        """Return the header of a valid index, and whether there is one of an older shard."""
        status, changed = _status(path), False
        for file in self._files(path):
            with contextlib.suppress(OSError), file.open("rb") as opened:
                header = self._header(opened.read(_HEADER.size), os.fstat(opened.fileno()).st_size)
                if header is not None and header.is_of(status):
                    return header, False
                changed |= header is not None
        return None, changed

    def _header(self, read: bytes, size: int) -> Header | None:
        """Return the header of an index file of a size in bytes, if it is whole."""
        if len(read) < _HEADER.size:
            return None
        kind, checksum, *rest = _HEADER.unpack(read)
        header = Header(kind, *rest)
        if kind != self._kind or checksum != zlib.crc32(read[_CHECKED:]):
            return None
        return header if size == _HEADER.size + 8 * header.offsets else None

    def _mapped(self, file: Path, status: os.stat_result) -> Index | None:
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        header = self._header(mapped[: _HEADER.size], len(mapped))
        offsets = memoryview(mapped)[_HEADER.size :]
        if header is None or not header.is_of(status):
            return None
        if zlib.crc32(offsets) != header.offsets_checksum:
            return None
        return Index(header.samples, header.digest, offsets.cast("Q"))

    def _make(self, path: str, advance: Advance) -> Header:
        status = _status(path)
        try:
            found = self._format.index(path, advance)
        except OSError as error:
            raise ShardError(f"{path} cannot be read: {error.strerror or error}") from None
        offsets = array("Q", found.starts).tobytes()
        header = Header(
            self._kind,
            zlib.crc32(offsets),
            status.st_size,
            status.st_mtime_ns,
            found.samples,
            len(found.starts),
            found.digest,
        )
        if not header.is_of(_status(path)):
            raise ShardError(f"{path} changed while it was indexed: wait until it is written")
        checked = _HEADER.pack(header.kind, 0, *header[1:])[_CHECKED:]
        self._write(path, header.kind + struct.pack("=I", zlib.crc32(checked)) + checked + offsets)
        return header

    def _write(self, path: str, content: bytes) -> None:
        """Rename a whole file into place, where that is possible."""
        errors = []
        for file in self._files(path):
            beside = file.with_name(f".{uuid.uuid4().hex}")
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                try:
                    beside.write_bytes(content)
                    beside.replace(file)
                finally:
                    beside.unlink(missing_ok=True)
            except OSError as error:
                errors.append(f"  {file.parent}: {error.strerror}")
            else:
                return
        raise ShardError(
            f"the index of {path} can be written nowhere; give Shards another folder (index=)\n"
            + "\n".join(errors)
        )

    def _files(self, path: str) -> Iterator[Path]:
        """Yield where the index of a shard may be."""
        folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 - links stay
        if self._folder is None:
            yield Path(folder, _FOLDER, f"{name}.index")
        own = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        yield (self._folder or cache / "undaunted" / "index") / own / f"{name}.index"


def _status(path: str) -> os.stat_result:
    try:
        return Path(path).stat()
    except OSError as error:
        raise ShardError(
            f"shard {path} is missing or out of reach: {error.strerror}\n  put it back, or make "
            "Shards of the others (then the data are others, and a saved state is refused)"
        ) from None


def _place() -> tuple[int, int]:
    """Return rank and number of ranks, as the launcher says."""
    try:
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
    return (rank, ranks) if 0 <= rank < ranks else (0, 1)
