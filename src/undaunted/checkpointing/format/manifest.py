"""The manifest: what belongs to a checkpoint, and the checksums of every byte of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.checkpointing.errors import DamagedCheckpointError

try:  # the same CRC-32, three times as fast
    from zlib_ng.zlib_ng import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMAT_VERSION = 1
BLOCK_BYTES = 8 << 20
# The attempts of save n have the numbers from n * MAX_ATTEMPTS on.
MAX_ATTEMPTS = 10
NAME = "undaunted.json"
# A manifest is 1 byte per MiB of checkpoint; this is one of a petabyte.
MAX_BYTES = 1 << 30

crc32 = _crc32  # that of all files here


class File(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint.

    Attributes:
        size: bytes.
        crc32: of each block of the content, as 8 hexadecimal digits each, one after the other.
    """

    size: int
    crc32: str

    def checksums(self) -> list[int]:
        """Return the checksum of each block."""
        return [int(self.crc32[at : at + 8], 16) for at in range(0, len(self.crc32), 8)]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All there is to know of a checkpoint without reading its data.

    Attributes:
        format: version of the format.
        step: the training step.
        epoch: of the round that saved it; 0 without a launcher.
        world_size: ranks that saved it.
        session: of the run that saved it, a random name.
        attempt: number of the save within its session.
        structure: fingerprint of the structure of the state, hexadecimal.
        block_bytes: size of a block, the last one of a file may be shorter.
        files: by path relative to the checkpoint's folder.
        saved_at: seconds since 1970, for people.
        writer: name and version of the program that wrote it.
        certified: what several ranks have was compared before it was saved, and was the same.
    """

    format: int
    step: int
    epoch: int
    world_size: int
    session: str
    attempt: int
    structure: str
    block_bytes: int
    files: dict[str, File]
    saved_at: float
    writer: str
    certified: bool = False


def encode(manifest: Manifest) -> bytes:
    """Return the content of ``undaunted.json``; its last line is the checksum of what precedes."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return body + b"\n" + b"%08x\n" % crc32(body)


def decode(content: bytes, path: str) -> Manifest:
    """Read the content of ``undaunted.json``.

    Raises:
        DamagedCheckpointError: it is cut short, changed, or of a newer format.
    """
    body, _, last = content.removesuffix(b"\n").rpartition(b"\n")
    if last != b"%08x" % crc32(body):
        raise DamagedCheckpointError(f"{path}: the manifest is cut short or damaged", path)
    try:
        version = msgspec.json.decode(body, type=_Version).format
        if version != FORMAT_VERSION:
            raise DamagedCheckpointError(
                f"{path}: format {version}, this version of undaunted reads {FORMAT_VERSION}: "
                "install a newer one",
                path,
            )
        return msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise DamagedCheckpointError(f"{path}: not a manifest: {error}", path) from error


class _Version(msgspec.Struct):
    format: int


def file_of(content: Buffer, block_bytes: int = BLOCK_BYTES) -> File:
    """Return what the manifest says of a file with this content."""
    view = memoryview(content).cast("B")
    return File(size=len(view), crc32=crc32_of_blocks(view, block_bytes))


def crc32_of_blocks(view: memoryview, block_bytes: int = BLOCK_BYTES) -> str:
    """Return the CRC-32 of each block, as `manifest.File` has them."""
    blocks = (view[at : at + block_bytes] for at in range(0, len(view), block_bytes))
    return "".join(f"{crc32(block):08x}" for block in blocks)
