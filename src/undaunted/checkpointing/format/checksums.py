"""Checksums of content that is in memory, as the manifest has them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from undaunted.checkpointing.format.manifest import BLOCK_BYTES, File

if TYPE_CHECKING:
    from typing_extensions import Buffer


def file_of(content: Buffer, block_bytes: int = BLOCK_BYTES) -> File:
    """Return what the manifest says of a file with this content."""
    view = memoryview(content).cast("B")
    return File(size=len(view), crc32=of_blocks(view, block_bytes))


def of_blocks(view: memoryview, block_bytes: int = BLOCK_BYTES) -> str:
    """Return the CRC-32 of each block, as `manifest.File` has them."""
    blocks = (view[at : at + block_bytes] for at in range(0, len(view), block_bytes))
    return "".join(f"{zlib.crc32(block):08x}" for block in blocks)
