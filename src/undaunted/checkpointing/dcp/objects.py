"""Values other than tensors: read with ``weights_only``, so that a file cannot run code.

Of numbers and short texts a state may have thousands that are the same: an optimizer's state that
was flattened has the learning rate of each parameter. ``torch.save`` and ``torch.load`` take 0.1 ms
for each; here each different value is written, and read, once.
"""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import decimal
import fractions
import functools
import io
import pathlib
import pickle
import re
import uuid
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.tensor import DTensor

from undaunted.checkpointing.errors import CheckpointError, DamagedCheckpointError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem


ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})  # classes of tensors that are their bytes

# Types of the standard library whose making does nothing else.
_HARMLESS: tuple[type, ...] = (
    bool, bytes, dict, float, frozenset, int, list, range, slice, str, tuple,
    collections.defaultdict, collections.deque,
    dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone,
    decimal.Decimal, fractions.Fraction, uuid.UUID, argparse.Namespace, io.BytesIO,
    pathlib.Path, pathlib.PosixPath, pathlib.WindowsPath,
    pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath,
)  # fmt: skip

# torch's reader appends to nothing but lists, and sets items of nothing but dictionaries.
_MADE_FROM: dict[type, Callable[[Any], tuple[Any, tuple[Any, ...]]]] = {
    collections.deque: lambda value: (collections.deque, (list(value), value.maxlen)),
    collections.defaultdict: lambda value: (
        collections.defaultdict,
        (value.default_factory, dict(value)),
    ),
    uuid.UUID: lambda value: (uuid.UUID, (str(value),)),
}


# Begins an integer of more than 255 bytes, which torch writes and does not read; or is any byte.
_LONG_INTEGER = pickle.LONG4
# Classes and functions that are named in objects which can be read, by the types allowed in them.
_readable: dict[tuple[type, ...], set[bytes]] = {}


class _Pickler(pickle.Pickler):
    """Writes objects so that torch's reader makes them."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, DTensor):
            raise TypeError("a DTensor in an object is not saved: put it into a list or dictionary")
        make = _MADE_FROM.get(type(value))
        return NotImplemented if make is None else make(value)


_PICKLING = SimpleNamespace(__name__=pickle.__name__, Pickler=_Pickler)


def dump(value: Any) -> io.BytesIO:
    """Return what ``torch.save`` writes of an object."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=_PICKLING)
    return buffer


def dump_loadable(value: Any, more: Sequence[type] = (), *, unchecked: bool = False) -> bytes:
    """Return what ``torch.save`` writes of an object that `load_object` reads.

    Args:
        value: the object.
        more: types that may be in it as well.
        unchecked: write also what `load_object` refuses.

    Raises:
        StateError: it would refuse it, or nothing can be written; names what and where.
    """
    try:
        content = dump(value).getvalue()
    except Exception as error:
        raise StateError(unreadable(value, more)) from error
    if unchecked:
        return content
    readable = _readable.setdefault(tuple(more), set())
    names = names_in(content) - readable
    if names or _LONG_INTEGER in content:
        if is_refused(content, more):
            raise StateError(unreadable(value, more))
        if len(readable) > _REMEMBERED:
            readable.clear()
        readable.update(names)
    return content


def load_object(
    content: bytes | bytearray | memoryview, name: str, path: str, more: Sequence[type] = ()
) -> Any:
    """Return what ``torch.save`` has written; tensors in it come to the CPU.

    Plain Python data, tensors, numpy arrays and harmless types of the standard library can be read,
    and what the program has allowed with ``torch.serialization.add_safe_globals``.

    Args:
        content: of the item.
        name: of the item, for messages.
        path: of its file, for messages.
        more: types that may be in it besides.

    Raises:
        CheckpointError: it has an object of another type; the message names it.
        DamagedCheckpointError: it is something else than what was written.
    """
    try:
        with _allowed(more):
            return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise CheckpointError(_not_allowed(content, name, path)) from error
    except Exception as error:
        raise DamagedCheckpointError(
            f"{path}: {name} cannot be read ({type(error).__name__}: {error})", path, [name]
        ) from error


