"""Samples of a file of tokens. Design: docs/design/data.md.

tokens = TokenFile("train.bin", "uint16", length=1024)
tokens[7]    # 1,025 tokens: the first 1,024 are the input, the last 1,024 the targets
"""

from __future__ import annotations

import hashlib
import mmap
import operator
import os
import struct
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import Dataset

from undaunted.data.formats import File, ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPES = {
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "uint16": torch.uint16,
    "int32": torch.int32,
    "uint32": torch.uint32,
    "int64": torch.int64,
}
# Numbers of types in an index of Megatron.
_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_MAGIC = b"MMIDIDX\x00\x00"
# Version, type of tokens, sequences, and one more than documents.
_HEADER = struct.Struct("<QBQQ")
_PLACES, _PIECE = 64, 4096  # of the content, for the fingerprint


class TokenFile(Dataset):  # type: ignore[misc]
    """A file of tokens, cut into samples that follow one another; documents are packed.

    Sample number i is the ``length`` + 1 tokens from token i * ``length`` on: the last one is the
    next one's first, as it is a target only. The rest at the end of the file is not used.

    Attributes:
        tokens: how many the file has.
        fingerprint: depends on size, type, length and pieces of the content; part of a loader's
            state.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: str | None = None,
        *,
        length: int,
        documents: bool = False,
        eos: int | None = None,
        offset: int = 0,
    ) -> None:
        """Look at size and index of a file.

        Args:
            path: of the file.
            dtype: of the tokens: uint8, int8, uint16, int16, uint32, int32 or int64; None = as the
                index of Megatron says, which is beside the file and has the same name with
                ``.idx``.
            length: tokens that a model sees of a sample.
            documents: return where documents are, too: a dictionary of ``tokens``, ``documents``
                (0 for the sample's first document, 1 for the next) and ``positions`` in the
                document, from 0 at its start and at the sample's.
            eos: the token that ends a document; None = the index says where documents begin.
            offset: bytes before the first token.

        Raises:
            ShardError: the file or its index is missing or damaged.
            TypeError: length or offset is no whole number.
            ValueError: the settings do not fit, or there are too few tokens.
        """
        self._path = os.fspath(path)
        self._length, self._offset = operator.index(length), operator.index(offset)
        if self._length < 1 or self._offset < 0:
            raise ValueError(f"length={length}, offset={offset}: at least 1 and 0")
        if dtype is not None and dtype not in _TYPES:
            raise ValueError(f"dtype={dtype!r}: one of {', '.join(_TYPES)}")
        self._file = File(self._path)
        self._documents, self._eos = documents, eos
        self._index_path: str | None = None
        self._starts: _Starts | None = None
        if dtype is None or (documents and eos is None):
            self._index_path = str(Path(self._path).with_suffix(".idx"))
            self._starts = _megatron(self._index_path)
            if dtype not in (None, self._starts.dtype):
                raise ValueError(
                    f"dtype={dtype!r}, but {self._index_path} says {self._starts.dtype}"
                )
            dtype = self._starts.dtype
        assert dtype is not None
        self._dtype = _TYPES[dtype]
        self._item = self._dtype.itemsize
        size = self._size()
        self.tokens, rest = divmod(size - self._offset, self._item)
        if rest or self.tokens < 0:
            raise ShardError(
                f"{self._path} has {size} bytes, {self._offset} of them before tokens: no multiple "
                f"of {self._item} ({dtype})\n  it was cut short, or dtype or offset is another"
            )
        if self._starts is not None and self._starts.size != size - self._offset:
            raise ShardError(
                f"{self._path} has {size} bytes, and {self._index_path} tells of "
                f"{self._starts.size}\n  one of them was cut short, or they do not belong together"
            )
        if len(self) < 1:
            raise ValueError(
                f"{self._path} has {self.tokens} tokens; a sample of length={self._length} takes "
                f"{self._length + 1}"
            )
        self.fingerprint = self._fingerprint()

    def __len__(self) -> int:
        """Return how many samples there are."""
        count: int = max(0, self.tokens - 1) // self._length
        return count

    def __getitem__(self, index: int) -> Any:
        """Return the tokens of a sample, int64; or the dictionary of ``documents``.

        Raises:
            IndexError: there is no such sample.
            ShardError: the file was removed or cut short.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index}: there are {len(self)}, from 0")
        first, count = index * self._length, self._length + 1
        read = self._file.read(self._offset + first * self._item, count * self._item)
        tokens = torch.frombuffer(read, dtype=self._dtype).to(torch.int64)
        return {"tokens": tokens, **self._places(tokens, first)} if self._documents else tokens

    def close(self) -> None:
        """Close the file; reading opens it again."""
        self._file.close()

    def _places(self, tokens: torch.Tensor, first: int) -> dict[str, torch.Tensor]:
        """Return the document of each token and its position in there."""
        begins = torch.zeros(len(tokens), dtype=torch.int64)
        if self._eos is not None:
            begins[1:] = tokens[:-1] == self._eos
        else:
            if self._starts is None:
                assert self._index_path is not None
                self._starts = _megatron(self._index_path)
            for start in self._starts.within(first + 1, first + len(tokens)):
                begins[start - first] = 1
        numbers = torch.arange(len(tokens))
        latest = torch.where(begins > 0, numbers, 0).cummax(0).values
        return {"documents": begins.cumsum(0), "positions": numbers - latest}

    def _fingerprint(self) -> str:
        """Return a digest of 64 pieces of the content, and of what decides on samples."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.tokens} {self._dtype} {self._length}".encode())
        size = self.tokens * self._item
        for place in range(_PLACES):
            at = place * max(0, size - _PIECE) // (_PLACES - 1)
            digest.update(self._file.read(self._offset + at, min(_PIECE, size)))
        return digest.hexdigest()

    def _size(self) -> int:
        try:
            return Path(self._path).stat().st_size
        except OSError as error:
            raise ShardError(f"{self._path} is out of reach: {error.strerror}") from None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the map of the index out, for workers that are spawned."""
        return {**self.__dict__, "_starts": None}


