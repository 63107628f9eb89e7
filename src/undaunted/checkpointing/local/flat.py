"""Between a state and its flat form: one buffer with everything in it, see `shard`."""

from __future__ import annotations

import ctypes
import io
import math
import mmap
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from undaunted.checkpointing.dcp import objects
from undaunted.checkpointing.errors import CheckpointError, DamagedCheckpointError, StateError
from undaunted.checkpointing.local import (
    basic_state_dict,  # noqa: F401 - becomes known
    format1,
    shard,
)
from undaunted.checkpointing.local.base_state_dict import (
    PlainError,
    TensorAwareStateDict,
    TensorPlaceholder,
    dtype_of,
)
from undaunted.checkpointing.memory import copy
from undaunted.checkpointing.memory.copy import memory_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.checkpointing.local.shard import Head


class Identity(NamedTuple):
    """The shard, and its save; see `shard.Head`."""

    iteration: int
    rank: int
    world_size: int
    session: str
    save: str
    saved_at: float


class Prepared(NamedTuple):
    """A state that is about to be copied.

    Attributes:
        head: of the shard.
        encoded: the head with its prefix.
        tensors: each once, with its offset in the image.
        size: of the image, bytes.
    """

    head: Head
    encoded: bytes
    tensors: list[tuple[torch.Tensor, int]]
    size: int


def prepare(
    state: TensorAwareStateDict, identity: Identity, allow_pickle: bool = False
) -> Prepared:
    """Lay out a state; it is as before afterwards.

    Raises:
        PlainError: it has something that could not be read again; it is named.
    """
    tensors = state.pop_tensors()
    try:
        for index, tensor in enumerate(tensors):
            if problem := _problem(tensor):
                raise PlainError(f"{_place(state, index)} {problem}")
        kind, hollow = encode_state(state, allow_pickle)
    finally:
        state.insert_tensors(tensors)
    tensors = [tensor.detach() for tensor in tensors]
    first = _first_of_each(tensors)
    offsets, end = shard.place_tensors([tensors[at].nbytes for at in dict.fromkeys(first)])
    by_first = dict(zip(dict.fromkeys(first), offsets, strict=True))
    head = shard.Head(
        format=shard.FORMAT_VERSION,
        **identity._asdict(),
        kind=kind,
        state=hollow,
        tensors=[
            shard.Tensor(dtype_name(one.dtype), list(one.shape), by_first[at], one.nbytes)
            for one, at in zip(tensors, first, strict=True)
        ],
        data_bytes=end,
    )
    encoded = shard.encode_head(head)
    start = shard.data_offset(len(encoded))
    places = [(tensors[at], start + offset) for at, offset in by_first.items()]
    return Prepared(head, encoded, places, start + end)


