from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest

from undaunted.checkpointing.files.remote import upload

DATA = memoryview(bytes(range(256)) * 10)


class S3:
    """What S3 would hold, and what it was asked."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        self.whole: bytes | None = None
        self.asked: list[str] = []
        self.fails_at = -1

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, name: str, **named: Any) -> dict[str, str]:
        self.asked.append(name)
        assert (named["Bucket"], named["Key"]) == ("bucket", "a/b")
        if name == "upload_part":
            if named["PartNumber"] == self.fails_at:
                raise RuntimeError("slow down")
            body = named["Body"]
            assert base64.b64decode(named["ChecksumCRC32"]) == zlib.crc32(body).to_bytes(4, "big")
            self.parts[named["PartNumber"]] = body
        if name == "complete_multipart_upload":
            numbers = [part["PartNumber"] for part in named["MultipartUpload"]["Parts"]]
            assert numbers == sorted(self.parts)
            self.whole = b"".join(self.parts[number] for number in numbers)
        return {"UploadId": "u", "ETag": "e"}


class Remote:
    def __init__(self) -> None:
        self.fs = S3()
        self.objects: dict[str, bytes] = {}

    def put(self, path: str, content: bytes) -> None:
        self.objects[path] = content

    def bounded(self, name: str, *args: Any, **named: Any) -> Any:
        return getattr(self.fs, name)(*args, **named)


def sent(remote: Any, part_bytes: int, wrote: Any) -> str:
    return upload(remote, "bucket/a/b", DATA, 256, wrote, 3, part_bytes)


def test_small_ones_are_sent_at_once() -> None:
    remote, counts = Remote(), []
    crc32 = sent(remote, 1 << 20, counts.append)
    assert remote.objects == {"bucket/a/b": bytes(DATA)}
    assert counts == [2560]
    assert crc32 == f"{zlib.crc32(DATA[:256]):08x}" * 10


def test_large_ones_in_parts_of_whole_blocks() -> None:
    remote, counts = Remote(), []
    crc32 = sent(remote, 700, counts.append)
    assert remote.fs.whole == bytes(DATA)
    assert sorted(counts) == [256, 768, 768, 768]
    assert crc32 == f"{zlib.crc32(DATA[:256]):08x}" * 10


@pytest.mark.parametrize("fails_at", [1, 4])
def test_one_that_fails_leaves_nothing(fails_at: int) -> None:
    remote = Remote()
    remote.fs.fails_at = fails_at
    with pytest.raises(OSError, match="RuntimeError: slow down: 'bucket/a/b'"):
        sent(remote, 700, lambda count: None)
    assert remote.fs.whole is None
    assert remote.fs.asked[-1] == "abort_multipart_upload"


def test_it_is_given_up_when_progress_is_not_wanted() -> None:
    def stop(count: int) -> None:
        raise InterruptedError("enough")

    remote = Remote()
    with pytest.raises(InterruptedError, match="enough"):
        sent(remote, 700, stop)
    assert remote.fs.asked[-1] == "abort_multipart_upload"
