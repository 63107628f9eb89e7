"""A digest for each of many tensors, as fast as they can be read.

What lies in main memory is hashed by xxhash, if that is installed. Elsewhere the device sums it in
its own memory (`undaunted.digests.tensors`), and the sums of all tensors come back together.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from undaunted.digests.tensors import Contents, parts, what_it_is

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

BYTES = 16
"""Length of a digest."""
_MAX_THREADS = 16
_FOR_THREADS_BYTES = 1 << 24  # fewer are hashed before a thread has started


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
    plain: list[Tensor] = []  # hashed in main memory
    each: list[tuple[bytes, slice, slice]] = []  # what it is, which of these, where in the sums
    with torch.no_grad():
        for tensor in tensors:
            described = what_it_is(tensor)
            start, first = len(plain), contents.pieces
            for part in parts(tensor):
                described += f" {part.dtype} {list(part.shape)}"
                if part.is_cpu and xxhash is not None:
                    plain.append(part)
                else:
                    contents.add(part)
            contents.complete()
            where = slice(first * 8, contents.pieces * 8)
            each.append((described.encode(), slice(start, len(plain)), where))
        hashes = _hashes(xxhash, plain, torch.get_num_threads())
        sums = contents.sums()
    return [_joined([described, *hashes[own], sums[at]]) for described, own, at in each]


def how() -> str:
    """Say how tensors in main memory are hashed: digests made in different ways differ."""
    return "sums" if _xxhash() is None else "xxh3"


@functools.cache
def _xxhash() -> Any:
    try:
        return importlib.import_module("xxhash")
    except ImportError:
        return None


def _hashes(xxhash: Any, tensors: Sequence[Tensor], threads: int) -> list[bytes]:
    """Hash tensors in main memory, with as many threads as torch computes with."""
    hash_one = functools.partial(_hash, xxhash)
    threads = min(threads, len(tensors), _MAX_THREADS)
    if threads < 2 or sum(one.nbytes for one in tensors) < _FOR_THREADS_BYTES:
        return [hash_one(one) for one in tensors]
    with ThreadPoolExecutor(threads, "undaunted-digest") as pool:
        return [*pool.map(hash_one, tensors)]


def _hash(xxhash: Any, part: Tensor) -> bytes:
    whole = part.detach().contiguous()  # threads of the pool record gradients
    content = (ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()) if whole.nbytes else b""
    digest: bytes = xxhash.xxh3_128_digest(content)
    return digest


def _joined(pieces: Iterable[bytes]) -> bytes:
    hashed = hashlib.blake2b(digest_size=BYTES)
    for piece in pieces:
        hashed.update(b"%d:%b" % (len(piece), piece))
    return hashed.digest()
