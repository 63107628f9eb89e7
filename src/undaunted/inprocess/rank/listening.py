"""Where other ranks reach this one."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from undaunted.coordinator.wire.address import is_loopback, own_address
from undaunted.inprocess.exception import InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping

_BACKLOG = 4096
_LOOPBACK = "127.0.0.1"


def on_one_machine(host: str, world_size: int, environ: Mapping[str, str]) -> bool:
    """Whether the launcher says that all ranks are here, or the address cannot be reached else.

    Args:
        host: ``MASTER_ADDR``, or what stands for it.
        world_size: as the launcher has set it: restarts change the variable.
        environ: the environment.
    """
    if environ.get("LOCAL_WORLD_SIZE") == str(world_size):
        return True
    return environ.get("SLURM_STEP_NUM_NODES") == "1" or host == "localhost" or is_loopback(host)


def own_host(environ: Mapping[str, str], world_size: int) -> str:
    """Return where other ranks reach this machine; "" = there are none.

    That is loopback on one machine, else the address from which this machine would speak to
    ``MASTER_ADDR``, or that name itself if it leads to loopback here.

    Args:
        environ: the environment.
        world_size: as the launcher has set it.

    Raises:
        InternalError: ``MASTER_ADDR`` cannot be looked up.
    """
    if world_size == 1:
        return ""
    master = environ.get("MASTER_ADDR", "")
    if not master or on_one_machine(master, world_size, environ):
        return _LOOPBACK
    try:
        here = own_address(master)
    except OSError as error:
        raise InternalError(f"MASTER_ADDR={master!r} cannot be looked up: {error}") from error
    return master if is_loopback(here) else here


def listen(host: str, port: int = 0) -> socket.socket:
    """Listen at an address of this machine; at all of them if a name is given.

    Args:
        host: see `own_host`.
        port: 0 = any that is free.

    Raises:
        OSError: the port is taken.
    """
    try:
        version = ipaddress.ip_address(host.partition("%")[0]).version
    except ValueError:
        host, version = "", 6 if socket.has_dualstack_ipv6() else 4
    return _listen(socket.AF_INET6 if version == 6 else socket.AF_INET, host, port)


def _listen(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if port:  # connections of who listened there before do not matter
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