def refused_types(content: bytes | bytearray | memoryview, more: Sequence[type] = ()) -> list[str]:
    """Return the types for which ``load_object`` refuses what ``torch.save`` has written."""
    try:
        with _allowed(more):
            return list(torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content)))
    except Exception:  # noqa: BLE001 - what is made of it is only a message
        return []


def is_refused(content: bytes, more: Sequence[type] = ()) -> bool:
    """Return whether ``load_object`` refuses what ``torch.save`` has written."""
    if refused_types(content, more):
        return True
    if _LONG_INTEGER not in content:
        return False
    try:
        load_object(content, "it", "memory", more)
    except CheckpointError:
        return True
    return False


def unreadable(value: Any, more: Sequence[type] = ()) -> str:
    """Say what in a value `load_object` would refuse, and where it is."""
    at: list[str] = []
    try:
        while isinstance(value, (dict, list, tuple)):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            wrong = next((part for part in parts if not _is_readable(part[1], more)), None)
            if wrong is None:
                break
            at.append(str(wrong[0]))
            value = wrong[1]
    except RecursionError:
        return "something that is nested too deep"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return f"{'.'.join(at)}{': ' if at else ''}an object of type {kind}"


def _is_readable(value: Any, more: Sequence[type]) -> bool:
    try:
        return not is_refused(dump(value).getvalue(), more)
    except RecursionError:
        raise
    except Exception:  # noqa: BLE001 - whatever it is
        return False


@contextmanager
def _allowed(types: Sequence[type]) -> Iterator[None]:
    """Allow what is harmless, and types; afterwards only what the program has allowed is."""
    already = set(torch.serialization.get_safe_globals())
    more = [one for one in (*_harmless(), *types) if one not in already]
    with torch.serialization.safe_globals(more):
        yield


def _not_allowed(content: bytes | bytearray | memoryview, name: str, path: str) -> str:
    types = refused_types(content)
    return (
        f"{path}: {name} has objects of types that are not read from a file without your consent: "
        f"{', '.join(types) or 'unknown'}. If you trust the checkpoint, allow them with "
        "torch.serialization.add_safe_globals([...]); better save plain data"
    )


@functools.lru_cache(maxsize=1)
def _harmless() -> list[Any]:
    """Types as ``safe_globals`` takes them: also by the names that other versions write."""
    paths = [t for t in _HARMLESS if t.__module__.startswith("pathlib")]
    modules = ("pathlib", "pathlib._local")
    named = [(t, f"{module}.{t.__name__}") for t in paths for module in modules]
    return [*_HARMLESS, *named, *_of_numpy()]


def _of_numpy() -> list[Any]:
    """What arrays and scalars of numpy are made of."""
    try:
        import numpy as np
    except ImportError:
        return []
    core = getattr(np, "_core", None) or np.core
    kinds = {type(np.dtype(code)) for code in np.typecodes["All"]}
    makes = [getattr(core.multiarray, name) for name in ("_reconstruct", "scalar")]
    return [np.ndarray, np.dtype, *makes, *kinds]


# Names of classes and functions, as protocol 2 of pickle has them; other bytes may look like it.
_NAMES = re.compile(rb"c([\w.]+\n[\w.]+)\n")
# Longer ones, mostly arrays, are looked through once for each name, and not to their end.
_SHORT_BYTES = 1 << 20
_LOOKED_AT_BYTES = 16 << 20
# What names and numbers that change with each step leave behind must not pile up.
_REMEMBERED = 10_000


def names_in(content: bytes | memoryview) -> set[bytes]:
    """Return the names of classes and functions in what ``torch.save`` has made of an object."""
    return set(_NAMES.findall(content))


