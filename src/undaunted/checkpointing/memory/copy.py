"""Copying the state into memory of the host: what training waits for."""

from __future__ import annotations

import ctypes
import logging
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
) -> None:
    """Copy every source to its destination in memory of the host; all is there when this returns.

    Args:
        destinations: views of an arena, or of other memory.
        sources: of the same shapes, on any device, contiguous or not, with or without gradients.
        arena: whose memory is pinned when something comes from a CUDA device.
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
        here = [(d, s) for d, s, elsewhere in pairs if not elsewhere]
        if here:  # while the devices copy
            copy_each([d for d, _ in here], [s for _, s in here])
        _synchronise({source.device for _, source, elsewhere in pairs if elsewhere})


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
