"""A digest for each of many tensors, as fast as they can be read.

What lies in main memory is hashed by xxhash, if that is installed. Elsewhere the device sums it in
its own memory (`undaunted.digests.tensors`), and the sums of all tensors come back together.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
from typing import TYPE_CHECKING, Any

from undaunted.digests.tensors import Contents, parts, what_it_is

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

BYTES = 16
"""Length of a digest."""


def digests_of_each(tensors: Iterable[Tensor]) -> list[bytes]:
    """Return a digest of each tensor, `BYTES` long: its type, its shape, and each bit in it.

    The same tensor has the same digest on devices of one kind, where `how` says the same. Of a
    sharded tensor it is the local part.

    Raises:
        ValueError: a tensor has a layout we do not know.
    """
    import torch

    xxhash = _xxhash()
    contents = Contents()
    each: list[tuple[list[bytes], slice]] = []  # what is known, and where the sums of the rest are
    with torch.no_grad():
        for tensor in tensors:
            known = [what_it_is(tensor).encode()]
            first = contents.pieces
            for part in parts(tensor):
                known.append(f"{part.dtype} {list(part.shape)}".encode())
                if part.is_cpu and xxhash is not None:
                    known.append(_hash(xxhash, part))
                else:
                    contents.add(part)
            contents.complete()
            each.append((known, slice(first * 8, contents.pieces * 8)))
        sums = contents.sums()
    return [_joined([*known, sums[where]]) for known, where in each]


def how() -> str:
    """Say how tensors in main memory are hashed: digests made in different ways differ."""
    return "sums" if _xxhash() is None else "xxh3"


@functools.cache
def _xxhash() -> Any:
    try:
        return importlib.import_module("xxhash")
    except ImportError:
        return None


def _hash(xxhash: Any, part: Tensor) -> bytes:
    whole = part.contiguous()
    content = (ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()) if whole.nbytes else b""
    digest: bytes = xxhash.xxh3_128_digest(content)
    return digest


def _joined(pieces: Iterable[bytes]) -> bytes:
    hashed = hashlib.blake2b(digest_size=BYTES)
    for piece in pieces:
        hashed.update(b"%d:%b" % (len(piece), piece))
    return hashed.digest()
