"""Digests of tensors: every bit counts, and nothing large is copied.

What tensors hold is seen as one row of words. The words are multiplied each by a number of its
position, mixed, and summed, in pieces that stay in the cache. Sums of integers do not depend on
their order, so the result is the same however many threads there are, and on whatever devices the
tensors are, which do it in their own memory. That is several times as fast as a cryptographic hash,
which then takes the sums of the pieces. Small tensors are put together into pieces, as the fixed
cost of the operations is more than that of a copy.
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
_PIECES_AT_ONCE = 16  # on accelerators, where to begin an operation costs more than a piece
_FEW_WORDS = 1 << 12  # for so many, memory is not kept
# Mixing moves the upper bits down, as a product's lower bits depend on lower bits alone. It cannot
# tell a number from its complement, so products are mixed, of which those are not alike.
_SHIFT = 31
_SEED = 0x5EED
_MODULUS = 1 << 64
_weights: dict[Any, Tensor] = {}


class Contents:
    """The sums over what tensors hold, in the order in which they are added. For one digest.

    Used where gradients are not recorded (``torch.no_grad``).

    A tensor begins with a new word; one that is larger than a piece, or that does not fit into what
    is left of one, with a new piece.

    Attributes:
        pieces: number of those that are complete.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.pieces = 0
        self._used = 0  # bytes of the piece under way
        self._waiting: dict[Any, list[tuple[int, Tensor]]] = {}  # by device: where, and what
        self._sums: list[tuple[int, Tensor]] = []  # first piece, sums of this and further ones
        self._room: dict[Any, Tensor] = {}

    def add(self, tensor: Tensor) -> str:
        """Take a tensor, which is not to change until `sums`; return its type and shape.

        Of a sharded tensor it is the local part. A tensor without content (device ``meta``) is its
        type and shape.

        Raises:
            ValueError: a layout we do not know.
        """
        described = what_it_is(tensor)
        for part in parts(tensor):
            described += f" {part.dtype} {list(part.shape)}"
            self._take(part)
        return described

    def sums(self) -> bytes:
        """Return the sums of all pieces, 8 bytes each."""
        import torch

        self.complete()
        by_device: dict[Any, list[tuple[int, Tensor]]] = {}
        for first, sums in self._sums:
            by_device.setdefault(sums.device, []).append((first, sums))
        totals = [0] * self.pieces
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
                self.complete()
            self._waiting.setdefault(_computing(part), []).append((self._used, part))
            self._used += -(-size // _WORD_BYTES) * _WORD_BYTES

    def _take_large(self, part: Tensor) -> None:
        import torch

        self.complete()
        flat = part.contiguous().reshape(-1).view(torch.uint8)
        if flat.data_ptr() % _WORD_BYTES or flat.storage_offset() % _WORD_BYTES:
            flat = flat.clone()
        whole = flat.nbytes // _WORD_BYTES * _WORD_BYTES
        sums = _sums(flat[:whole].view(torch.int64))
        self._sums.append((self.pieces, sums))
        self.pieces += len(sums)
        self._take(flat[whole:].clone())

    def complete(self) -> None:
        """End the piece under way, if there is one: what is added next begins with a new one."""
        if not self._used:
            return
        words = self._used // _WORD_BYTES
        for device, laid in self._waiting.items():
            rows = self._room_on(device, words)
            _lay(laid, rows[0])
            self._sums.append((self.pieces, _sums_of_rows(rows[:1], rows[1:, None])))
        self._waiting.clear()
        self._used = 0
        self.pieces += 1

    def _room_on(self, device: Any, words: int) -> Tensor:
        """Return a row of zeros, and two more as room to compute in."""
        import torch

        if words <= _FEW_WORDS:
            return torch.zeros(3, words, dtype=torch.int64, device=device)
        if device not in self._room:
            self._room[device] = torch.empty(3, _PIECE_WORDS, dtype=torch.int64, device=device)
        rows = self._room[device][:, :words]
        rows[0].zero_()
        return rows


def finite(tensors: Iterable[Tensor]) -> bool:
    """Tell whether no tensor holds NaN or infinity."""
    import torch

    extremes: dict[Any, list[Tensor]] = {}
    with torch.no_grad():
        for one in tensors:
            for part in parts(one):
                for extreme in _extremes(part):
                    extremes.setdefault((extreme.dtype, extreme.device), []).append(extreme)
        return all(bool(torch.isfinite(torch.stack(some)).all()) for some in extremes.values())


def what_it_is(tensor: Tensor) -> str:
    """Return the type and shape of a tensor."""
    import torch

    if torch.nn.parameter.is_lazy(tensor):  # it gets its shape in the first forward pass
        return "uninitialized"
    # A ragged tensor's shape holds a symbol, whose number is chance; the parts tell more.
    shape = [size if type(size) is int else None for size in tensor.shape]
    return f"tensor {tensor.dtype} {shape}"


def parts(tensor: Tensor) -> Iterator[Tensor]:
    """Return the plain tensors that a tensor consists of; one without a shape yet has none."""
    import torch

    if torch.nn.parameter.is_lazy(tensor):
        return
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided:
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if not tensor.is_meta:
            yield tensor
    elif hasattr(tensor, "to_local"):  # a DTensor; this waits for collectives under way
        yield from parts(tensor.to_local())
    elif hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from parts(getattr(tensor, name))
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
    at_once = _at_once(device)
    whole = len(words) // _PIECE_WORDS * _PIECE_WORDS
    blocks = [*words[:whole].view(-1, _PIECE_WORDS).split(at_once)]
    if whole < len(words):
        blocks.append(words[whole:].view(1, -1))
    room = torch.empty(2, at_once, _PIECE_WORDS, dtype=torch.int64, device=device)
    return torch.cat([_sums_of_rows(block.to(device), room) for block in blocks])


def _at_once(device: Any) -> int:
    """Return how many pieces to take together: on the CPU those that stay in the cache."""
    return 1 if device.type == "cpu" else _PIECES_AT_ONCE


def _sums_of_rows(rows: Tensor, room: Tensor) -> Tensor:
    """Return the sum of each row. ``room`` is twice as large, or larger in any dimension."""
    import torch

    product, mixed = room[:, : len(rows), : rows.shape[1]]
    torch.mul(rows, _weights_on(rows.device)[: rows.shape[1]], out=product)
    torch.bitwise_right_shift(product, _SHIFT, out=mixed)
    mixed.bitwise_xor_(product)
    return mixed.sum(1)


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
