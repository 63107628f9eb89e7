"""Checksums of content that is in memory, as the manifest has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.checkpointing.format.manifest import BLOCK_BYTES, File

try:  # the same CRC-32, three times as fast
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["crc32", "file_of", "of_blocks"]


def file_of(content: Buffer, block_bytes: int = BLOCK_BYTES) -> File:
    """Return what the manifest says of a file with this content."""
    view = memoryview(content).cast("B")
    return File(size=len(view), crc32=of_blocks(view, block_bytes))


def of_blocks(view: memoryview, block_bytes: int = BLOCK_BYTES) -> str:
    """Return the CRC-32 of each block, as `manifest.File` has them."""
    blocks = (view[at : at + block_bytes] for at in range(0, len(view), block_bytes))
    return "".join(f"{crc32(block):08x}" for block in blocks)
