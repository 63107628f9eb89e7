"""The messages of etcd's gRPC services that are used here, as Protocol Buffers encode them. Pure.

Requests are made as bytes, answers are read from bytes. Fields that are not used are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KV, LEASE, WATCH, AUTH = "KV", "Lease", "Watch", "Auth"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1
_MOST_VARINT_BYTES = 10
_DELETED = 1
_MOD, _EQUAL = 2, 0


def method(service: str, name: str) -> str:
    """The path of a method."""
    return f"/etcdserverpb.{service}/{name}"


# --- requests -----------------------------------------------------------------------------------


def get(key: bytes) -> bytes:
    """RequestOp: read a key."""
    return _message(1, _field(1, key))


def put(key: bytes, value: bytes, lease: int = 0) -> bytes:
    """RequestOp: write a key; ``lease``: it goes with that one."""
    return _message(2, _field(1, key) + _field(2, value) + _field(3, lease))


def delete(key: bytes) -> bytes:
    """RequestOp: delete a key."""
    return _message(3, _field(1, key))


def transaction(
    success: Sequence[bytes],
    failure: Sequence[bytes] = (),
    unchanged: Sequence[tuple[bytes, int]] = (),
) -> bytes:
    """TxnRequest: ``success`` if each key was last written at its revision, 0 = there is none."""
    compares = (
        _field(1, _EQUAL) + _field(2, _MOD) + _field(3, key) + _number(6, revision)
        for key, revision in unchanged
    )
    groups = ((1, compares), (2, success), (3, failure))
    return b"".join(_message(number, each) for number, group in groups for each in group)


def grant(lease: int, seconds: int) -> bytes:
    """LeaseGrantRequest."""
    return _field(1, seconds) + _field(2, lease)


def of_lease(lease: int) -> bytes:
    """LeaseRevokeRequest, LeaseKeepAliveRequest."""
    return _field(1, lease)


def watch(first: bytes, last: bytes, revision: int) -> bytes:
    """WatchRequest: of all keys from ``first`` to ``last``, from a revision on."""
    keys = _field(1, first) + _field(2, last + b"\0")
    return _message(1, keys + _field(3, revision))


def authenticate(name: str, password: str) -> bytes:
    """AuthenticateRequest."""
    return _field(1, name.encode()) + _field(2, password.encode())


# --- answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it is; ``revision``: when it was last written."""

    key: bytes = b""
    value: bytes = b""
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """TxnResponse.

    Attributes:
        revision: of etcd.
        succeeded: whether the comparisons held.
        found: by each operation that has read: the key, None = there is none.
    """

    revision: int
    succeeded: bool
    found: tuple[KeyValue | None, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """WatchResponse: keys that have changed, in order; None = it was deleted.

    Attributes:
        revision: of etcd.
        ended: nothing more comes.
    """

    revision: int
    ended: bool
    keys: tuple[tuple[bytes, KeyValue | None], ...] = field(default=())


def done(data: bytes) -> Done:
    """Read a TxnResponse.

    Raises:
        ValueError: it is none.
    """
    revision, succeeded, found = 0, False, []
    for number, value in _fields(data):
        if number == 1:
            revision = _revision(value)
        elif number == 2:
            succeeded = bool(value)
        elif number == 3:
            found += [
                next((_key_value(kv) for inner, kv in _fields(read) if inner == 2), None)
                for kind, read in _fields(value)
                if kind == 1
            ]
    return Done(revision, succeeded, tuple(found))


def change(data: bytes) -> Change:
    """Read a WatchResponse.

    Raises:
        ValueError: it is none.
    """
    revision, ended, keys = 0, False, []
    for number, value in _fields(data):
        if number == 1:
            revision = _revision(value)
        elif number == 4:
            ended = bool(value)
        elif number == 11:
            event = dict(_fields(value))
            found = _key_value(event.get(2, b""))
            keys.append((found.key, None if event.get(1) == _DELETED else found))
    return Change(revision, ended, tuple(keys))


def seconds_left(data: bytes) -> int:
    """Read a LeaseKeepAliveResponse: 0 = there is no such lease.

    Raises:
        ValueError: it is none.
    """
    left = dict(_fields(data)).get(3, 0)
    return left if isinstance(left, int) else 0


def token(data: bytes) -> str:
    """Read an AuthenticateResponse.

    Raises:
        ValueError: it is none.
    """
    found = dict(_fields(data)).get(2, b"")
    return found.decode() if isinstance(found, bytes) else ""


def _revision(header: int | bytes) -> int:
    found = dict(_fields(header)).get(3, 0)
    return found if isinstance(found, int) else 0


def _key_value(data: int | bytes) -> KeyValue:
    fields = dict(_fields(data))
    key, value, revision = fields.get(1, b""), fields.get(5, b""), fields.get(3, 0)
    if isinstance(key, int) or isinstance(value, int) or isinstance(revision, bytes):
        raise ValueError("that is no key of etcd")  # noqa: TRY004 - of what has come
    return KeyValue(key, value, revision)


# --- the encoding -------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _field(number: int, value: int | bytes) -> bytes:
    """A field; nothing where it has its default."""
    if not value:
        return b""
    return _number(number, value) if isinstance(value, int) else _message(number, value)


def _number(number: int, value: int) -> bytes:
    """One of several alternatives is there also where it is 0."""
    return _varint(number << 3 | _VARINT) + _varint(value)


def _message(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _fields(data: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a message, in order.

    Raises:
        ValueError: it is no message.
    """
    if isinstance(data, int):
        raise ValueError("a number is where a message should be")  # noqa: TRY004
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            number, at = _read_varint(data, at)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            length, at = _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"there is no kind {kind} of fields")
        if at + length > len(data):
            raise ValueError("the message is cut")
        yield tag >> 3, data[at : at + length]
        at += length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(_MOST_VARINT_BYTES):
        if at >= len(data):
            raise ValueError("the message is cut")
        number |= (data[at] & 0x7F) << 7 * place
        at += 1
        if not data[at - 1] & 0x80:
            return number & _MASK, at
    raise ValueError("a number has too many bytes")