class _Starts(NamedTuple):
    """The begins of documents, by an index of Megatron that is mapped.

    Attributes:
        path: of the index.
        dtype: of the tokens.
        size: bytes of all tokens.
        pointers: where each sequence begins, bytes.
        documents: which sequence begins each document, and the number of sequences.
        item: bytes of a token.
    """

    path: str
    dtype: str
    size: int
    pointers: Sequence[int]
    documents: Sequence[int]
    item: int

    def within(self, first: int, end: int) -> list[int]:
        """Return the tokens from ``first`` on and before ``end`` with which documents begin."""
        found = []
        number = bisect_right(range(len(self.documents)), first - 1, key=self._start)
        while number < len(self.documents) and (start := self._start(number)) < end:
            if start < first:
                raise _damaged(self.path)
            found.append(start)
            number += 1
        return found

    def _start(self, document: int) -> int:
        sequence = self.documents[document]
        if sequence == len(self.pointers):
            return self.size // self.item
        if not 0 <= sequence < len(self.pointers):
            raise _damaged(self.path)
        return self.pointers[sequence] // self.item


def _damaged(path: str) -> ShardError:
    return ShardError(f"{path} is no whole index of Megatron: write it again, with its .bin")


def _megatron(path: str) -> _Starts:
    """Map an index of Megatron.

    Raises:
        ShardError: it is missing, or none.
    """
    try:
        with Path(path).open("rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ShardError(
            f"{path} is out of reach: {getattr(error, 'strerror', None) or error}\n  without the "
            "index of Megatron give dtype=, and eos= for documents"
        ) from None
    at = len(_MAGIC) + _HEADER.size
    if len(mapped) < at or mapped[: len(_MAGIC)] != _MAGIC:
        raise _damaged(path)
    version, code, sequences, documents = _HEADER.unpack(mapped[len(_MAGIC) : at])
    if version != 1 or code not in _CODES or len(mapped) < at + 12 * sequences + 8 * documents:
        raise _damaged(path)
    item = _TYPES[_CODES[code]].itemsize
    pointers = at + 4 * sequences
    last = (
        struct.unpack_from("<i", mapped, pointers - 4)[0] * item
        + struct.unpack_from("<q", mapped, pointers + 8 * (sequences - 1))[0]
        if sequences
        else 0
    )
    begin = pointers + 8 * sequences
    return _Starts(
        path,
        _CODES[code],
        last,
        mapped[pointers:begin].cast("q"),
        mapped[begin : begin + 8 * documents].cast("q"),
        item,
    )
