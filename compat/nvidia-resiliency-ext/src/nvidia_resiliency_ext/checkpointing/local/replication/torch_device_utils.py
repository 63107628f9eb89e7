"""Devices of tensors that were moved."""

from __future__ import annotations

import torch


def get_default_device_from_type(device_type: str) -> torch.device:
    """Return the device of a type that this rank uses.

    Args:
        device_type: ``cpu`` or ``cuda``.

    Raises:
        RuntimeError: another type.
    """
    if device_type == "cpu":
        return torch.device("cpu")
    if device_type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    raise RuntimeError(f"devices of type {device_type!r} are not known; use cpu or cuda")


class TensorPlaceholder:
    """Form and place of a tensor that is elsewhere.

    Args:
        tensor: it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self._type = tensor.device.type

    @property
    def device(self) -> torch.device:
        """The device to which it belongs in this rank."""
        return get_default_device_from_type(self._type)

    def empty_like(self, device: str | torch.device | None = None) -> torch.Tensor:
        """Return a new tensor of this form; None = where it belongs."""
        return torch.empty(self.shape, dtype=self.dtype, device=device or self.device)

    def restore(self, data: torch.Tensor | None = None) -> torch.Tensor:
        """Return the data where they belong; None = a new tensor."""
        return self.empty_like() if data is None else data.to(self.device)
