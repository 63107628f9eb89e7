"""Has a rank that begins `init_process_group` before rank 0 go on as soon as rank 0 is there.

Rank 0 serves torch's store, the others connect to it. One that comes a moment too early is refused,
and torch sleeps for 250 to 750 ms before it tries again: longer than a whole restart. So a rank on
the node of rank 0 first waits until somebody listens at the port. It makes no connection for that,
as the server looks up the name of each one. Ranks on other nodes connect as torch does.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULE, _FUNCTION = "torch.distributed.rendezvous", "_create_c10d_store"
_PARAMETERS = ["hostname", "port", "rank"]
# After such a wait it does not matter how long torch sleeps; and torch says that it waits.
_LONGEST_WAIT_S = 5.0
_FIRST_DELAY_S = 0.001
_LONGEST_DELAY_S = 0.05


def wait_before_connecting() -> bool:
    """Have `init_process_group` wait for rank 0 in this process, where torch is imported already.

    Returns:
        Whether it does: not with a torch in which the function that connects is another one.
    """
    module: Any = sys.modules.get(_MODULE)
    original = getattr(module, _FUNCTION, None)
    if original is None or not _is_known(original):
        return False
    setattr(module, _FUNCTION, _waiting(original))
    return True


def _is_known(function: Callable[..., Any]) -> bool:
    import inspect  # torch has imported it

    return list(inspect.signature(function).parameters)[: len(_PARAMETERS)] == _PARAMETERS


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_store(hostname: str, port: int, rank: int, *args: Any, **kwargs: Any) -> Any:
        if rank != 0 and _is_served_here(port):
            _wait_until_listened_at(port)
        return original(hostname, port, rank, *args, **kwargs)

    return create_store


def _is_served_here(port: int) -> bool:
    """Whether it is the port of the job, which rank 0 serves on this node."""
    return os.environ.get("GROUP_RANK") == "0" and os.environ.get("MASTER_PORT") == str(port)


def _wait_until_listened_at(port: int) -> None:
    """Ask again and again, less and less often: there is no event for it. It takes 10 us."""
    deadline = time.monotonic() + _LONGEST_WAIT_S
    delay_s = _FIRST_DELAY_S
    while not _is_listened_at(port) and time.monotonic() < deadline:
        time.sleep(delay_s)
        delay_s = min(2 * delay_s, _LONGEST_DELAY_S)


def _is_listened_at(port: int) -> bool:
    """Whether somebody listens: one who only binds, as the agent does, leaves room for another."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError:  # in use; or nobody knows, as in a process without descriptors: torch will see
        return True
    return False
