"""The clock of this node: by how much it may be wrong, as the kernel is told by whoever sets it.

NTP and PTP daemons tell the kernel how large the error may be at most; it grows while they cannot
reach a server. Nothing is asked over the network.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from undaunted.health.check import Check, Finding, Settings, skipped

if TYPE_CHECKING:
    from collections.abc import Callable

_UNSYNCHRONISED = 0x40  # STA_UNSYNC


class _Timex(ctypes.Structure):
    """The beginning of the kernel's structure; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def kernel_clock() -> tuple[float, bool]:
    """Return by how many seconds the clock may be wrong, and whether anybody sets it.

    Raises:
        OSError: the kernel does not tell.
    """
    told = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(told)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return told.maxerror / 1e6, not told.status & _UNSYNCHRONISED


class Clock(Check):
    """The clock."""

    name = "clock"

    def __init__(self, most_s: float, ask: Callable[[], tuple[float, bool]] = kernel_clock) -> None:
        """Check that the clock is wrong by ``most_s`` at most."""
        self._most_s = most_s
        self._ask = ask

    def run(self, seen: dict[str, Any]) -> Finding | None:  # noqa: ARG002 - nothing to keep
        """See `Check`."""
        try:
            error_s, is_set = self._ask()
        except OSError as error:
            return skipped(str(error))
        if not is_set:
            return skipped("nobody sets it: no NTP or PTP daemon has told the kernel for long")
        if error_s <= self._most_s:
            return None
        return Finding(f"it may be wrong by {error_s:g} s, more than {self._most_s:g} s")


def checks(settings: Settings) -> list[Check]:
    """Return the check if it was asked for."""
    return [Clock(settings.clock_s)] if settings.clock_s else []
