"""Copying a state into memory of the host: what training waits for."""

from __future__ import annotations

import copy
import ctypes
import logging
import sys
from typing import TYPE_CHECKING, Any

import torch

from undaunted.checkpointing.dcp.torch_private import copy_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.checkpointing.memory.arena import Arena

_log = logging.getLogger(__name__)

_FOR_ALL_CONTEXTS = 1  # cudaHostRegisterPortable


def view_of(arena: Arena, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor over the arena's memory; it keeps the memory alive."""
    count = 1
    for length in shape:
        count *= length
    if not count:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    # Also where inference mode is on: what is made in it could not be written to outside of it.
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(mode=False):
            return view_of(arena, offset, dtype, shape)
    flat = torch.frombuffer(arena.memory, dtype=dtype, count=count, offset=offset)
    return flat.view(tuple(shape))


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor in host memory; they live as long as this view.

    A thread may fill them although the tensor is gone, or has got other memory since.
    """
    if not tensor.nbytes:
        return memoryview(b"")
    # Without numpy, which some installations of torch lack.
    content = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    content.owner = tensor.untyped_storage()
    return memoryview(content).cast("B")


def copy_into(
    destinations: Sequence[torch.Tensor],
    sources: Sequence[torch.Tensor],
    arena: Arena | None = None,
    arriving: list[Any] | None = None,
) -> None:
    """Copy every source to its destination in memory of the host; all is there when this returns.

    Args:
        destinations: views of an arena, or of other memory.
        sources: of the same shapes, on any device, contiguous or not, with or without gradients.
        arena: whose memory is pinned when something comes from a CUDA device.
        arriving: gets the events at which copies have arrived that are only ordered when this
            returns: before whatever comes next on the default stream of their CUDA device. None
            waits for them. Copies from other streams and devices are always waited for.
    """
    with torch.no_grad():
        there = [not source.is_cpu for source in sources]
        if not any(there):
            copy_each(destinations, sources)
            return
        if arena is not None:
            pin(arena, next(source.device for source in sources if not source.is_cpu))
        pairs = list(zip(destinations, sources, there, strict=True))
        for destination, source, elsewhere in pairs:
            if elsewhere:
                destination.copy_(source, non_blocking=True)
                if arriving is not None and source.is_cuda:  # its memory may be another stream's
                    source.record_stream(torch.cuda.current_stream(source.device))
        here = [(d, s) for d, s, elsewhere in pairs if not elsewhere]
        if here:  # while the devices copy
            copy_each([d for d, _ in here], [s for _, s in here])
        devices = {source.device for _, source, elsewhere in pairs if elsewhere}
        if arriving is not None:
            ordered = {device for device in devices if _on_default_stream(device)}
            arriving += [_event(device) for device in ordered]
            devices -= ordered
        _synchronise(devices)


def _event(device: torch.device) -> Any:
    event = torch.cuda.Event(blocking=True)  # who waits for it leaves the processor to others
    event.record(torch.cuda.current_stream(device))
    return event


def _on_default_stream(device: torch.device) -> bool:
    """Return whether what training does next comes after what is on the current stream.

    On another one it need not: training may go on with the default stream, without a wait.
    """
    if device.type != "cuda":
        return False
    return bool(torch.cuda.current_stream(device) == torch.cuda.default_stream(device))


def _synchronise(devices: set[torch.device]) -> None:
    for device in devices:
        module = torch.get_device_module(device)
        if hasattr(module, "current_stream"):
            module.current_stream(device).synchronize()
        else:  # of Apple
            module.synchronize()


def warm_up(arena: Arena) -> None:
    """Make an arena ready for its first snapshot: pages mapped, and pinned where there is CUDA.

    Call it before the first snapshot, on a thread whose CUDA device is the rank's. It does not hold
    the interpreter's lock.
    """
    if torch.cuda.is_initialized():
        pin(arena, torch.device("cuda", torch.cuda.current_device()))
    else:
        arena.touch()


def pin(arena: Arena, device: torch.device) -> None:
    """Register the arena with CUDA, so that devices copy to it at full speed; only once.

    Where that does not go, copies are slower, and that is all.

    Args:
        arena: the memory.
        device: in whose context; another thread may have another one, or none.
    """
    if arena.before_close is not None or device.type != "cuda":
        return
    arena.touch()  # CUDA would map the pages one after the other
    address = torch.frombuffer(arena.memory, dtype=torch.uint8).data_ptr()
    runtime: Any = torch.cuda.cudart()
    with torch.cuda.device(device):
        problem = int(runtime.cudaHostRegister(address, arena.size, _FOR_ALL_CONTEXTS))
    if problem:
        _log.warning("copies of checkpoints will be slow: cudaHostRegister says error %d", problem)
        arena.before_close = lambda: None
        return
    arena.before_close = lambda: runtime.cudaHostUnregister(address)


def host_copy(value: Any, deep: bool = False) -> Any:
    """Return a copy whose content is fixed: tensors of all devices are in new memory of the CPU.

    Dicts, lists, tuples and sets are built anew. What is the same tensor in several places, also as
    different views of the same elements, is the same copy.

    Args:
        value: any nesting; left alone.
        deep: whether other objects are copied too (`copy.deepcopy`), or handed on.
    """
    memo: dict[Any, Any] = {}
    fixed = _fixed(value, memo, deep)
    _synchronise(memo.get("devices", set()))
    return fixed


def _fixed(value: Any, memo: dict[Any, Any], deep: bool) -> Any:
    if isinstance(value, dict):
        return _like(value, [(k, _fixed(v, memo, deep)) for k, v in value.items()], deep)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_fixed(v, memo, deep) for v in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_fixed(v, memo, deep) for v in value))
    if isinstance(value, torch.Tensor):
        return _fixed_tensor(value, memo)
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.ndarray):
        return copy.deepcopy(value)
    if isinstance(value, bytearray):
        return bytearray(value)
    return copy.deepcopy(value) if deep else value


def _like(value: dict[Any, Any], items: list[tuple[Any, Any]], deep: bool) -> dict[Any, Any]:
    if type(value) is dict:
        return dict(items)
    other = copy.copy(value)  # keeps what the class adds: the factory of a defaultdict, _metadata
    other.clear()
    for key, item in items:
        other[key] = item
    if deep and hasattr(other, "__dict__"):
        other.__dict__.update(copy.deepcopy(value.__dict__))
    return other


def _fixed_tensor(tensor: Any, memo: dict[Any, Any]) -> Any:
    key = _elements(tensor)
    if key not in memo:
        from undaunted.checkpointing.dcp import packed

        if tensor.device.type != "cpu":
            memo.setdefault("devices", set()).add(tensor.device)
        detached = tensor.detach()
        of_parts = packed.is_packed(tensor)
        fixed = packed.copied(detached, _on_cpu) if of_parts else _on_cpu(detached)
        # The tensor is kept: its storage may not be given to another one before the end.
        memo[key] = (tensor, fixed.requires_grad_(tensor.requires_grad and tensor.is_leaf))
    return memo[key][1]


def _on_cpu(tensor: Any) -> Any:
    if tensor.device.type == "cpu":
        return tensor.clone()
    return tensor.to("cpu", non_blocking=True)


def _elements(tensor: Any) -> Any:
    """What tells tensors of the same elements; tensors without plain memory are all different."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return id(tensor)
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a subclass without a storage of its own
        address = 0
    if address == 0:
        return id(tensor)
    place = (type(tensor), tensor.device, address, tensor.dtype, tensor.requires_grad)
    return (*place, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
