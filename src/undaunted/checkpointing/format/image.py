"""The image of a data file: the frame around a tensor's bytes, and where each item lies.

``torch.load`` reads a tensor from a ZIP archive of stored records: the pickled description
``data.pkl``, the bytes ``data/0`` and two small ones. In a frame the bytes come first, 64 bytes
after the archive's start, so that everything else (the tail) follows from dtype and shape alone and
the bytes can lie where they will be written before anybody has seen them. The ZIP checksums are
zero, which torch does not look at; the manifest has checksums of all of it.

The places are arithmetic, the same on every rank that does it. Tensors in frames come first, each
at a multiple of 64 bytes. Everything else follows, each item 8 bytes past a multiple of 64: the
place of an item says which of the two it is.
"""

from __future__ import annotations

import functools
import math
import struct
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


HEAD_BYTES = 64

# Bytes of an element, and the name torch has for a storage of them; none for newer types, which it
# describes by their own names.
DTYPES: dict[str, tuple[int, str | None]] = {
    "float64": (8, "DoubleStorage"),
    "float32": (4, "FloatStorage"),
    "float16": (2, "HalfStorage"),
    "bfloat16": (2, "BFloat16Storage"),
    "int64": (8, "LongStorage"),
    "int32": (4, "IntStorage"),
    "int16": (2, "ShortStorage"),
    "int8": (1, "CharStorage"),
    "uint8": (1, "ByteStorage"),
    "bool": (1, "BoolStorage"),
    "complex64": (8, "ComplexFloatStorage"),
    "complex128": (16, "ComplexDoubleStorage"),
    "uint16": (2, None),
    "uint32": (4, None),
    "uint64": (8, None),
    "complex32": (4, None),
    "float8_e4m3fn": (1, None),
    "float8_e4m3fnuz": (1, None),
    "float8_e5m2": (1, None),
    "float8_e5m2fnuz": (1, None),
    "float8_e8m0fnu": (1, None),
}

_LARGE = 0xFFFFFFFF  # in a field of 32 bits: look into the ZIP64 field
_ZIP64 = 1
_PADDING = 0x4246  # what torch uses for bytes without meaning
_VERSION = 45  # of the ZIP format: has ZIP64


class Frame(NamedTuple):
    """The frame around the bytes of a tensor.

    Attributes:
        size: of the tensor, bytes.
        head: 64 bytes before it.
        tail: what follows it.
    """

    size: int
    head: bytes
    tail: bytes

    @property
    def length(self) -> int:
        """Bytes of head, tensor and tail."""
        return HEAD_BYTES + self.size + len(self.tail)


@functools.lru_cache(maxsize=4096)
def frame(dtype: str, shape: tuple[int, ...]) -> Frame:
    """Return the frame of a contiguous tensor.

    Args:
        dtype: torch's name of it, one of ``DTYPES``.
        shape: of the tensor.
    """
    size = math.prod(shape) * DTYPES[dtype][0]
    files = _Archive(_head(size), size)
    files.add("archive/data.pkl", _pickled(dtype, shape))
    files.add("archive/byteorder", b"little")
    files.add("archive/version", b"3\n")
    return Frame(size, files.head, files.tail())


def _head(size: int) -> bytes:
    """The local header of the tensor's record: 30 bytes, 14 of name, 20 of an extra field."""
    name = b"archive/data/0"
    if size >= _LARGE:
        extra = struct.pack("<HHQQ", _ZIP64, 16, size, size)
        return _local(name, _LARGE, extra)
    return _local(name, size, struct.pack("<HH16s", _PADDING, 16, b"Z" * 16))


def _local(name: bytes, size: int, extra: bytes) -> bytes:
    fields = (_VERSION, 0, 0, 0, 0, 0, size, size, len(name), len(extra))
    return struct.pack("<4sHHHHHIIIHH", b"PK\3\4", *fields) + name + extra