def copy_into(prepared: Prepared, flat: torch.Tensor) -> None:
    """Copy a state into a buffer; when this returns, its content is fixed.

    Args:
        prepared: the state.
        flat: bytes in host memory, at least as many as it has.
    """
    encoded = torch.frombuffer(bytearray(prepared.encoded), dtype=torch.uint8)
    flat[: len(encoded)] = encoded
    tensors = [(tensor, offset) for tensor, offset in prepared.tensors if tensor.nbytes]
    places = [
        flat[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, offset in tensors
    ]
    copy.copy_into(places, [tensor for tensor, _ in tensors])


def new_tensors(head: Head, path: str) -> list[torch.Tensor]:
    """Return empty tensors in host memory for a shard; tied ones are one and the same.

    Raises:
        DamagedCheckpointError: the head describes tensors that cannot be.
    """
    made: dict[tuple[int, str, tuple[int, ...]], torch.Tensor] = {}
    tensors = []
    for one in head.tensors:
        key = (one.offset, one.dtype, tuple(one.shape))
        if key not in made or not one.size:
            try:
                dtype = dtype_of(one.dtype)
            except ValueError as error:
                raise DamagedCheckpointError(f"{path}: {error}", path) from error
            if min(one.shape, default=0) < 0 or math.prod(one.shape) * dtype.itemsize != one.size:
                raise DamagedCheckpointError(f"{path}: the head contradicts itself", path)
            made[key] = torch.empty(one.shape, dtype=dtype)
            map_at_once(made[key].data_ptr(), one.size)
        tensors.append(made[key])
    return tensors


def rebuild(
    head: Head, tensors: Sequence[torch.Tensor], path: str, allow_pickle: bool = False
) -> TensorAwareStateDict:
    """Return the state with its tensors, each on its device.

    Raises:
        DamagedCheckpointError: the head does not fit to itself, or must not be read.
    """
    try:
        state = decode_state(head, path, allow_pickle)
        state.insert_tensors(list(tensors))
    except (PlainError, ValueError) as error:
        raise DamagedCheckpointError(f"{path}: {error}", path) from error
    state.restore_tensor_device(non_blocking=False)
    return state


def rebuild_from(flat: torch.Tensor, path: str, allow_pickle: bool = False) -> TensorAwareStateDict:
    """Return the state in a buffer, in memory of its own.

    Raises:
        DamagedCheckpointError: it is not a shard.
    """
    prefix = memory_of(flat[: shard.PREFIX_BYTES]).tobytes()
    end, _ = shard.head_length(prefix, path)
    head = shard.decode_head(memory_of(flat[:end]).tobytes(), path)
    start = shard.data_offset(end)
    tensors = new_tensors(head, path)
    for tensor, one in zip(tensors, head.tensors, strict=True):
        if one.size:
            content = flat[start + one.offset : start + one.offset + one.size]
            tensor.reshape(-1).view(torch.uint8).copy_(content)
    return rebuild(head, tensors, path, allow_pickle)


def _problem(tensor: Any) -> str:
    """Say why a tensor has no bytes of its own; empty if it has."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        hint = ": give its local part, to_local()" if hasattr(tensor, "to_local") else ""
        return f"is a {type(tensor).__name__}{hint}"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        what = f"(layout {tensor.layout}, {tensor.dtype}, device {tensor.device})"
        return f"has no plain bytes {what}"
    return ""


def _place(state: TensorAwareStateDict, index: int) -> str:
    """Say which tensor was taken out of a state as one of many."""
    try:
        paths = list(_paths(state.plain_state(), ()))
    except PlainError:
        paths = []
    return f"tensor {index}" + (f" ({paths[index]})" if index < len(paths) else "")


def _paths(value: object, path: tuple[object, ...]) -> Iterator[str]:
    if isinstance(value, TensorPlaceholder):
        yield ".".join(map(str, path))
    elif isinstance(value, (dict, list, tuple)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(one, (*path, key))


def _first_of_each(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return for each tensor the index of the first one that is the same memory."""
    seen: dict[Any, int] = {}
    return [
        seen.setdefault(
            (
                one.device,
                one.data_ptr(),
                one.dtype,
                one.shape,
                one.stride(),
                one.is_conj(),
                one.is_neg(),
            )
            if one.nbytes
            else at,
            at,
        )
        for at, one in enumerate(tensors)
    ]


_PICKLED = "pickle"
_HINT = (
    "loading would refuse it. Convert it to plain data, or give allow_pickle=True: reading a file "
    "then runs whatever code those who can write to the folder have put into it"
)
_SAFE = (TensorPlaceholder,)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type of torch, without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def encode_state(hollow: TensorAwareStateDict, allow_pickle: bool) -> tuple[str, bytes]:
    """Return kind and content of a hollow state.

    Raises:
        PlainError: something in it could not be read again; it is named.
    """
    try:
        kind, state = hollow.kind(), hollow.plain_state()
    except PlainError:
        if not allow_pickle:
            raise
        kind, state = _PICKLED, hollow
    try:
        return kind, objects.dump_loadable(state, _SAFE, unchecked=allow_pickle)
    except StateError as error:
        raise PlainError(f"{error}: {_HINT}") from error


def decode_state(head: Head, path: str, allow_pickle: bool) -> TensorAwareStateDict:
    """Return the hollow state.

    Raises:
        PlainError: it must not be read, or is of a class that is not known here.
        DamagedCheckpointError: it cannot be read.
    """
    pickled = head.kind == _PICKLED
    if not pickled and head.kind not in TensorAwareStateDict.kinds:
        raise PlainError(f"the class {head.kind} is not known here: import it before loading")
    if head.format == 1:
        of = format1.unpickle if pickled else format1.decode
        state = of(head.state, allow_pickle=allow_pickle)
    elif allow_pickle:
        state = torch.load(io.BytesIO(head.state), weights_only=False)
    else:
        try:
            state = objects.load_object(head.state, "the state", path, _SAFE)
        except DamagedCheckpointError:
            raise
        except CheckpointError as error:
            raise PlainError(
                f"{error}; or give allow_pickle=True only if nobody else can write to the folder"
            ) from error
    if not pickled:
        return TensorAwareStateDict.kinds[head.kind].from_plain_state(state)
    if not isinstance(state, TensorAwareStateDict):
        raise PlainError(f"an object of type {type(state).__name__}, not a state")
    return state


_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", 14)
_POPULATE_WRITE = getattr(mmap, "MADV_POPULATE_WRITE", 23)
_WORTH_IT_BYTES = 4 << 20

_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_at_once(address: int, size: int) -> None:
    """Map memory that is about to be filled; what a kernel cannot do it leaves.

    Args:
        address: of memory of this process; its content stays.
        size: bytes.
    """
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if end - start >= _WORTH_IT_BYTES:
        for advice in (_HUGE_PAGES, _POPULATE_WRITE):
            _madvise(start, end - start, advice)
