"""Digests of values and of tensors' content, the same in every process for what is equal.

Nothing here depends on the order of a set, on how a dictionary grew, on addresses or on how pickle
shares what it has seen. A value of a type that is not known here counts as equal to every other
one: a difference that is missed costs less than a false alarm.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import hashlib
import io
import pathlib
import pickle
import sys
import uuid
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from undaunted.checkpointing.dcp.packed import is_packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BYTES = 16
_NUMBERS = {bool, int, float, type(None)}
_PLAIN = {*_NUMBERS, str}
# Values that their ``repr`` tells.
_BY_REPR = (
    bool, int, float, complex, type(None), range, slice, dt.date, dt.timedelta,
    decimal.Decimal,
    fractions.Fraction, uuid.UUID, pathlib.PurePath, torch.dtype,
)  # fmt: skip
# Of longer tensors, sums over their bits are compared, since these need no copy to the CPU.
_SHORT_BYTES = 4096
_COLUMNS = 4096
_UNKNOWN = b"unknown"


def of_value(value: Any) -> bytes:
    """Return the digest of any value that is not itself a tensor to be saved."""
    try:
        return _Walk().digest(value)
    except RecursionError:
        return _UNKNOWN


def of_values(values: Iterable[Any]) -> bytes:
    """Return one digest of many values, of which most are numbers and short texts."""
    told = [one if type(one) in _PLAIN else of_value(one) for one in map(_of_python, values)]
    return _hash(b"", repr(told).encode())


def of_digests(digests: Iterable[bytes]) -> bytes:
    """Return one digest of many."""
    return _hash(b"", *digests)


def of_tensors(tensors: Sequence[torch.Tensor]) -> list[bytes]:
    """Return the digests of tensors' content; empty for one whose content cannot be read.

    Long ones are summed up where they are. One copy for each device brings all to the CPU.
    """
    digests = [b""] * len(tensors)
    by_device: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    with torch.no_grad():
        for at, tensor in enumerate(tensors):
            if (parts := _parts(tensor)) is not None:
                inner = of_tensors(parts)
                digests[at] = _hash(_kind(tensor), *inner) if all(inner) else b""
                continue
            bits = _bits(tensor)  # may be a copy, which is not kept
            if bits is not None:
                by_device.setdefault(bits.device, []).append((at, _summary(bits)))
    for summaries in by_device.values():
        of_device = torch.cat([part for _, part in summaries]).cpu()
        # Without numpy, which some installations of torch lack.
        joined = memoryview(ctypes.string_at(of_device.data_ptr(), of_device.numel()))
        end = 0
        for at, part in summaries:
            start, end = end, end + part.numel()
            digests[at] = _hash(_kind(tensors[at]), joined[start:end])
    return digests


def _kind(tensor: torch.Tensor) -> bytes:
    return f"{tensor.dtype} {tuple(tensor.shape)}".encode()


def _parts(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The tensors that a packed, sparse or quantized one is made of; None for an ordinary one."""
    if is_packed(tensor):
        if not is_traceable_wrapper_subclass(tensor):
            return None
        return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    if tensor.layout == torch.sparse_coo:
        whole = tensor.coalesce()
        return [whole.indices(), whole.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_quantized:
        return [tensor.int_repr(), *_scales(tensor)]
    return None


def _scales(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return [torch.tensor([tensor.q_scale(), tensor.q_zero_point()], dtype=torch.float64)]
    return [tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]


def _bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """The content as a vector of bytes, without a copy where the tensor is contiguous."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested or is_packed(tensor):
        return None
    try:
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return plain.reshape(-1).view(torch.uint8)
    except RuntimeError:  # dtypes of less than a byte
        return None


def _summary(bits: Any) -> torch.Tensor:
    """Few bytes that stand for many; sums wrap around, so that their order makes no difference."""
    if bits.numel() <= _SHORT_BYTES:
        return bits
    end = bits.numel() // (8 * _COLUMNS) * (8 * _COLUMNS)
    rest = bits[end:]
    head = bits[:end] if bits.storage_offset() % 8 == 0 else bits[:end].clone()
    table = head.view(torch.int64).view(-1, _COLUMNS)
    sums = [_weighted(table.sum(0)), _weighted(table.sum(1))]
    last = torch.nn.functional.pad(rest, (0, -rest.numel() % 8)).view(torch.int64)
    return torch.stack([*sums, _weighted(last)]).view(torch.uint8)


def _weighted(numbers: torch.Tensor) -> torch.Tensor:
    """A sum in which it matters where a number stands."""
    weights = torch.arange(numbers.numel(), dtype=torch.int64, device=numbers.device)
    return (numbers * (2 * weights + 1)).sum()


def _hash(kind: bytes, *parts: bytes | bytearray | memoryview) -> bytes:
    made = hashlib.blake2b(kind, digest_size=BYTES)
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()


class _Walk:
    """Through one value; what is met again, also inside itself, is known already."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[Any, bytes]] = {}  # with the object, so that no id comes again

    def digest(self, value: Any) -> bytes:
        value = _of_python(value)
        kind = type(value).__qualname__.encode()
        if isinstance(value, enum.Enum):
            return _hash(b"enum " + kind, value.name.encode())
        if isinstance(value, str):
            return _hash(b"str", value.encode("utf-8", "surrogatepass"))
        if isinstance(value, (dt.datetime, dt.time)):
            return _hash(kind, value.isoformat().encode())
        if isinstance(value, _BY_REPR):
            return _hash(kind, repr(value).encode())
        if isinstance(value, (bytes, bytearray)):
            return _hash(kind, value)
        if isinstance(value, io.BytesIO):
            return _hash(kind, value.getvalue())
        if isinstance(value, torch.Tensor):
            return _of_tensor(value)
        if id(value) not in self._met:
            self._met[id(value)] = (value, _UNKNOWN)
            self._met[id(value)] = (value, self._of_container(kind, value))
        return self._met[id(value)][1]

    def _of_container(self, kind: bytes, value: Any) -> bytes:
        if isinstance(value, Mapping):
            pairs = (self.digest(key) + self.digest(one) for key, one in value.items())
            return _hash(kind, *sorted(pairs))
        if isinstance(value, AbstractSet):
            return _hash(kind, *sorted(map(self.digest, value)))
        if isinstance(value, (list, tuple, deque)):
            if set(map(type, value)) <= _NUMBERS:  # there may be millions
                return _hash(kind, pickle.dumps(list(value), protocol=4))
            return _hash(kind, *map(self.digest, value))
        if isinstance(value, argparse.Namespace):
            return _hash(kind, self.digest(vars(value)))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
            return _hash(kind, *map(self.digest, fields))
        return self._of_array(value)

    def _of_array(self, value: Any) -> bytes:
        numpy = sys.modules.get("numpy")
        if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
            return _UNKNOWN
        array = numpy.asarray(value)
        kind = f"{array.dtype.str} {array.shape}".encode()
        if array.dtype.hasobject:
            return _hash(kind, *map(self.digest, array.ravel().tolist()))
        return _hash(kind, array.tobytes())


def _of_python(value: Any) -> Any:
    """Return a number of numpy as one of Python: it is the same for a user."""
    if type(value) in _PLAIN:
        return value
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.number, numpy.bool_)):
        number = value.item()
        return value if isinstance(number, numpy.generic) else number
    return value


def _of_tensor(value: torch.Tensor) -> bytes:
    return of_tensors([value])[0] or _UNKNOWN
