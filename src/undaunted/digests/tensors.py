"""Digests of tensors: every bit counts, and nothing large is copied.

The words of a tensor are mixed, each multiplied by a number of its position, and summed, in pieces
that stay in the cache. Sums of integers do not depend on their order, so the result is the same
however many threads there are; and devices do it in their own memory. That is several times as
fast as a cryptographic hash, which then takes the sums of the pieces.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

_WORD_BYTES = 8
_PIECE_WORDS = 1 << 17
# Below this, the fixed cost of the operations is more than that of hashing bytes.
_SMALL_BYTES = 1 << 14
# Mixing moves the upper bits down, as a product's lower bits depend on lower bits alone.
_SHIFT = 31
_SEED = 0x5EED
# Elsewhere integers of 64 bits may be missing: such tensors are copied piece by piece.
_COMPUTING_DEVICES = ("cpu", "cuda")

_weights: dict[Any, Tensor] = {}


def content(tensor: Tensor) -> list[bytes]:
    """Return what stands for a tensor: type, shape and content, to be fed to a hash.

    Of a sharded tensor it is the local part. A tensor without content (device ``meta``) is its type
    and shape.

    Raises:
        ValueError: a layout we do not know.
    """
    import torch

    if torch.nn.parameter.is_lazy(tensor):  # it gets its shape in the first forward pass
        return [b"uninitialized"]
    # A ragged tensor's shape holds a symbol, whose number is chance; the parts tell more.
    shape = [size if type(size) is int else None for size in tensor.shape]
    pieces = [f"tensor {tensor.dtype} {shape}".encode()]
    with torch.no_grad():
        for part in _parts(tensor.detach()):
            pieces.append(f"{part.dtype} {tuple(part.shape)}".encode())
            pieces.extend(_bits(part))
    return pieces


def finite(tensors: Iterable[Tensor]) -> bool:
    """Tell whether no tensor holds NaN or infinity."""
    import torch

    with torch.no_grad():
        return all(_finite(part) for one in tensors for part in _parts(one.detach()))


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Return the plain tensors that a tensor consists of."""
    import torch

    if hasattr(tensor, "to_local"):  # a DTensor; this waits for collectives under way
        yield from _parts(tensor.to_local())
    elif hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from _parts(getattr(tensor, name))
    elif tensor.layout == torch.sparse_coo:
        whole = tensor.coalesce()
        yield from (whole.indices(), whole.values())
    elif tensor.layout != torch.strided:
        raise ValueError(f"a tensor of layout {tensor.layout} has no digest; give a dense one")
    elif not tensor.is_meta:
        yield tensor.resolve_conj().resolve_neg()


def _bits(tensor: Tensor) -> list[bytes]:
    import torch

    if not tensor.nbytes:
        return []
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    if flat.nbytes < _SMALL_BYTES:
        return [_raw(flat)]
    if flat.storage_offset() % _WORD_BYTES or flat.data_ptr() % _WORD_BYTES:
        flat = flat.clone()
    whole = flat.nbytes // _WORD_BYTES * _WORD_BYTES
    sums = _sums(flat[:whole].view(torch.int64))
    return [sums, _raw(flat[whole:])] if whole < flat.nbytes else [sums]


def _sums(words: Tensor) -> bytes:
    import torch

    device = words.device if words.device.type in _COMPUTING_DEVICES else torch.device("cpu")
    weights = _weights_on(device)
    mixed = torch.empty_like(weights[: len(words)])
    sums = []
    for piece in words.split(_PIECE_WORDS):
        local = piece.to(device)
        here = mixed[: len(local)]
        torch.bitwise_right_shift(local, _SHIFT, out=here)
        here.bitwise_xor_(local)
        here.mul_(weights[: len(local)])
        sums.append(here.sum())
    return _raw(torch.stack(sums).view(torch.uint8))


def _weights_on(device: Any) -> Tensor:
    """Odd numbers, which lose no bit of what they multiply."""
    import torch

    if device not in _weights:
        generator = torch.Generator().manual_seed(_SEED)
        low, high = -(1 << 62), (1 << 62) - 1
        numbers = torch.randint(low, high, (_PIECE_WORDS,), generator=generator, device="cpu")
        _weights[device] = (numbers * 2 + 1).to(device)
    return _weights[device]


def _raw(flat: Tensor) -> bytes:
    here = flat.cpu()
    return ctypes.string_at(here.data_ptr(), here.nbytes)


def _finite(tensor: Tensor) -> bool:
    import torch

    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    if tensor.dtype.itemsize == 1:  # of types of 8 bits little more than conversion is known
        tensor = tensor.to(torch.float32)
    # Both are NaN if there is one. In one pass, and without memory of a tensor's size.
    return bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())
