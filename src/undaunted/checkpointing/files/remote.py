"""Calls of an object store, and uploads: they end in time; an OSError names the object."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import errno
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.checkpointing.files.sharing import share
from undaunted.checkpointing.format.manifest import crc32, crc32_of_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


# What the clients offer against waiting for ever. A user's own settings of fsspec come first.
_SETTINGS: Mapping[str, dict[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": 10,
            "read_timeout": 30,
            "retries": {"total_max_attempts": 1},  # s3fs itself tries again
        }
    },
    "gs": {"timeout": 30},
    "file": {"auto_mkdir": True},
}
_WITH_BUCKETS = ("s3", "s3a", "gs", "gcs")
# Objects that are removed at the same time, where the client can do that.
_REMOVING = 8
# Under these names the clients say when an object was written.
_WRITTEN = ("LastModified", "last_modified", "mtime", "updated", "created")


class RemoteObject(NamedTuple):
    """An object.

    Attributes:
        size: bytes.
        written: when, by the store's clock; None = it does not say.
    """

    size: int
    written: dt.datetime | None


class Remote:
    """A file system of fsspec.

    Attributes:
        fs: itself.
        root: what a URL is to it.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        """Open it; nothing is sent yet.

        Args:
            url: such as ``s3://bucket/run1``.
            timeout_s: for each call, in seconds. Clients that are not asynchronous have no limits
                but their own.

        Raises:
            ValueError: fsspec, or what it needs for this URL, is not installed; or it is no URL.
        """
        try:
            import fsspec
        except ImportError as error:
            raise ValueError(
                f"{url}: fsspec is not installed: pip install 'undaunted[object]'"
            ) from error
        protocol = url.partition("://")[0]
        own = fsspec.config.conf.get(protocol, {})
        settings = _SETTINGS.get(protocol, {}).items()
        try:
            self.fs, root = fsspec.core.url_to_fs(
                url, **{name: value for name, value in settings if name not in own}
            )
        except ImportError as error:
            raise ValueError(f"{url}: {error}") from error
        self.root: str = root.rstrip("/")
        self._protocol = protocol
        self._timeout_s = timeout_s

    def check_bucket(self) -> None:
        """Raise FileNotFoundError if there is no such bucket, where a store has buckets."""
        if self._protocol not in _WITH_BUCKETS:
            return
        bucket = self.root.partition("/")[0]
        try:
            self.call("info", bucket)
        except FileNotFoundError as error:
            said = "there is no such bucket: create it, or correct the URL"
            raise FileNotFoundError(errno.ENOENT, said, bucket) from error
        except OSError:
            pass  # this user may not ask

    def put(self, path: str, content: bytes) -> None:
        """Write an object; it is there when all of it is."""
        self.call("pipe_file", path, content)

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read an object, or what there is of it in that range."""
        content: bytes = self.call("cat_file", path, start=start, end=end)
        return content

    def remove(self, path: str) -> None:
        """Remove an object. Its name is no pattern, as it is to fsspec's ``rm``."""
        self.call("rm_file", path)

    def remove_below(self, path: str) -> None:
        """Remove all objects in a folder, and in the folders in it."""
        paths = list(self.below(path))
        asynchronous = getattr(self.fs, "async_impl", False)

        def remove(numbers: Iterator[int]) -> None:
            for number in numbers:
                with contextlib.suppress(FileNotFoundError):
                    self.remove(paths[number])

        share(len(paths), _REMOVING if asynchronous else 1, "undaunted-remove", remove)
        if not asynchronous:  # some of these have real folders
            with contextlib.suppress(Exception):
                self.call("rmdir", path)

    def below(self, path: str) -> dict[str, RemoteObject]:
        """Return all objects whose names begin with that of a folder."""
        self.fs.invalidate_cache()
        try:
            found = self.call("find", path, detail=True)
        except FileNotFoundError:
            return {}
        objects = _objects(found.values()).items()
        return {name: one for name, one in objects if name.startswith(f"{path}/")}

    def within(self, path: str) -> dict[str, RemoteObject]:
        """Return the objects in a folder, not those in the folders in it."""
        self.fs.invalidate_cache()
        try:
            return _objects(self.call("ls", path, detail=True))
        except FileNotFoundError:
            return {}

    def call(self, name: str, path: str, *args: Any, **named: Any) -> Any:
        """Call a function of the file system that takes a path first."""
        with naming(path):
            return self.bounded(name, path, *args, **named)

    def bounded(self, name: str, *args: Any, **named: Any) -> Any:
        """Call any function of the file system; errors are the client's."""
        fs = self.fs
        function = getattr(fs, f"_{name}", None) if getattr(fs, "async_impl", False) else None
        if function is None:
            return getattr(fs, name)(*args, **named)
        import asyncio

        future = asyncio.run_coroutine_threadsafe(function(*args, **named), fs.loop)
        try:
            return future.result(self._timeout_s)
        except BaseException as error:
            unfinished = not future.done()
            future.cancel()
            if unfinished and isinstance(error, Exception):
                raise TimeoutError(
                    errno.ETIMEDOUT, f"the store has not answered within {self._timeout_s:g} s"
                ) from None
            raise


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Clients raise what they like: make OSErrors of it that name the object."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such object", path) from error
    except OSError as error:
        if error.filename is not None:
            raise
        kind = type(error) if type(error) in (PermissionError, TimeoutError) else OSError
        raise kind(error.errno or errno.EIO, error.strerror or str(error), path) from error
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", path) from error


