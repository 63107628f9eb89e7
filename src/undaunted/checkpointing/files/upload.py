"""Writing one object from memory."""

from __future__ import annotations

import base64
import contextlib
from typing import TYPE_CHECKING, Any

from undaunted.checkpointing.files.remote import naming
from undaunted.checkpointing.files.sharing import share
from undaunted.checkpointing.format.checksums import crc32, of_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from undaunted.checkpointing.files.remote import Remote

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
        return of_blocks(data, block_bytes)
    if hasattr(remote.fs, "call_s3"):
        _upload_parts(_S3Upload(remote, path), data, part, wrote, threads)
        return of_blocks(data, block_bytes)
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
            found.append(of_blocks(piece, block_bytes))
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
