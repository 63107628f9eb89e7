"""Hollow states in shards of format 1, which are read but not written any more.

They are MessagePack: every array begins with a number that says what it stands for.
"""

from __future__ import annotations

import contextlib
import pickle
from argparse import Namespace
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from undaunted.checkpointing.local.base_state_dict import PlainError, TensorPlaceholder, dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable

with contextlib.suppress(ImportError):
    import numpy as np

_LIST, _TUPLE, _DICT, _SET, _FROZENSET, _INT, _COMPLEX = range(7)
_STR, _BYTEARRAY, _ORDERED, _NAMESPACE, _OTHER = range(7, 12)


def decode(content: bytes, *, allow_pickle: bool) -> Any:
    """Return a hollow state.

    Raises:
        PlainError: it is damaged, or has what must not be read.
    """
    try:
        return _unpack(msgspec.msgpack.decode(content), allow_pickle)
    except PlainError:
        raise
    except (msgspec.DecodeError, RecursionError, AttributeError, LookupError) as error:
        raise PlainError(f"not a state: {error}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise PlainError(f"not a state: {error}") from error


def _unpack(packed: Any, allow_pickle: bool) -> Any:
    if isinstance(packed, (dict, msgspec.msgpack.Ext)):
        raise PlainError("not a state: unknown kind of value")
    if not isinstance(packed, list):
        return packed
    kind, *parts = packed
    if kind == _OTHER:
        name, made_of = parts
        if name == "pickle":
            return unpickle(made_of, allow_pickle=allow_pickle)
        return _MAKERS[name](_unpack(made_of, allow_pickle))
    if kind in _OF_LEAVES:
        return _OF_LEAVES[kind](*parts)
    return _OF_PARTS[kind]([_unpack(part, allow_pickle) for part in parts])


def unpickle(content: bytes, *, allow_pickle: bool) -> Any:
    """Return a pickled object; raises `PlainError` unless that is allowed."""
    if not allow_pickle:
        raise PlainError(
            "an object that was pickled: give allow_pickle=True only if nobody else can write to "
            "the folder"
        )
    return pickle.loads(content)  # noqa: S301 - the user has allowed it


def _dictionary(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _ordered(values: list[Any]) -> OrderedDict[Any, Any]:
    ordered = OrderedDict(_dictionary(values[1:]))
    vars(ordered).update(values[0])
    return ordered


def _placeholder(parts: Any) -> TensorPlaceholder:
    device, shape, dtype = parts
    return TensorPlaceholder(device, tuple(shape), dtype_of(dtype))


def _ndarray(parts: Any) -> Any:
    dtype, shape, content = parts
    return np.frombuffer(content, _plain_dtype(dtype)).reshape(shape).copy()


def _scalar(parts: Any) -> Any:
    dtype, content = parts
    return np.frombuffer(content, _plain_dtype(dtype))[0]


def _plain_dtype(name: str) -> Any:
    dtype = np.dtype(name)
    if dtype.hasobject:
        raise ValueError(f"an array of {name}")
    return dtype


_OF_LEAVES: dict[int, Callable[..., Any]] = {
    _INT: lambda digits: int(digits, 16),
    _COMPLEX: complex,
    _STR: lambda encoded: encoded.decode("utf-8", "surrogatepass"),
    _BYTEARRAY: lambda content: bytearray(memoryview(content)),  # not of a number
}
_OF_PARTS: dict[int, Callable[[list[Any]], Any]] = {
    _LIST: list,
    _TUPLE: tuple,
    _DICT: _dictionary,
    _SET: set,
    _FROZENSET: frozenset,
    _ORDERED: _ordered,
    _NAMESPACE: lambda values: Namespace(**_dictionary(values)),
}
_MAKERS: dict[str, Callable[[Any], object]] = {
    "placeholder": _placeholder,
    "dtype": dtype_of,
    "device": torch.device,
    "size": torch.Size,
    "ndarray": _ndarray,
    "scalar": _scalar,
}