class Refusals:
    """Looks for types that are not read from a file without consent."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._seen: set[bytes] = set()
        self._long: set[str] = set()

    def look(self, content: memoryview, name: str, *, anyway: bool = False) -> None:
        """Look at what ``torch.save`` has made of an object.

        Args:
            content: what it has made.
            name: of the object in the state.
            anyway: look although it names no types that were not there before.

        Raises:
            StateError: it could not be loaded; names the types.
        """
        long = len(content) > _SHORT_BYTES
        if long:
            if name in self._long or len(self._long) >= _REMEMBERED:
                return
            self._long.add(name)
        new = names_in(content[:_LOOKED_AT_BYTES]) - self._seen
        if not (new or anyway):
            return
        if types := refused_types(content):
            self._long.discard(name)
            raise StateError(
                f"{name} has objects of types that loading would refuse: {', '.join(types)}. Save "
                "plain data in their place, or call torch.serialization.add_safe_globals([...]) "
                "with these types before saving and before loading"
            )
        if not long:
            try:
                load_object(content, name, "the copy in memory")
            except CheckpointError as error:
                raise StateError(f"{name} cannot be loaded once it is saved: {error}") from error
        if len(self._seen) + len(new) > _REMEMBERED:
            self._seen.clear()
        self._seen |= new


_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
_SHORT = 4096
_LONG_BITS = 2000


def is_plain(value: Any) -> bool:
    """Return whether a value cannot change and is told by its ``repr``."""
    kind = type(value)
    if kind is int:  # longer ones torch writes and does not read
        return int(value).bit_length() < _LONG_BITS
    if kind is tuple:
        return all(type(one) in _PLAIN and is_plain(one) for one in value)
    return kind in _PLAIN


def _is_simple(value: Any) -> bool:
    """Return whether a value is made of plain ones, which can be loaded without a doubt."""
    kind = type(value)
    if kind in (list, tuple, set):
        return all(map(_is_simple, value))
    return is_plain(value)


class WrittenValues:
    """The form of plain values in a file."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}
        self._refusals = Refusals()

    def check(self, planner: SavePlanner, plan: SavePlan) -> None:
        """Raise a StateError for an object in a plan that could not be loaded."""
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO and _saves_by_default(planner):
                value = planner.lookup_object(item.index)
                if not _is_simple(value):
                    self._serialise(value, item, anyway=True)

    def resolve(self, planner: SavePlanner, item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Return what the planner gives for an item.

        Raises:
            StateError: it could not be loaded.
        """
        if not _saves_by_default(planner):
            return planner.resolve_data(item)
        if item.type != WriteItemType.BYTE_IO:
            return _tensor_here(planner, item)
        value = planner.lookup_object(item.index)
        if not is_plain(value):
            return self._serialise(value, item)
        name = repr(value)
        content = self._known.get(name)
        if content is None:
            content = dump(value).getvalue()
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            if len(content) <= _SHORT:
                self._known[name] = content
        return io.BytesIO(content)

    def _serialise(self, value: Any, item: WriteItem, *, anyway: bool = False) -> io.BytesIO:
        try:
            serialised = dump(value)
        except Exception as error:
            raise StateError(
                f"{item.index.fqn} cannot be saved: {type(error).__name__}: {error}"
            ) from error
        self._refusals.look(memoryview(serialised.getvalue()), item.index.fqn, anyway=anyway)
        return serialised


def _tensor_here(planner: SavePlanner, item: WriteItem) -> torch.Tensor:
    """Return what ``resolve_data`` does; what is there as it is saved needs no search."""
    value = planner.state_dict.get(item.index.fqn)
    if type(value) in ORDINARY and item.type == WriteItemType.TENSOR:
        return value
    if type(value) is DTensor:
        local = value.to_local()
        if type(local) is torch.Tensor and not hasattr(local, "__get_tensor_shard__"):
            return local  # else it says itself which parts it has
    return planner.resolve_data(item)


def _saves_by_default(planner: SavePlanner) -> TypeGuard[DefaultSavePlanner]:
    return _is_default(type(planner))  # type: ignore[arg-type]


@functools.lru_cache(maxsize=16)
def _is_default(kind: type) -> bool:
    return issubclass(kind, DefaultSavePlanner) and all(
        getattr(kind, name) is getattr(DefaultSavePlanner, name)
        for name in ("resolve_data", "lookup_object", "transform_object")
    )


class LoadedValues:
    """The plain values of a file, from their form in it."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def load(self, content: bytes | bytearray, name: str, path: str) -> Any:
        """Return what ``load_object`` does."""
        if len(content) > _SHORT:
            return load_object(content, name, path)
        key = bytes(content)
        if key in self._known:
            return self._known[key]
        value = load_object(content, name, path)
        if is_plain(value) and len(self._known) < _REMEMBERED:
            self._known[key] = value
        return value