class _Archive:
    """Collects what follows the bytes of the tensor."""

    def __init__(self, head: bytes, size: int) -> None:
        self.head = head
        self._start = HEAD_BYTES + size
        self._records = bytearray()
        self._directory = bytearray()
        self._count = 0
        self._list(b"archive/data/0", size, 0)

    def add(self, name: str, content: bytes) -> None:
        at = self._start + len(self._records)
        self._records += _local(name.encode(), len(content), b"") + content
        self._list(name.encode(), len(content), at)

    def _list(self, name: bytes, size: int, at: int) -> None:
        """Add an entry of the directory; what is large goes to its extra field."""
        long = struct.pack("<QQ", size, size) if size >= _LARGE else b""
        long += struct.pack("<Q", at) if at >= _LARGE else b""
        extra = struct.pack("<HH", _ZIP64, len(long)) + long if long else b""
        short = min(size, _LARGE)
        fields = (_VERSION, _VERSION, 0, 0, 0, 0, 0, short, short, len(name), len(extra))
        entry = struct.pack("<4sHHHHHHIIIHH", b"PK\1\2", *fields)
        self._directory += entry + struct.pack("<HHHII", 0, 0, 0, 0, min(at, _LARGE)) + name + extra
        self._count += 1

    def tail(self) -> bytes:
        """The small records, the directory, and the end that says where the directory is."""
        at = self._start + len(self._records)
        length, count = len(self._directory), self._count
        end = b""
        if at >= _LARGE:
            fields = (44, _VERSION, _VERSION, 0, 0, count, count, length, at)
            end = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", *fields)
            end += struct.pack("<4sIQI", b"PK\6\7", 0, at + length, 1)
        last = (0, 0, count, count, length, min(at, _LARGE), 0)
        end += struct.pack("<4sHHHHIIH", b"PK\5\6", *last)
        return bytes(self._records + self._directory) + end


def _pickled(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The description of a contiguous tensor that ``torch.load(weights_only=True)`` understands.

    A pickle of the second protocol: a call of torch's own function that makes a tensor from a
    storage, its shape and its strides. Nothing here is ever read back as a pickle by us.
    """
    _, storage = DTYPES[dtype]
    elements = math.prod(shape)
    if storage is None:
        function, storage_class = b"_rebuild_tensor_v3", b"ctorch.storage\nUntypedStorage\n"
        of_storage, last = elements * DTYPES[dtype][0], b"ctorch\n" + dtype.encode() + b"\n"
    else:
        function, storage_class = b"_rebuild_tensor_v2", b"ctorch\n" + storage.encode() + b"\n"
        of_storage, last = elements, b""
    strides = tuple(math.prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape)))
    return b"".join(
        (
            b"\x80\x02ctorch._utils\n" + function + b"\n(",
            b"(" + _text("storage") + storage_class + _text("0") + _text("cpu"),
            _number(of_storage) + b"tQ",
            _number(0) + _tuple(shape) + _tuple(strides),
            b"\x89ccollections\nOrderedDict\n)R" + last + b"tR.",
        )
    )


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _number(number: int) -> bytes:
    if number < 1 << 8:
        return b"K" + struct.pack("<B", number)
    if number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    return b"\x8a\x08" + struct.pack("<q", number)


def _tuple(numbers: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(_number, numbers)) + b"t"


FRAME_ALIGNMENT = 64  # of framed tensors in a file
ALIGNMENT = 4096  # of images in the arena: what O_DIRECT asks of memory, offset and length


class Image(msgspec.Struct, frozen=True):
    """A file as it lies in the arena.

    Attributes:
        name: relative to the folder of the attempt.
        offset: bytes from the arena's start, a multiple of 4096.
        size: bytes of the file; the arena has room up to the next multiple of 4096.
    """

    name: str
    offset: int
    size: int


# Of an item without a frame, from a multiple of 64.
_UNFRAMED = 8


class ItemPlace(NamedTuple):
    """Of an item in its file, in bytes."""

    offset: int
    length: int


def place_frames(lengths: Iterable[int]) -> list[ItemPlace]:
    """Return the places of framed tensors of these lengths, from the start of the file."""
    places = []
    at = 0
    for length in lengths:
        places.append(ItemPlace(at, length))
        at = _round_up(at + length)
    return places


def place_others(frames: list[ItemPlace], lengths: Iterable[int]) -> list[ItemPlace]:
    """Return the places of items without a frame, which follow the framed ones."""
    places = []
    at = end_of(frames)
    for length in lengths:
        at = _round_up(at) + _UNFRAMED
        places.append(ItemPlace(at, length))
        at += length
    return places


def end_of(places: list[ItemPlace]) -> int:
    """Return where the last item ends."""
    return places[-1].offset + places[-1].length if places else 0


def is_framed(offset: int) -> bool:
    """Return whether an item that begins here is a tensor in a frame."""
    return offset % FRAME_ALIGNMENT == 0


def _round_up(offset: int) -> int:
    return -(-offset // FRAME_ALIGNMENT) * FRAME_ALIGNMENT
