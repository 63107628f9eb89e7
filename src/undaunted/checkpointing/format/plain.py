"""Plain Python data as MessagePack, and back, with all types kept; no code is stored or run.

None, bool, int of any size, float, complex, str, bytes, bytearray, list, tuple, dict with any plain
keys, OrderedDict, set, frozenset and argparse.Namespace. Other types are the matter of the caller,
who gives them a name. Every array begins with a number that says what it stands for.
"""

from __future__ import annotations

from argparse import Namespace
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.text import is_utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MAX_DEPTH = 200

_LIST, _TUPLE, _DICT, _SET, _FROZENSET, _INT, _COMPLEX = range(7)
_STR, _BYTEARRAY, _ORDERED, _NAMESPACE, _OTHER = range(7, 12)
_INT64 = range(-(1 << 63), 1 << 63)


class PlainError(ValueError):
    """Something is not plain data, or bytes are not the encoding of such.

    Attributes:
        at: the way to it, from the outside: keys and indices.
        reason: what is wrong with it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at: list[str] = []

    def __str__(self) -> str:
        return f"{'.'.join(self.at)}: {self.reason}" if self.at else self.reason


def no_others(value: object) -> tuple[str, object]:
    """Refuse what is not plain."""
    raise PlainError(f"an object of type {type(value).__module__}.{type(value).__qualname__}")


def encode(value: object, other: Callable[[object], tuple[str, object]] = no_others) -> bytes:
    """Return the bytes of plain data.

    Args:
        value: nested at most 200 levels deep.
        other: called for what is not plain; returns a name for its type, and what it is made of,
            which is encoded in turn.

    Raises:
        PlainError: something is neither plain nor known to ``other``; it names its place.
    """
    return msgspec.msgpack.encode(_pack(value, other, 0))


def decode(content: bytes, makers: Mapping[str, Callable[[Any], object]] | None = None) -> Any:
    """Return the data that was encoded.

    Args:
        content: what `encode` has returned.
        makers: by the name that ``other`` gave: makes the object from its parts.

    Raises:
        PlainError: it is not an encoding, or of a type that is not among the makers.
    """
    try:
        return _unpack(msgspec.msgpack.decode(content), makers or {})
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlainError(f"not an encoding of plain data: {error}") from error
    except RecursionError as error:
        raise PlainError("not an encoding of plain data: nested too deep") from error


def _pack(value: object, other: Callable[[object], tuple[str, object]], depth: int) -> object:  # noqa: C901, PLR0912 - a table of types
    if depth > MAX_DEPTH:
        raise PlainError(f"nested more than {MAX_DEPTH} levels deep, or contains itself")
    kind = type(value)
    if value is None or kind in (bool, float, bytes):
        return value
    if isinstance(value, str) and kind is str:
        return value if is_utf8(value) else [_STR, value.encode("utf-8", "surrogatepass")]
    if isinstance(value, int) and kind is int:
        return value if value in _INT64 else [_INT, hex(value)]
    if isinstance(value, complex) and kind is complex:
        return [_COMPLEX, value.real, value.imag]
    if isinstance(value, bytearray) and kind is bytearray:
        return [_BYTEARRAY, bytes(value)]
    if isinstance(value, list) and kind is list:
        return [_LIST, *_pack_all(value, other, depth)]
    if isinstance(value, tuple) and kind is tuple:
        return [_TUPLE, *_pack_all(value, other, depth)]
    if isinstance(value, set) and kind is set:
        return [_SET, *_pack_all(value, other, depth)]
    if isinstance(value, frozenset) and kind is frozenset:
        return [_FROZENSET, *_pack_all(value, other, depth)]
    if isinstance(value, dict) and kind is dict:
        return [_DICT, *_pack_pairs(value, other, depth)]
    if isinstance(value, OrderedDict) and kind is OrderedDict:
        # torch.nn.Module.state_dict() has an attribute with the versions of the modules.
        extra = _pack(dict(vars(value)), other, depth + 1)
        return [_ORDERED, extra, *_pack_pairs(value, other, depth)]
    if isinstance(value, Namespace) and kind is Namespace:
        return [_NAMESPACE, *_pack_pairs(vars(value), other, depth)]
    name, parts = other(value)
    return [_OTHER, name, _pack(parts, other, depth + 1)]


def _pack_all(
    values: Iterable[object], other: Callable[[object], tuple[str, object]], depth: int
) -> list[object]:
    return [_pack_at(str(at), value, other, depth) for at, value in enumerate(values)]


def _pack_pairs(
    pairs: Mapping[Any, object], other: Callable[[object], tuple[str, object]], depth: int
) -> list[object]:
    return [
        _pack_at(str(key), part, other, depth)
        for key, value in pairs.items()
        for part in (key, value)
    ]


def _pack_at(
    at: str, value: object, other: Callable[[object], tuple[str, object]], depth: int
) -> object:
    try:
        return _pack(value, other, depth + 1)
    except PlainError as error:
        error.at.insert(0, at)
        raise


def _unpack(packed: Any, makers: Mapping[str, Callable[[Any], object]]) -> Any:
    if not isinstance(packed, list):
        if isinstance(packed, (dict, msgspec.msgpack.Ext)):
            raise PlainError("not an encoding of plain data: unknown kind of value")
        return packed
    try:
        return _unpack_kind(packed[0], packed[1:], makers)
    except PlainError:
        raise
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise PlainError(f"not an encoding of plain data: {error}") from error


def _unpack_kind(kind: Any, parts: list[Any], makers: Mapping[str, Callable[[Any], object]]) -> Any:
    if kind == _OTHER:
        name, made_of = parts
        if name not in makers:
            raise PlainError(f"an object of type {name!r}, which cannot be read here")
        return makers[name](_unpack(made_of, makers))
    if kind in _OF_LEAVES:
        return _OF_LEAVES[kind](*parts)
    if kind in _OF_PARTS:
        return _OF_PARTS[kind]([_unpack(part, makers) for part in parts])
    raise PlainError(f"not an encoding of plain data: unknown kind {kind!r}")


def _dictionary(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _ordered(values: list[Any]) -> OrderedDict[Any, Any]:
    ordered = OrderedDict(_dictionary(values[1:]))
    vars(ordered).update(values[0])
    return ordered


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
