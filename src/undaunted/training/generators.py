"""The random generators of a process, kept before a step and put back for another run."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class Generators:
    """Generators of Python, NumPy, torch, and all devices that torch has initialized."""

    def __init__(self) -> None:
        self._kept: tuple[Any, ...] = ()

    def keep(self) -> None:
        """Keep the states as they are now, in the place of those that were kept before."""
        numpy = sys.modules.get("numpy.random")
        self._kept = (
            random.getstate(),
            None if numpy is None else numpy.get_state(),
            torch.default_generator.get_state(),
            [(one, one.get_state()) for one in _of_devices()],
        )

    def put_back(self) -> None:
        """Set all generators to what was kept."""
        python, numpy, default, devices = self._kept
        random.setstate(python)
        if numpy is not None:
            sys.modules["numpy.random"].set_state(numpy)
        torch.default_generator.set_state(default)
        for generator, state in devices:
            generator.set_state(state)

    def state_dict(self) -> dict[str, Any]:
        """Return what was kept: what has a digest, by kind of generator."""
        python, numpy, default, devices = self._kept
        states = {"python": repr(python), "torch": default, "devices": [one for _, one in devices]}
        if numpy is not None:
            states["numpy"] = [*numpy]
        return states


def _of_devices() -> tuple[Any, ...]:
    if not torch.accelerator.is_available():
        return ()
    module = torch.get_device_module(torch.accelerator.current_accelerator())
    if not getattr(module, "is_initialized", lambda: False)():
        return ()
    return tuple(getattr(module, "default_generators", ()))
