"""Digests of tensors: every bit counts, and nothing large is copied.

What tensors hold is seen as one row of words. The words are mixed, each multiplied by a number of
its position, and summed, in pieces that stay in the cache. Sums of integers do not depend on their
order, so the result is the same however many threads there are, and on whatever devices the tensors
are, which do it in their own memory. That is several times as fast as a cryptographic hash, which
then takes the sums of the pieces. Small tensors are put together into pieces, as the fixed cost of
the operations is more than that of a copy.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

_WORD_BYTES = 8
_PIECE_WORDS = 1 << 17
_PIECE_BYTES = _PIECE_WORDS * _WORD_BYTES
_FEW_WORDS = 1 << 12  # for so many, memory is not kept
# Mixing moves the upper bits down, as a product's lower bits depend on lower bits alone.
_SHIFT = 31
_SEED = 0x5EED
_MODULUS = 1 << 64
_weights: dict[Any, Tensor] = {}


class Contents:
    """The sums over what tensors hold, in the order in which they are added. For one digest.

    Used where gradients are not recorded (``torch.no_grad``).

    A tensor begins with a new word; one that is larger than a piece, or that does not fit into what
    is left of one, with a new piece.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._pieces = 0  # that are complete
        self._used = 0  # bytes of the piece under way
        self._waiting: dict[Any, list[tuple[int, Tensor]]] = {}  # by device: where, and what
        self._sums: list[tuple[int, Tensor]] = []  # first piece, sums of this and further ones
        self._room: dict[Any, tuple[Tensor, Tensor]] = {}

    def add(self, tensor: Tensor) -> str:
        """Take a tensor, which is not to change until `sums`; return its type and shape.

        Of a sharded tensor it is the local part. A tensor without content (device ``meta``) is its
        type and shape.

        Raises:
            ValueError: a layout we do not know.
        """
        import torch

        if torch.nn.parameter.is_lazy(tensor):  # it gets its shape in the first forward pass
            return "uninitialized"
        # A ragged tensor's shape holds a symbol, whose number is chance; the parts tell more.
        shape = [size if type(size) is int else None for size in tensor.shape]
        described = f"tensor {tensor.dtype} {shape}"
        for part in _parts(tensor):
            described += f" {part.dtype} {list(part.shape)}"
            self._take(part)
        return described

    def sums(self) -> bytes:
        """Return the sums of all pieces, 8 bytes each."""
        import torch

        self._complete()
        by_device: dict[Any, list[tuple[int, Tensor]]] = {}
        for first, sums in self._sums:
            by_device.setdefault(sums.device, []).append((first, sums))
        totals = [0] * self._pieces
        for entries in by_device.values():
            numbers = iter(torch.cat([sums for _, sums in entries]).tolist())
            for first, sums in entries:
                for piece, number in enumerate(itertools.islice(numbers, len(sums)), first):
                    totals[piece] = (totals[piece] + number) % _MODULUS
        return struct.pack(f"<{len(totals)}Q", *totals)

    def _take(self, part: Tensor) -> None:
        size = part.nbytes
        if size > _PIECE_BYTES:
            self._take_large(part)
        elif size:
            if self._used + size > _PIECE_BYTES:
                self._complete()
            self._waiting.setdefault(_computing(part), []).append((self._used, part))
            self._used += -(-size // _WORD_BYTES) * _WORD_BYTES

    def _take_large(self, part: Tensor) -> None:
        import torch

        self._complete()
        flat = part.contiguous().reshape(-1).view(torch.uint8)
        if flat.data_ptr() % _WORD_BYTES or flat.storage_offset() % _WORD_BYTES:
            flat = flat.clone()
        whole = flat.nbytes // _WORD_BYTES * _WORD_BYTES
        sums = _sums(flat[:whole].view(torch.int64))
        self._sums.append((self._pieces, sums))
        self._pieces += len(sums)
        self._take(flat[whole:].clone())

    def _complete(self) -> None:
        """End the piece under way, if there is one."""
        if not self._used:
            return
        words = self._used // _WORD_BYTES
        for device, parts in self._waiting.items():
            row, room = self._room_on(device, words)
            _lay(parts, row)
            self._sums.append((self._pieces, _sum(row, room).reshape(1)))
        self._waiting.clear()
        self._used = 0
        self._pieces += 1

    def _room_on(self, device: Any, words: int) -> tuple[Tensor, Tensor]:
        """Return a row of zeros, and as much room to compute in."""
        import torch

        if words <= _FEW_WORDS:
            rows = torch.zeros(2, words, dtype=torch.int64, device=device)
            return rows[0], rows[1]
        if device not in self._room:
            rows = torch.empty(2, _PIECE_WORDS, dtype=torch.int64, device=device)
            self._room[device] = rows[0], rows[1]
        row, room = self._room[device]
        return row[:words].zero_(), room[:words]


def finite(tensors: Iterable[Tensor]) -> bool:
    """Tell whether no tensor holds NaN or infinity."""
    import torch

    extremes: dict[Any, list[Tensor]] = {}
    with torch.no_grad():
        for one in tensors:
            for part in _parts(one):
                for extreme in _extremes(part):
                    extremes.setdefault((extreme.dtype, extreme.device), []).append(extreme)
        return all(bool(torch.isfinite(torch.stack(some)).all()) for some in extremes.values())


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Return the plain tensors that a tensor consists of."""
    import torch

    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided:
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if not tensor.is_meta:
            yield tensor
    elif hasattr(tensor, "to_local"):  # a DTensor; this waits for collectives under way
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


def _lay(parts: Iterable[tuple[int, Tensor]], row: Tensor) -> None:
    """Copy tensors to their places, given in bytes, of a row of words."""
    import torch

    here = row.data_ptr()
    for start, part in parts:
        whole = part.contiguous()
        if whole.is_cpu and row.is_cpu:
            ctypes.memmove(here + start, whole.data_ptr(), whole.nbytes)
        else:
            flat = whole.reshape(-1).view(torch.uint8)
            row.view(torch.uint8)[start : start + flat.nbytes].copy_(flat)


def _sums(words: Tensor) -> Tensor:
    """Return the sums of the pieces of a large tensor."""
    import torch

    device = _computing(words)
    room = torch.empty(_PIECE_WORDS, dtype=torch.int64, device=device)
    pieces = words.split(_PIECE_WORDS)
    return torch.stack([_sum(piece.to(device), room[: len(piece)]) for piece in pieces])


def _sum(words: Tensor, room: Tensor) -> Tensor:
    import torch

    torch.bitwise_right_shift(words, _SHIFT, out=room)
    room.bitwise_xor_(words)
    room.mul_(_weights_on(words.device)[: len(words)])
    return room.sum()


def _computing(tensor: Tensor) -> Any:
    """Return the device on which to compute: that of the tensor, if it has integers of 64 bits."""
    import torch

    return tensor.device if tensor.is_cpu or tensor.is_cuda else torch.device("cpu")


def _weights_on(device: Any) -> Tensor:
    """Odd numbers, which lose no bit of what they multiply."""
    import torch

    if device not in _weights:
        generator = torch.Generator().manual_seed(_SEED)
        low, high = -(1 << 62), (1 << 62) - 1
        numbers = torch.randint(low, high, (_PIECE_WORDS,), generator=generator, device="cpu")
        _weights[device] = (numbers * 2 + 1).to(device)
    return _weights[device]


def _extremes(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the least and the largest number, which are NaN if there is one; () if they are none.

    In one pass, and without memory of a tensor's size.
    """
    import torch

    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point() or not tensor.numel():
        return ()
    if tensor.dtype.itemsize == 1:  # of types of 8 bits little more than conversion is known
        tensor = tensor.to(torch.float32)
    return tuple(torch.aminmax(tensor))
