"""What trainer and writer process say to each other, over a Unix stream socket.

A frame is 4 bytes of length (big-endian) and MessagePack of one message. The first one to the
writer is ``Begin``. Descriptors come with their message as ancillary data (SCM_RIGHTS).
"""

from __future__ import annotations

import msgspec

from undaunted.checkpointing.format.image import Image  # noqa: TC001 - a type of a field
from undaunted.checkpointing.writer.options import WriterOptions  # noqa: TC001 - likewise

MAX_MESSAGE_BYTES = 64 << 20


class Begin(msgspec.Struct, tag=True, frozen=True):
    """To the writer: what it is there for; the descriptor of its `page` is with it.

    Attributes:
        url: the place of all checkpoints, folder or URL.
        options: how to write.
    """

    url: str
    options: WriterOptions


class Arena(msgspec.Struct, tag=True, frozen=True):
    """To the writer: shared memory for this slot in place of the former; its descriptor is with it.

    Attributes:
        slot: 0 or 1.
        size: bytes.
    """

    slot: int
    size: int


class Write(msgspec.Struct, tag=True, frozen=True):
    """To the writer: write these files, all or none.

    Attributes:
        job: number, for the page.
        slot: which arena.
        target: folder (created when missing, 0700) or URL that ends with the attempt's name.
        files: what to write.
        block_bytes: for the checksums.
    """

    job: int
    slot: int
    target: str
    files: list[Image]
    block_bytes: int


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """To the writer: give the job up as soon as possible; it answers ``Failed``."""


class Written(msgspec.Struct, tag=True, frozen=True):
    """To the trainer: all files are written and synced (their folder is not)."""

    crc32: dict[str, str]  # by file name, as in manifest.File
    seconds: float
    bytes: int
    cpu_s: float = 0.0  # of processors, in seconds


class Failed(msgspec.Struct, tag=True, frozen=True):
    """To the trainer: the job was not done; what was written of it stays for the sweep."""

    message: str
    errno: int | None = None


ToWriter = Begin | Arena | Write | Cancel
FromWriter = Written | Failed