def _objects(found: Any) -> dict[str, RemoteObject]:
    return {
        one["name"]: RemoteObject(int(one["size"] or 0), _written(one))
        for one in found
        if one["type"] == "file"
    }


def _written(info: Mapping[str, Any]) -> dt.datetime | None:
    for name in _WRITTEN:
        when = info.get(name)
        if isinstance(when, (int, float)):
            return dt.datetime.fromtimestamp(when, dt.UTC)
        if isinstance(when, dt.datetime):
            return when if when.tzinfo is not None else when.replace(tzinfo=dt.UTC)
    return None


# S3 takes at most 10,000 parts, each of at least 5 MiB but the last.
PART_BYTES = 16 << 20
_MOST_PARTS = 9_000


def upload(
    remote: Remote,
    path: str,
    data: memoryview,
    block_bytes: int,
    wrote: Callable[[int], None],
    threads: int,
    part_bytes: int = PART_BYTES,
) -> str:
    """Write an object; it is there when all of it is, or not at all.

    Args:
        remote: the store.
        path: of the object.
        data: its content.
        block_bytes: of the blocks that get checksums.
        wrote: called with the number of bytes that have been sent; what it raises ends the upload.
        threads: that send parts at the same time, where the store can do that (S3).
        part_bytes: of what is sent at once; memory for one per thread is needed.

    Returns:
        The checksums of the blocks.
    """
    part = max(part_bytes, -(-len(data) // _MOST_PARTS))
    part = -(-part // block_bytes) * block_bytes
    starts = range(0, len(data), part)
    if len(starts) <= 1:
        remote.put(path, bytes(data))
        wrote(len(data))
        return crc32_of_blocks(data, block_bytes)
    if hasattr(remote.fs, "call_s3"):
        _upload_parts(_S3Upload(remote, path), data, part, wrote, threads)
        return crc32_of_blocks(data, block_bytes)
    try:
        return _write_through(remote.fs, path, data, block_bytes, wrote, part)
    except BaseException:
        # Some stores make an object of what is there.
        with contextlib.suppress(Exception):
            remote.remove(path)
        raise


def _write_through(
    fs: Any,
    path: str,
    data: memoryview,
    block_bytes: int,
    wrote: Callable[[int], None],
    part: int,
) -> str:
    """Write part after part, as every store can do that."""
    found = []
    with naming(path):
        try:
            file = fs.open(path, "wb", block_size=part)
        except TypeError:  # a store that has its own idea of it
            file = fs.open(path, "wb")
    try:
        for start in range(0, len(data), part):
            piece = data[start : start + part]
            with naming(path):
                file.write(piece)
            found.append(crc32_of_blocks(piece, block_bytes))
            wrote(len(piece))
        with naming(path):
            file.close()
    except BaseException:
        for end in (file.discard, file.close):
            with contextlib.suppress(Exception):
                end()
        raise
    return "".join(found)


def _upload_parts(
    target: _S3Upload, data: memoryview, part: int, wrote: Callable[[int], None], threads: int
) -> None:
    def send(numbers: Iterator[int]) -> None:
        for number in numbers:
            piece = data[number * part : (number + 1) * part]
            target.send(number, piece)
            wrote(len(piece))

    try:
        share(-(-len(data) // part), threads, "undaunted-upload", send)
        target.complete()
    except BaseException:
        with contextlib.suppress(Exception):
            target.abort()
        raise


class _S3Upload:
    """An upload by parts; S3 checks each against the checksum that goes along."""

    def __init__(self, remote: Remote, path: str) -> None:
        self._remote = remote
        self._path = path
        bucket, key, _ = remote.fs.split_path(path)
        self._object = {"Bucket": bucket, "Key": key}
        begun = self._call("create_multipart_upload", ChecksumAlgorithm="CRC32")
        self._object["UploadId"] = begun["UploadId"]
        self._parts: dict[int, dict[str, Any]] = {}

    def send(self, number: int, piece: memoryview) -> None:
        checksum = base64.b64encode(crc32(piece).to_bytes(4, "big")).decode()
        answer = self._call(
            "upload_part", PartNumber=number + 1, Body=bytes(piece), ChecksumCRC32=checksum
        )
        self._parts[number] = {
            "PartNumber": number + 1,
            "ETag": answer["ETag"],
            "ChecksumCRC32": checksum,
        }

    def complete(self) -> None:
        parts = [self._parts[number] for number in sorted(self._parts)]
        self._call("complete_multipart_upload", MultipartUpload={"Parts": parts})

    def abort(self) -> None:
        self._call("abort_multipart_upload")

    def _call(self, name: str, **named: Any) -> Any:
        with naming(self._path):
            return self._remote.bounded("call_s3", name, **self._object, **named)
