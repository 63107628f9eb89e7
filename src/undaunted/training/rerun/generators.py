"""The random generators of a process, kept before a step and put back for another run.

Most steps draw nothing from those of Python and NumPy, whose states take long to get. So the memory
they lie in is looked at first, and their state is got only if that has changed. It is put back by
their own functions.
"""

from __future__ import annotations

import ctypes
import random
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Generators:
    """Generators of Python, NumPy, torch, and all devices that torch has initialized."""

    def __init__(self) -> None:
        self._python = _Watched(_python_memory, random.getstate)
        self._numpy: _Watched | None = None
        self._torch: Any = None
        self._torch_state: Callable[[], Any] = _nothing
        self._devices: Any = None  # the module of torch that has them
        self._kept: tuple[Any, ...] = ()

    def keep(self) -> None:
        """Keep the states as they are now, in the place of those that were kept before."""
        numpy = self._numpy or self._find_numpy()
        if self._torch is None:
            self._find_torch()
        self._kept = (
            self._python.state(),
            None if numpy is None else numpy.state(),
            self._torch_state(),
            self._devices and [(one, one.get_state()) for one in _of(self._devices)],
        )

    def _find_numpy(self) -> _Watched | None:
        if (module := sys.modules.get("numpy.random")) is not None:
            self._numpy = _Watched(_numpy_memory, lambda: module.get_state(legacy=False))
        return self._numpy

    def _find_torch(self) -> Any:
        self._torch = torch = sys.modules.get("torch")
        if torch is not None:
            self._torch_state = torch.default_generator.get_state
        accelerator = getattr(torch, "accelerator", None)  # from torch 2.6
        if accelerator is not None and accelerator.is_available():
            self._devices = getattr(torch, accelerator.current_accelerator().type, None)
        return torch

    def put_back(self) -> None:
        """Set all generators to what was kept."""
        if not self._kept:
            return
        python, numpy, torch, devices = self._kept
        random.setstate(python)
        if numpy is not None:
            sys.modules["numpy.random"].set_state(numpy)
        if torch is not None:
            sys.modules["torch"].default_generator.set_state(torch)
        for generator, state in devices or ():
            generator.set_state(state)

    def state_dict(self) -> dict[str, Any]:
        """Return what was kept, of numbers, texts, lists and tensors; {} = nothing was."""
        if not self._kept:
            return {}
        (version, numbers, gauss), numpy, torch, devices = self._kept
        state: dict[str, Any] = {"python": [version, list(numbers), gauss]}
        if numpy is not None and numpy["bit_generator"] == "MT19937":
            key, at = numpy["state"]["key"].tolist(), int(numpy["state"]["pos"])
            state["numpy"] = ["MT19937", key, at, int(numpy["has_gauss"]), float(numpy["gauss"])]
        if torch is not None:
            state["torch"] = torch
            state["devices"] = [kept for _, kept in devices or ()]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the generators to what another process has kept; what is missing stays as it is.

        Raises:
            Exception: it is no such state.
        """
        if "python" in state:
            version, numbers, gauss = state["python"]
            random.setstate((version, tuple(numbers), gauss))
        if "numpy" in state and (numpy := sys.modules.get("numpy.random")) is not None:
            numpy.set_state(tuple(state["numpy"]))
        torch = self._torch or self._find_torch()
        if "torch" in state and torch is not None:
            torch.default_generator.set_state(state["torch"])
            for generator, kept in zip(_of(self._devices), state["devices"]):  # noqa: B905 - as many as there are
                generator.set_state(kept)
        self.keep()


class _Memory:
    """Where a generator's state lies.

    Attributes:
        parts: views of it.
        owner: lives as long as they are looked at.
        more: returns what of the state lies elsewhere.
    """

    def __init__(self, parts: list[Any], owner: object, more: Callable[[], object] | None) -> None:
        self.parts, self.owner, self.more = parts, owner, more


class _Watched:
    """A state that is got again only if the memory it lies in has changed."""

    def __init__(self, memory: Callable[[], _Memory | None], get: Callable[[], Any]) -> None:
        self._find, self._get = memory, get
        self._memory: _Memory | None = None
        self._seen: list[tuple[bytearray, Any]] = []
        self._more: object = None
        self._state: Any = None

    def state(self) -> Any:
        memory = self._memory
        if memory is not None and (memory.more is None or memory.more() == self._more):
            for before, now in self._seen:  # as bytes, which is the fast order
                if before != now:
                    break
            else:
                return self._state
        self._state = self._get()  # may write to the memory: look at it afterwards
        self._memory = memory = self._find()
        if memory is not None:
            self._seen = [(bytearray(part), part) for part in memory.parts]
            self._more = None if memory.more is None else memory.more()
        return self._state


def _nothing() -> None:
    """There is no torch."""


def _python_memory() -> _Memory | None:
    """Return where Python's default generator lies; None = that is not known."""
    if sys.implementation.name != "cpython":
        return None
    import _random

    one: Any = random._inst  # noqa: SLF001 - what functions use
    view = _object(one, _random.Random)
    return _Memory([view], one, lambda: one.gauss_next)


def _numpy_memory() -> _Memory | None:
    if sys.implementation.name != "cpython":
        return None
    one: Any = sys.modules["numpy.random"].mtrand._rand  # noqa: SLF001 - what functions use
    bits = one._bit_generator  # noqa: SLF001 - numpy below 1.24 has no function for it
    if type(bits).__name__ != "MT19937":
        return None
    state = _view(bits.ctypes.state_address, _MT19937_BYTES)
    return _Memory([state, _object(one, type(one))], (one, bits), None)


_MT19937_BYTES = 4 * 624 + 4  # numbers, and at which of them it is


def _object(one: object, kind: type) -> Any:
    """View what an object is, without its count of references, as one of a class."""
    head = object.__basicsize__
    return _view(id(one) + head, kind.__basicsize__ - head)


def _view(address: int, size: int) -> Any:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _of(devices: Any) -> tuple[Any, ...]:
    """Return the generators of all devices of a kind that are in use."""
    if not getattr(devices, "is_initialized", lambda: False)():
        return ()
    return tuple(getattr(devices, "default_generators", ()))
