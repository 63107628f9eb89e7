"""What passes between gRPC's stand-in and a member, and etcd's messages from the other side.

`undaunted.coordinator.etcd.messages` makes requests and reads answers; here requests are read and
answers made.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from undaunted.coordinator.etcd.messages import KeyValue, _field, _fields, _message, _number


class Call(msgspec.Struct, frozen=True):
    """A question of a call; the first one begins it.

    Attributes:
        number: of the call, on its connection.
        action: path of the method.
        request: as etcd has it.
        must_lead: end the call where the member is cut off from the others.
    """

    number: int
    action: str
    request: bytes
    must_lead: bool = False


class Ended(msgspec.Struct, frozen=True):
    """Nobody waits for answers to a call any more."""

    number: int


class Ping(msgspec.Struct, frozen=True):
    """Whether the other side lives."""


class Pong(msgspec.Struct, frozen=True):
    """It does."""


class Answer(msgspec.Struct, frozen=True):
    """One answer of a call."""

    number: int
    answer: bytes


class Failure(msgspec.Struct, frozen=True):
    """The call fails."""

    number: int
    reason: str


# --- requests -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a transaction: get, put or delete."""

    kind: int
    key: bytes
    value: bytes = b""
    lease: int = 0


GET, PUT, DELETE = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Transaction:
    """`success` if each key was last written at its revision, else `failure`."""

    unchanged: tuple[tuple[bytes, int], ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...]


def transaction(data: bytes) -> Transaction:
    """Read a TxnRequest."""
    groups: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    for number, value in _fields(data):
        assert isinstance(value, bytes)
        groups[number].append(value)
    compares = (dict(_fields(each)) for each in groups[1])
    unchanged = tuple((_bytes(each.get(3)), _int(each.get(6))) for each in compares)
    success, failure = (tuple(map(_operation, groups[number])) for number in (2, 3))
    return Transaction(unchanged, success, failure)


def numbers(data: bytes) -> tuple[int, int]:
    """Read the first two numbers of a request."""
    fields = dict(_fields(data))
    return _int(fields.get(1)), _int(fields.get(2))


def watched(data: bytes) -> tuple[bytes, bytes, int]:
    """Read a WatchRequest: the first key, the one after the last, from which revision on."""
    fields = dict(_fields(dict(_fields(data))[1]))
    return _bytes(fields.get(1)), _bytes(fields.get(2)), _int(fields.get(3))


def _operation(data: bytes) -> Operation:
    ((kind, inner),) = _fields(data)
    fields = dict(_fields(inner))
    value = _bytes(fields.get(2)) if kind == PUT else b""
    return Operation(kind, _bytes(fields.get(1)), value, _int(fields.get(3)))


def _bytes(value: int | bytes | None) -> bytes:
    return value if isinstance(value, bytes) else b""


def _int(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0


# --- answers --------------------------------------------------------------------------------------


def done(revision: int, found: list[KeyValue | None], *, succeeded: bool) -> bytes:
    """TxnResponse; ``found``: by each operation that has read."""
    reads = (_message(1, b"" if each is None else _message(2, _key(each))) for each in found)
    answers = b"".join(_message(3, each) for each in reads)
    return _header(revision) + _field(2, int(succeeded)) + answers


def changes(revision: int, keys: list[tuple[bytes, KeyValue | None]]) -> bytes:
    """WatchResponse; None: the key was deleted."""
    events = (
        _message(2, _key(found)) if found else _number(1, 1) + _message(2, _field(1, key))
        for key, found in keys
    )
    return _header(revision) + b"".join(_message(11, each) for each in events)


def seconds_left(lease: int, seconds: int) -> bytes:
    """LeaseKeepAliveResponse."""
    return _field(2, lease) + _field(3, seconds)


def _header(revision: int) -> bytes:
    return _message(1, _field(3, revision))


def _key(found: KeyValue) -> bytes:
    return _field(1, found.key) + _field(3, found.revision) + _field(5, found.value)
