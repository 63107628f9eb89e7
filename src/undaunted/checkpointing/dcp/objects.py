"""Values other than tensors: read with ``weights_only``, so that a file cannot run code."""

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
import uuid
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from undaunted.checkpointing.errors import CheckpointError, DamagedCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


class _Pickler(pickle.Pickler):
    """Writes objects so that torch's reader makes them."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, DTensor):
            raise TypeError(
                "a DTensor in an object is not saved: put it into a list or dictionary of its own"
            )
        make = _MADE_FROM.get(type(value))
        return NotImplemented if make is None else make(value)


_PICKLING = SimpleNamespace(__name__=pickle.__name__, Pickler=_Pickler)


def dump(value: Any) -> io.BytesIO:
    """Return what ``torch.save`` writes of an object."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=_PICKLING)
    return buffer


def load_object(content: bytes | bytearray | memoryview, name: str, path: str) -> Any:
    """Return what ``torch.save`` has written; tensors in it come to the CPU.

    Plain Python data, tensors, numpy arrays and harmless types of the standard library can be read,
    and what the program has allowed with ``torch.serialization.add_safe_globals``.

    Args:
        content: of the item.
        name: of the item, for messages.
        path: of its file, for messages.

    Raises:
        CheckpointError: it has an object of another type; the message names it.
        DamagedCheckpointError: it is something else than what was written.
    """
    try:
        with _allowed():
            return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise CheckpointError(_not_allowed(content, name, path)) from error
    except Exception as error:
        raise DamagedCheckpointError(
            f"{path}: {name} cannot be read ({type(error).__name__}: {error})", path, [name]
        ) from error


def refused_types(content: bytes | bytearray | memoryview) -> list[str]:
    """Return the types for which ``load_object`` refuses what ``torch.save`` has written."""
    try:
        with _allowed():
            return list(torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content)))
    except Exception:  # noqa: BLE001 - what is made of it is only a message
        return []


@contextmanager
def _allowed() -> Iterator[None]:
    """Allow what is harmless; afterwards only what the program has allowed is."""
    already = set(torch.serialization.get_safe_globals())
    more = [one for one in _harmless() if one not in already]
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
