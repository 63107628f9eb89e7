"""When a job ends without having finished: what its ranks copied last is not lost with them."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from undaunted.base import process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from undaunted.checkpointing.keeping.shelf import Shelf

PROGRAM = "undaunted.checkpointing.keeping.last"
# A node writes some gigabytes per second; a job that is ended is given minutes.
TIMEOUT_S = 60.0
_PAGE = "UNDAUNTED_PAGE"  # of the rank; this program is none


async def write_last_copies(
    shelf: Shelf, environment: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Have copies that are newer than every checkpoint written out, at most for `TIMEOUT_S`.

    Args:
        shelf: has the copies; their processes have ended.
        environment: of a rank of the last round.
        say: called with what went wrong.
    """
    places: dict[str, list[tuple[str, int]]] = {}
    for key, fd in shelf.arenas().items():
        places.setdefault(key.place, []).append((f"{key.rank}:{key.slot}", fd))
    env = {name: value for name, value in environment.items() if name != _PAGE}
    for place, arenas in places.items():
        argv = process.module_command(PROGRAM, place, *(f"{name}:{fd}" for name, fd in arenas))
        try:
            pid = process.spawn(argv, env, [fd for _, fd in arenas])
        except OSError as error:
            say(f"what was copied last for {place} is not written: {error}")
            continue
        if not await _ended(pid, TIMEOUT_S):
            say(f"what was copied last for {place} could not be written within {TIMEOUT_S:g} s")


async def _ended(pid: int, timeout_s: float) -> bool:
    """Wait for a child, which is killed when time runs out; whoever reaps it."""
    pidfd = process.open_pidfd(pid)
    if pidfd is None:
        return True
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(pidfd, over.set)
    try:
        await asyncio.wait_for(over.wait(), timeout_s)
    except asyncio.TimeoutError:
        process.signal_pidfd(pidfd, signal.SIGKILL)
        return False
    else:
        return True
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
