"""The form of a shard, in memory, on the wire and on disk: head, tensors, trailer.

::

    prefix      magic, CRC-32 and length of the head, size of the image
    head        MessagePack of `Head`
    tensors     from the next multiple of 4096 on, each at a multiple of 64: raw bytes
    --- up to here it is the image, which lies in one flat buffer ---
    trailer     CRC-32 of each block of the image; then magic, CRC-32 of the trailer, its length

A reader of head and trailer knows that the file was written to its end; one that compares the
checksums of the blocks knows every byte.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.format.manifest import crc32_of_blocks

FORMAT_VERSION = 2
_READ = (1, FORMAT_VERSION)
BLOCK_BYTES = 8 << 20
MAX_HEAD_BYTES = 1 << 30
MAX_IMAGE_BYTES = 1 << 44

_MAGIC = b"UNDALOC\x01"
_END = b"UNDAEND\x01"
_PREFIX = struct.Struct("<8sIIQ")  # magic, CRC-32 of the rest of the prefix and the head, lengths
_TRAILER = struct.Struct("<8sII")  # magic, CRC-32 of checksums and prefix, length of checksums
PREFIX_BYTES = _PREFIX.size
_ALIGN_DATA = 4096
_ALIGN_TENSOR = 64


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in the image.

    Attributes:
        dtype: torch's name of it, without ``torch.``.
        shape: of it; the bytes are contiguous.
        offset: from the start of the tensors; tied tensors have the same.
        size: bytes.
    """

    dtype: str
    shape: list[int]
    offset: int
    size: int


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """All there is to know of a shard but the content of its tensors.

    Attributes:
        format: version of the format.
        iteration: at which it was saved.
        rank: whose state it is.
        world_size: ranks that saved.
        session: the user's name of the run.
        save: names the save that all shards of a checkpoint come from, among all of all runs.
        saved_at: seconds since 1970.
        kind: class of the state, see `TensorAwareStateDict.kind`.
        state: the hollow state, see `flat.encode_state`.
        tensors: in the order of the state.
        data_bytes: of all tensors with the gaps between them.
    """

    format: int
    iteration: int
    rank: int
    world_size: int
    session: str
    save: str
    saved_at: float
    kind: str
    state: bytes
    tensors: list[Tensor]
    data_bytes: int


def damaged(path: str, why: str) -> DamagedCheckpointError:
    """Return the error of a file, or a message, that is not what it should be."""
    return DamagedCheckpointError(f"{path}: {why}", path)


def place_tensors(sizes: list[int]) -> tuple[list[int], int]:
    """Return the offset of each tensor from the start of the tensors, and the end of the last."""
    offsets, end = [], 0
    for size in sizes:
        offset = -(-end // _ALIGN_TENSOR) * _ALIGN_TENSOR
        offsets.append(offset)
        end = offset + size
    return offsets, end


def data_offset(head_bytes: int) -> int:
    """Return where the tensors begin, for the length of prefix and head."""
    return -(-head_bytes // _ALIGN_DATA) * _ALIGN_DATA


def encode_head(head: Head) -> bytes:
    """Return prefix and head.

    Raises:
        ValueError: the hollow state is too large to be one.
    """
    body = msgspec.msgpack.encode(head)
    if len(body) > MAX_HEAD_BYTES:
        raise ValueError(
            f"the state without its tensors has {len(body)} bytes, at most {MAX_HEAD_BYTES} can "
            "be stored: keep large arrays as tensors"
        )
    size = data_offset(PREFIX_BYTES + len(body)) + head.data_bytes
    lengths = struct.pack("<IQ", len(body), size)
    return _MAGIC + struct.pack("<I", zlib.crc32(body, zlib.crc32(lengths))) + lengths + body


def head_length(prefix: bytes, path: str) -> tuple[int, int]:
    """Return the bytes of prefix and head, and of the image.

    Raises:
        DamagedCheckpointError: these are not the first bytes of a shard.
    """
    if len(prefix) < PREFIX_BYTES:
        raise damaged(path, f"cut short: {len(prefix)} bytes")
    magic, _, length, size = _PREFIX.unpack_from(prefix)
    if magic != _MAGIC:
        raise damaged(path, "not a local checkpoint of this version")
    end = data_offset(PREFIX_BYTES + length)
    if length > MAX_HEAD_BYTES or not end <= size <= MAX_IMAGE_BYTES:
        raise damaged(path, "the head is damaged")
    return PREFIX_BYTES + length, size


def decode_head(content: bytes, path: str) -> Head:
    """Read prefix and head.

    Raises:
        DamagedCheckpointError: they are cut short, changed, or of a newer format.
    """
    end, size = head_length(content, path)
    _, crc, length, _ = _PREFIX.unpack_from(content)
    lengths, body = content[12:PREFIX_BYTES], content[PREFIX_BYTES:end]
    if len(body) != length or zlib.crc32(body, zlib.crc32(lengths)) != crc:
        raise damaged(path, "the head is cut short or damaged")
    try:
        head = msgspec.msgpack.decode(body, type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path, f"the head cannot be read: {error}") from error
    if head.format not in _READ:
        raise DamagedCheckpointError(
            f"{path}: format {head.format}, this version of undaunted reads {_READ}", path
        )
    fits = data_offset(end) + head.data_bytes == size and all(
        one.offset >= 0 and 0 <= one.size <= head.data_bytes - one.offset for one in head.tensors
    )
    if not fits:
        raise damaged(path, "the head contradicts itself")
    return head


def trailer_bytes(size: int, block_bytes: int = BLOCK_BYTES) -> int:
    """Return the length of the trailer of an image."""
    return -(-size // block_bytes) * 8 + _TRAILER.size


def encode_trailer(crc32: str, prefix: bytes) -> bytes:
    """Return the trailer.

    Args:
        crc32: checksums of the blocks, 8 hexadecimal digits each.
        prefix: first bytes of the image: the trailer belongs to this one and to no other.
    """
    checksums = crc32.encode()
    whole = zlib.crc32(prefix[:PREFIX_BYTES], zlib.crc32(checksums))
    return checksums + _TRAILER.pack(_END, whole, len(checksums))


def decode_trailer(content: bytes, prefix: bytes, path: str) -> str:
    """Return the checksums of the blocks.

    Raises:
        DamagedCheckpointError: the file was not written to its end, or is damaged there.
    """
    checksums = content[: -_TRAILER.size]
    whole = zlib.crc32(prefix[:PREFIX_BYTES], zlib.crc32(checksums))
    if content[-_TRAILER.size :] != _TRAILER.pack(_END, whole, len(checksums)):
        raise damaged(path, "the end is missing or damaged")
    return checksums.decode("ascii")


def block_checksums(image: memoryview, block_bytes: int = BLOCK_BYTES) -> str:
    """Return the CRC-32 of each block, 8 hexadecimal digits each."""
    return crc32_of_blocks(image, block_bytes)
