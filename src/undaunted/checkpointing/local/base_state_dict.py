"""State whose tensors can be taken out, moved and put back: what local checkpoints hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch


class PlainError(ValueError):
    """A state has something that is not read from a file without consent, or cannot be read."""


def dtype_of(name: str) -> torch.dtype:
    """Return the type of torch of this name, without ``torch.``.

    Raises:
        ValueError: there is none.
    """
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"this version of torch has no type {name!r}")  # noqa: TRY004 - a bad value
    return dtype


@dataclass(frozen=True)
class TensorPlaceholder:
    """The place from which a tensor was taken out.

    Attributes:
        device: on which it was, as `torch.device` reads it; without a number the rank's own.
        shape: of it.
        dtype: of it, a `torch.dtype`.
    """

    device: str
    shape: tuple[int, ...]
    dtype: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorPlaceholder, (self.device, self.shape, self.dtype)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorPlaceholder:
        """Return the placeholder of a tensor."""
        import torch

        device = tensor.device
        name = str(device)
        if device.index is not None and device.type != "cpu":
            module = getattr(torch, device.type, None)
            current = getattr(module, "current_device", lambda: None)()
            if current == device.index:
                name = device.type  # after ranks changed places it goes to the rank's own device
        return cls(name, tuple(tensor.shape), tensor.dtype)


class TensorAwareStateDict(ABC):
    """The state of one rank. Without its tensors it is hollow, and small.

    A subclass with plain data overrides `plain_state` and `from_plain_state`. All others are
    pickled, which `allow_pickle=True` must permit.
    """

    kinds: ClassVar[dict[str, type[TensorAwareStateDict]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        TensorAwareStateDict.kinds[cls.kind()] = cls

    @classmethod
    def kind(cls) -> str:
        """Return the name by which files tell what they hold."""
        return f"{cls.__module__}.{cls.__qualname__}"

    @abstractmethod
    def pop_tensors(self) -> list[torch.Tensor]:
        """Take all tensors out and return them, in an order that depends on the structure only."""

    @property
    @abstractmethod
    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors, in the same order."""

    @property
    @abstractmethod
    def is_hollow(self) -> bool:
        """Return whether the tensors are out."""

    @abstractmethod
    def insert_tensors(self, tensor_data: Iterable[torch.Tensor]) -> None:
        """Put tensors in, in the same order; the reverse of `pop_tensors`."""

    @abstractmethod
    def init_tensors(self) -> None:
        """Put new tensors in, of the shapes, types and devices of those that were taken out."""

    @abstractmethod
    def copy_tensors_to_cpu(self, non_blocking: bool = False) -> None:
        """Replace tensors of devices by copies in host memory; their devices are remembered.

        Args:
            non_blocking: return before the copies are complete (default: no).
        """

    @abstractmethod
    def restore_tensor_device(self, non_blocking: bool = True) -> None:
        """Move each tensor back to the device it came from.

        Args:
            non_blocking: return before the copies are complete (default: yes; the device's stream
                keeps the order).
        """

    def values(self) -> Iterator[torch.Tensor]:
        """All tensors; the same as `tensors`."""
        return self.tensors

    def plain_state(self) -> object:
        """Return the hollow state as plain data, with placeholders.

        Raises:
            PlainError: this class has no such form.
        """
        raise PlainError(
            f"{self.kind()} has no plain form (it may override plain_state and from_plain_state)"
        )

    @classmethod
    def from_plain_state(cls, state: Any) -> TensorAwareStateDict:  # noqa: ARG003 - for subclasses
        """Make a hollow one from what `plain_state` has returned."""
        raise PlainError(f"{cls.kind()} has no plain form")
