"""Where other ranks reach the store that this process serves."""

from __future__ import annotations

import os
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

from undaunted.base.deadline import within
from undaunted.base.machine import boot_id
from undaunted.coordinator.wire.address import is_loopback, own_address, own_host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOOPBACK = "127.0.0.1"
_LOOK_UP_S = 5.0
_ATTEMPT_S = 5.0


def network() -> str:
    """Name the network this process is in: processes that have the same reach each other locally.

    "" where there is no telling.
    """
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return ""


def to_serve_at(environ: Mapping[str, str], one_machine: bool) -> str:
    """Return the address of this machine at which all ranks reach it; "" = there is no telling.

    Args:
        environ: the environment.
        one_machine: all ranks are here; otherwise it is the address from which this machine would
            speak to ``MASTER_ADDR``, or what its own name says.
    """
    if one_machine:
        return LOOPBACK
    for name in (environ.get("MASTER_ADDR", ""), socket.gethostname()):
        here = within(_LOOK_UP_S, partial(own_address, name), "") if name else ""
        if here and not is_loopback(here):
            return here
    return ""


def own_hosts(environ: Mapping[str, str]) -> list[str]:
    """Return names and addresses under which others may reach this machine, the best first.

    The first is the address from which this machine would speak to ``MASTER_ADDR``, as that is an
    address all ranks can reach.
    """
    found = []
    master = environ.get("MASTER_ADDR", "")
    if master:
        found.append(within(_LOOK_UP_S, lambda: own_host(master), ""))
    found.append(socket.gethostname())
    return list(dict.fromkeys(host for host in found if host))


def reachable(hosts: Sequence[str], port: int, timeout_s: float) -> str:
    """Return the first host whose port can be connected to.

    Raises:
        OSError: none of them can be reached.
    """
    deadline = time.monotonic() + timeout_s
    why = []
    for host in hosts:
        left_s = min(_ATTEMPT_S, deadline - time.monotonic())
        try:
            with socket.create_connection((host, port), timeout=max(0.001, left_s)):
                return host
        except OSError as error:
            why.append(f"{host}: {error}")
    raise OSError(f"port {port} cannot be reached ({'; '.join(why)})")
