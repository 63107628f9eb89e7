"""A state dictionary as users have it: any nesting of containers, with tensors anywhere in it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from undaunted.checkpointing.local.base_state_dict import TensorAwareStateDict, TensorPlaceholder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class BasicTensorAwareStateDict(TensorAwareStateDict):
    """Dicts, lists, tuples and their subclasses, nested at will, with tensors of any device.

    The containers that are given are neither changed nor kept; tensors are not copied.

    Attributes:
        state_dict: the state, hollow or not.
    """

    def __init__(self, state_dict: Any) -> None:
        """Take a state.

        Args:
            state_dict: tensors may be the values of dicts and the items of lists and tuples.
        """
        self.state_dict = _mapped(state_dict, lambda leaf: leaf)
        # Devices of the tensors, in their order, while copies in host memory stand for them.
        self._devices: list[str] | None = None

    def pop_tensors(self) -> list[torch.Tensor]:
        """Take all tensors out and return them."""
        taken: list[torch.Tensor] = []
        devices = iter(self._devices or ())

        def take(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            taken.append(leaf)
            place = TensorPlaceholder.of(leaf)
            return TensorPlaceholder(next(devices, place.device), place.shape, place.dtype)

        self.state_dict = _mapped(self.state_dict, take)
        self._devices = None
        return taken

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors, in the order of the containers."""
        return (leaf for leaf in _leaves(self.state_dict) if isinstance(leaf, torch.Tensor))

    @property
    def is_hollow(self) -> bool:
        """Return whether tensors are out; a state that never had any is not hollow."""
        return any(isinstance(leaf, TensorPlaceholder) for leaf in _leaves(self.state_dict))

    def insert_tensors(self, tensor_data: Iterable[torch.Tensor]) -> None:
        """Put tensors in; those in host memory may stand for tensors of a device.

        Raises:
            ValueError: there are more or fewer than places, or one has another shape or type.
        """
        given = iter(tensor_data)
        devices: list[str] = []

        def put(leaf: Any) -> Any:
            if not isinstance(leaf, TensorPlaceholder):
                return leaf
            tensor = next(given, None)
            if tensor is None:
                raise ValueError("fewer tensors than were taken out")
            if tuple(tensor.shape) != leaf.shape or tensor.dtype != leaf.dtype:
                raise ValueError(
                    f"a tensor of shape {tuple(tensor.shape)} and {tensor.dtype} was given where "
                    f"one of shape {leaf.shape} and {leaf.dtype} was taken out"
                )
            devices.append(leaf.device)
            return tensor

        filled = _mapped(self.state_dict, put)
        if next(given, None) is not None:
            raise ValueError("more tensors than were taken out")
        self.state_dict, self._devices = filled, devices

    def init_tensors(self) -> None:
        """Put new tensors in, on the devices of those that were taken out."""
        places = [leaf for leaf in _leaves(self.state_dict) if isinstance(leaf, TensorPlaceholder)]
        self.insert_tensors(
            torch.empty(place.shape, dtype=place.dtype, device=place.device) for place in places
        )

    def copy_tensors_to_cpu(self, non_blocking: bool = False) -> None:
        """Replace tensors of devices by copies in host memory."""
        devices = self._devices or [TensorPlaceholder.of(tensor).device for tensor in self.tensors]
        self._replace(lambda tensor, _: tensor.to("cpu", non_blocking=non_blocking))
        self._devices = devices

    def restore_tensor_device(self, non_blocking: bool = True) -> None:
        """Move each tensor back to the device it came from, host memory included."""
        self._replace(
            lambda tensor, device: tensor.to(device or tensor.device, non_blocking=non_blocking)
        )
        self._devices = None

    def plain_state(self) -> object:
        """Return the hollow state."""
        return self.state_dict

    @classmethod
    def from_plain_state(cls, state: Any) -> BasicTensorAwareStateDict:
        """Make a hollow one."""
        return cls(state)

    def _replace(self, change: Callable[[torch.Tensor, str | None], torch.Tensor]) -> None:
        """Put another tensor in the place of each; one that is there twice stays one."""
        devices = iter(self._devices or ())
        done: dict[int, torch.Tensor] = {}

        def replace(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            device = next(devices, None)
            if id(leaf) not in done:
                done[id(leaf)] = change(leaf, device)
            return done[id(leaf)]

        # The old ones live until all are replaced, so that no id is given twice.
        self.state_dict = _mapped(self.state_dict, replace)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of the containers with every leaf changed; types of containers are kept."""
    if isinstance(value, dict):
        # Copied first: subclasses have more than their items, as the versions in OrderedDicts of
        # torch or the factory of a defaultdict.
        same = copy.copy(value)
        for key, part in value.items():
            same[key] = _mapped(part, change)
        return same
    if isinstance(value, list):
        if type(value) is list:
            return [_mapped(part, change) for part in value]
        changed = copy.copy(value)
        changed[:] = [_mapped(part, change) for part in value]
        return changed
    if isinstance(value, tuple) and type(value) is not torch.Size:
        parts = [_mapped(part, change) for part in value]
        if type(value) is tuple:
            return tuple(parts)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return change(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _leaves(part)
    elif isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        for part in value:
            yield from _leaves(part)
    else:
        yield value
