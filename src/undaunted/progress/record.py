"""Records: what needs more than one word, safe against writers that die in the middle.

A record is three words and a body: checksum, sequence number, length of the body in bytes. The
checksum goes to zero first and is stored last, and it covers everything else. Whatever a reader
finds half written, or in an order a CPU chose to make stores visible in, fails it and counts as
"no record"; nothing is ever waited for.
"""

from __future__ import annotations

import struct
import zlib

from undaunted.progress.layout import RECORD_HEADER, WORD_BYTES

_HEADER = struct.Struct("=QQQ")
_NUMBERS = struct.Struct("=QQ")
_VALID = 1 << 32  # tells a checksum of zero from "no record"


def write(memory: memoryview, word: int, sequence: int, body: bytes) -> None:
    """Store a record at ``word`` of a page; the caller keeps ``body`` within its room.

    Args:
        memory: the page, as bytes.
        word: first word of the record.
        sequence: its number.
        body: what it says.
    """
    start = word * WORD_BYTES
    content = start + RECORD_HEADER * WORD_BYTES
    _HEADER.pack_into(memory, start, 0, sequence, len(body))
    memory[content : content + len(body)] = body
    _NUMBERS.pack_into(memory, start, _checksum(sequence, body), sequence)


def read(memory: memoryview | bytes, word: int, room: int) -> tuple[int, bytes] | None:
    """Return sequence number and body of the record at ``word``, or None if there is no whole one.

    Args:
        memory: the page, as bytes; may change while this looks at it.
        word: first word of the record.
        room: largest length of a body, in bytes.
    """
    start = word * WORD_BYTES
    checksum, sequence, length = _HEADER.unpack_from(memory, start)
    if not checksum or length > room:
        return None
    content = start + RECORD_HEADER * WORD_BYTES
    body = bytes(memory[content : content + length])
    return (sequence, body) if checksum == _checksum(sequence, body) else None


def _checksum(sequence: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_NUMBERS.pack(sequence, len(body)))) | _VALID
