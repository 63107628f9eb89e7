"""The random generators of a process, kept before a step and put back for another run.

Most steps draw nothing from those of the CPU, whose states take long to get. So the memory they lie
in is looked at first, and their state is got only if that has changed. It is put back by their own
functions.
"""

from __future__ import annotations

import ctypes
import functools
import os
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
        self._torch: _Watched | None = None
        self._devices: Any = None  # the module of torch that has them
        self._seen: list[tuple[bytearray, Any]] = []  # of all of them, [] = not all can be seen
        self._kept: tuple[Any, ...] = ()
        self._kept_devices: list[tuple[Any, Any]] = []

    def keep(self) -> None:
        """Keep the states as they are now, in the place of those that were kept before."""
        if self._numpy is None or self._torch is None:
            self._find()
        python = self._python
        for before, now in self._seen:  # an array, then a view: the fast order
            if before != now:
                self._keep_each()
                break
        else:
            if not self._seen or python.more() is not python.seen_more:
                self._keep_each()
        if self._devices is not None:
            self._kept_devices = [(one, one.get_state()) for one in _of(self._devices)]

    def _keep_each(self) -> None:
        each = (self._python, self._numpy, self._torch)
        self._kept = tuple(None if one is None else one.state() for one in each)
        found = [one for one in each if one is not None]
        self._seen = [pair for one in found for pair in one.seen]
        if not all(one.seen for one in found):
            self._seen = []

    def _find(self) -> None:
        """Find generators of what the program has imported meanwhile."""
        numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
        if self._numpy is None and numpy is not None:
            self._numpy = _Watched(_numpy_memory, lambda: numpy.get_state(legacy=False))
            self._seen = []
        if self._torch is None and torch is not None:
            self._torch = _Watched(_torch_memory, torch.default_generator.get_state)
            self._seen = []
            accelerator = getattr(torch, "accelerator", None)  # from torch 2.6
            if accelerator is not None and accelerator.is_available():
                self._devices = getattr(torch, accelerator.current_accelerator().type, None)

    def put_back(self) -> None:
        """Set all generators to what was kept."""
        if not self._kept:
            return
        python, numpy, torch = self._kept
        random.setstate(python)
        if numpy is not None:
            sys.modules["numpy.random"].set_state(numpy)
        if torch is not None:
            sys.modules["torch"].default_generator.set_state(torch)
        for generator, state in self._kept_devices:
            generator.set_state(state)

    def state_dict(self) -> dict[str, Any]:
        """Return what was kept, of numbers, texts, lists and tensors; {} = nothing was."""
        if not self._kept:
            return {}
        (version, numbers, gauss), numpy, torch = self._kept
        state: dict[str, Any] = {"python": [version, list(numbers), gauss]}
        if numpy is not None and numpy["bit_generator"] == "MT19937":
            key, at = numpy["state"]["key"].tolist(), int(numpy["state"]["pos"])
            state["numpy"] = ["MT19937", key, at, int(numpy["has_gauss"]), float(numpy["gauss"])]
        if torch is not None:
            state["torch"] = torch
            state["devices"] = [kept for _, kept in self._kept_devices]
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
        self._find()
        if "torch" in state and self._torch is not None:
            sys.modules["torch"].default_generator.set_state(state["torch"])
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

    def __init__(self, parts: list[Any], owner: object, more: Callable[[], object]) -> None:
        self.parts, self.owner, self.more = parts, owner, more


class _Watched:
    """A state that is got again only if the memory it lies in has changed.

    Attributes:
        seen: what lay in each part of it, and the part; [] = it cannot be looked at.
        more: returns what of the state lies elsewhere: another object when that has changed.
        seen_more: what it has returned.
    """

    def __init__(self, memory: Callable[[], _Memory | None], get: Callable[[], Any]) -> None:
        self._find, self._get = memory, get
        self._owner: object = None
        self._state: Any = None
        self.seen: list[tuple[bytearray, Any]] = []
        self.more: Callable[[], object] = _nothing
        self.seen_more: object = None

    def state(self) -> Any:
        same = self.seen and self.more() is self.seen_more
        if not same or any(before != now for before, now in self.seen):
            self._state = self._get()  # may write to the memory: look at it afterwards
            memory = self._find() or _Memory([], None, _nothing)
            self._owner, self.more = memory.owner, memory.more
            self.seen, self.seen_more = [(bytearray(one), one) for one in memory.parts], self.more()
        return self._state


def _nothing() -> None:
    """All of a state lies in its memory."""


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
    return _Memory([state, _object(one, type(one))], (one, bits), _nothing)


@functools.lru_cache(1)
def _torch_memory() -> _Memory | None:
    """Return where torch's default generator lies; None = no draw from it can be seen there."""
    torch: Any = sys.modules["torch"]
    tried, one = torch.Generator("cpu"), torch.default_generator
    if (seen := _torch_view(tried)) is None:
        return None
    # Normal numbers come in pairs, the second of which is kept beside the generator.
    for kind in (torch.float32, torch.float32, torch.float64, torch.float64):
        before = bytes(seen)
        torch.randn(1, generator=tried, dtype=kind, device="cpu")
        if before == seen:
            return None
    view = _torch_view(one)
    return None if view is None else _Memory([view], one, _nothing)


def _torch_view(generator: Any) -> Any:
    """View a CPU generator of torch from its seed on; None = it lies there in another way.

    It is one block of memory, in which the numbers are looked for that torch reports.
    """
    size_of = _malloc_usable_size()
    size = 0 if size_of is None else size_of(generator._cdata)  # noqa: SLF001 - its address
    if not _MT19937_BYTES < size < 2 * _MT19937_BYTES:
        return None
    block = _view(generator._cdata, size)  # noqa: SLF001
    state = bytes(generator.get_state().tolist())  # numbers of 8 bytes, after three others
    numbers = b"".join(state[at : at + 4] for at in range(24, 24 + 8 * 624, 8))
    at = bytes(block).find(numbers) - _TORCH_HEAD_BYTES
    return block[at:] if at >= 0 else None


def _malloc_usable_size() -> Callable[[int], int] | None:
    found = getattr(ctypes.CDLL(None), "malloc_usable_size", None) if os.name == "posix" else None
    if found is not None:
        found.argtypes, found.restype = [ctypes.c_void_p], ctypes.c_size_t
    return found


_MT19937_BYTES = 4 * 624 + 4  # numbers, and at which of them it is
_TORCH_HEAD_BYTES = 20  # before the numbers: seed, how many are left, at which of them it is


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
