"""Ports and addresses, for programs that are told where to listen rather than asked."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

import pytest

from undaunted.coordinator.wire.address import own_address

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 1000


def address_of_this_machine() -> str:
    """Return an address that is not loopback, so that ranks may be on several nodes."""
    try:
        return own_address("192.0.2.1")  # nobody has it
    except OSError:
        pytest.skip("this machine has no address but loopback")


def free_ports(count: int) -> int:
    """Return the first of so many free ports in a row that nobody gets who asks for any.

    One that the kernel has found would be given away again before it is used: to a connection.
    """
    lowest = int(_RANGE.read_text().split()[0])
    for _ in range(_TRIES):
        first = random.SystemRandom().randrange(1024, max(1026, lowest - count))
        with contextlib.suppress(OSError), contextlib.ExitStack() as bound:
            for port in range(first, first + count):
                bound.enter_context(socket.socket()).bind(("", port))
            return first
    raise AssertionError("no ports are free")
