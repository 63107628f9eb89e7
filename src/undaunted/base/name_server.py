"""Asking a name server again soon: for what nobody wants to know, but torch asks.

torch looks up what the addresses at both ends of every connection to a TCPStore are called. Where
an answer is lost, which name servers that limit their load do on purpose, glibc asks again after
five seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_INITIALIZED = 1  # RES_INIT


class _Resolver(ctypes.Structure):
    """The beginning of ``struct __res_state`` of resolv.h, of which every thread has one."""

    _fields_ = (
        ("again_after_s", ctypes.c_int),
        ("attempts", ctypes.c_int),
        ("options", ctypes.c_ulong),
    )


@contextlib.contextmanager
def asked_again_soon() -> Iterator[None]:
    """Have look-ups of this thread be repeated after a second; as usual where there is no glibc."""
    resolver = _resolver()
    if resolver is None:
        yield
        return
    before, resolver.again_after_s = resolver.again_after_s, 1
    try:
        yield
    finally:
        resolver.again_after_s = before


def _resolver() -> Any:
    """Return the resolver of this thread, None = it is unknown."""
    functions = _functions()
    if functions is None:
        return None
    get, initialize = functions
    resolver = get().contents
    if not resolver.options & _INITIALIZED:
        initialize()
    return resolver if resolver.options & _INITIALIZED else None


@functools.cache
def _functions() -> tuple[Any, Any] | None:
    """Return what gets and what initializes a thread's resolver; None = there is no glibc."""
    library = ctypes.CDLL(None)
    try:
        library["gnu_get_libc_version"]
        get, initialize = library["__res_state"], library["__res_init"]
    except AttributeError:
        return None
    get.restype = ctypes.POINTER(_Resolver)
    return get, initialize
