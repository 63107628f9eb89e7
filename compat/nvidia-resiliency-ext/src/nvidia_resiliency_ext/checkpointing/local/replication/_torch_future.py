"""Objects that two ranks send to each other, as tensors of bytes.

Objects are plain data: no pickle is sent. Ranks are global. Waits end with the group's timeout.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from nvidia_resiliency_ext.checkpointing.local.replication.group_utils import MAX_OBJECT_BYTES
from undaunted.base.torch_ranks import device_of
from undaunted.checkpointing.dcp.objects import dump_loadable, load_object
from undaunted.checkpointing.local.replication.exchange import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Device: TypeAlias = "str | torch.device | None"


def call_with_only_valid_kwargs(fn: Callable[..., T], **kwargs: Any) -> T:
    """Call a function, leaving out arguments that it does not have."""
    parameters = inspect.signature(fn).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return fn(**kwargs)
    return fn(**{name: value for name, value in kwargs.items() if name in parameters})


def object_to_tensor(
    obj: Any, current_device: Device = None, group: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bytes of an object, and their number.

    Args:
        obj: the object.
        current_device: of both tensors; None = one that the group takes.
        group: of `torch.distributed`; None = the default one.

    Raises:
        StateError: it is not plain data.
    """
    content = bytearray(dump_loadable(obj))
    device = device_of(dist, group) if current_device is None else current_device
    data = torch.frombuffer(content, dtype=torch.uint8).to(device)
    return data, torch.tensor([len(content)], device=device)


def tensor_to_object(tensor: torch.Tensor, tensor_size: Any, group: Any = None) -> Any:  # noqa: ARG001
    """Return the object whose bytes a tensor begins with.

    Args:
        tensor: of bytes.
        tensor_size: how many of them belong to it.
        group: changes nothing.

    Raises:
        DamagedCheckpointError: they are not those of an object.
    """
    return load_object(bytes(tensor[: int(tensor_size)].tolist()), "an object", "a tensor")


def send_object_list(
    object_list: list[Any], dst: int, group: Any = None, device: Device = None
) -> None:
    """Send objects to a rank, which calls `recv_object_list` with as many.

    Args:
        object_list: the objects.
        dst: the rank.
        group: see `object_to_tensor`.
        device: likewise.
    """
    parts = [object_to_tensor(one, device, group) for one in object_list]
    dist.send(torch.cat([size for _, size in parts]), dst, group=group)
    dist.send(torch.cat([data for data, _ in parts]), dst, group=group)


def recv_object_list(
    object_list: list[Any], src: int | None = None, group: Any = None, device: Device = None
) -> int:
    """Receive objects from a rank.

    Args:
        object_list: filled with them; as long as the sender's.
        src: the rank; None = any.
        group: see `object_to_tensor`.
        device: likewise.

    Returns:
        The rank they came from.

    Raises:
        PeerError: what came cannot be.
    """
    where = device_of(dist, group) if device is None else device
    sizes = torch.zeros(len(object_list), dtype=torch.int64, device=where)
    sender = int(dist.recv(sizes, src, group=group))
    counts = [int(size) for size in sizes.tolist()]
    if any(count <= 0 for count in counts) or sum(counts) > MAX_OBJECT_BYTES:
        raise PeerError(f"rank {sender} announced objects of {counts} bytes", [sender])
    data = torch.empty(sum(counts), dtype=torch.uint8, device=where)
    dist.recv(data, sender, group=group)
    for place, part in enumerate(data.split(counts)):
        object_list[place] = load_object(bytes(part.tolist()), "an object", f"rank {sender}")
    return sender
