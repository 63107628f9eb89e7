"""The random generators of a process: those of Python, NumPy, torch, and torch's devices.

Of a package that the process has not imported there are none.
"""

from __future__ import annotations

import functools
import importlib
import random
import sys
from typing import Any, NamedTuple


class States(NamedTuple):
    """States of all generators, each as its own function returns it; None = there is none.

    Attributes:
        python: of `random`.
        numpy: of ``numpy.random``.
        torch: of torch's generator for the CPU.
        devices: of the generators of all devices that torch has initialized, in their order.
    """

    python: Any
    numpy: Any = None
    torch: Any = None
    devices: tuple[Any, ...] = ()


def states(*, devices: bool = True) -> States:
    """Return the states as they are now, which takes 60 µs, most of them for NumPy's.

    Args:
        devices: also those of devices; False = their generators are of no interest.
    """
    numpy, torch = _numpy(), sys.modules.get("torch")
    return States(
        random.getstate(),
        None if numpy is None else numpy.get_state(legacy=False),
        None if torch is None else torch.default_generator.get_state(),
        tuple(one.get_state() for one in _of_devices()) if devices else (),
    )


def set_states(kept: States) -> None:
    """Set all generators that have a state in ``kept``; the others stay as they are.

    Raises:
        Exception: what is there is no state.
    """
    numpy, torch = _numpy(), sys.modules.get("torch")
    if kept.python is not None:
        random.setstate(kept.python)
    if kept.numpy is not None and numpy is not None:
        numpy.set_state(kept.numpy)
    if kept.torch is not None and torch is not None:
        torch.default_generator.set_state(kept.torch)
    for generator, state in zip(_of_devices() if kept.devices else (), kept.devices, strict=False):
        generator.set_state(state)


def to_plain(kept: States) -> dict[str, Any]:
    """Return states as numbers, texts, lists and tensors.

    Of NumPy's only its usual generator has such a form; another one is left out.
    """
    version, numbers, gauss = kept.python
    plain: dict[str, Any] = {"python": [version, list(numbers), gauss]}
    if (numpy := kept.numpy) is not None and numpy["bit_generator"] == "MT19937":
        key, at = numpy["state"]["key"].tolist(), int(numpy["state"]["pos"])
        plain["numpy"] = ["MT19937", key, at, int(numpy["has_gauss"]), float(numpy["gauss"])]
    if kept.torch is not None:
        plain["torch"] = kept.torch
    if kept.devices:
        plain["devices"] = list(kept.devices)
    return plain


def from_plain(plain: dict[str, Any]) -> States:
    """Return the states that `to_plain` was given; what is missing stays as it is when set.

    Raises:
        Exception: it is no such form.
    """
    python, numpy = plain.get("python"), plain.get("numpy")
    if python is not None:
        version, numbers, gauss = python
        python = (version, tuple(numbers), gauss)
    numpy = None if numpy is None else tuple(numpy)
    return States(python, numpy, plain.get("torch"), tuple(plain.get("devices", ())))


def _numpy() -> Any:
    """Return ``numpy.random``, which NumPy itself imports at its first use; None = no NumPy."""
    return importlib.import_module("numpy.random") if sys.modules.get("numpy") else None


def _of_devices() -> tuple[Any, ...]:
    """Return the generators of all devices of torch that are in use."""
    devices = _devices() if "torch" in sys.modules else None
    if not getattr(devices, "is_initialized", lambda: False)():
        return ()
    return tuple(getattr(devices, "default_generators", ()))


@functools.cache
def _devices() -> Any:
    """Return the module of torch for the devices of this machine; None = there are none."""
    torch: Any = sys.modules["torch"]
    accelerator = getattr(torch, "accelerator", None)  # from torch 2.6
    if accelerator is None or not accelerator.is_available():
        return None
    return getattr(torch, accelerator.current_accelerator().type, None)
