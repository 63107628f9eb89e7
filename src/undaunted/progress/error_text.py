"""The record of an exception: always fits, keeps the beginning and the end of what is too long."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

from undaunted.base.signals import handlers_off
from undaunted.progress.layout import ERROR_BYTES
from undaunted.progress.reader import ERROR

if TYPE_CHECKING:
    from collections.abc import Callable

_TYPE_BYTES = 256
_MESSAGE_BYTES = 2048


def encode_error(error: BaseException, at_ns: int) -> bytes:
    """Return the body of the error record for ``error``; raises only what handlers of signals do.

    An error that a handler raises meanwhile is recorded instead, with ``error`` as its context: it
    says why, as torch's does when a worker of a loader was killed.

    Args:
        error: with its traceback and its causes.
        at_ns: CLOCK_MONOTONIC, nanoseconds.
    """
    with handlers_off() as off:
        body = _encoded(error, at_ns)
        off.run_handlers()
        late = next((one for one in off.raised if isinstance(one, Exception)), None)
        if late is not None and late is not error:
            late.__context__ = late.__context__ or error
            body = _encoded(late, at_ns)
        return body


def _encoded(error: BaseException, at_ns: int) -> bytes:
    kind = shorten(_attempt(lambda: _type_name(error)), _TYPE_BYTES)
    message = shorten(_attempt(lambda: _message(error)), _MESSAGE_BYTES)
    room = ERROR_BYTES - ERROR.size - len(kind) - len(message)
    printed = _attempt(lambda: "".join(traceback.format_exception(error)))
    trace = shorten(printed, room)
    header = ERROR.pack(at_ns, os.getpid(), len(kind), len(message), len(trace))
    return header + kind + message + trace


def shorten(text: str, room: int) -> bytes:
    """Encode ``text`` in at most ``room`` bytes (64 at least), leaving out from its middle."""
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= room:
        return encoded
    note = f"\n... {len(encoded) - room} bytes or more left out ...\n".encode()
    head = (room - len(note)) // 2
    tail = room - len(note) - head
    return _whole(encoded[:head]) + note + _whole(encoded[-tail:])


def _whole(encoded: bytes) -> bytes:
    """Drop characters that were cut in two."""
    return encoded.decode(errors="ignore").encode()


def _attempt(describe: Callable[[], str]) -> str:
    """Let user code (``__str__`` and the like) describe an error, whatever it does instead."""
    try:
        return describe()
    except Exception as failure:  # noqa: BLE001 - user code may raise anything
        return f"<{type(failure).__name__} while it was described>"


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return str(int(error.code))  # sys.exit(True) is an exit with 1
    return str(error)


def _type_name(error: BaseException) -> str:
    module, name = type(error).__module__, type(error).__qualname__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"
