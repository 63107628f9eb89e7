"""The parts of an agent: opened one after the other, closed in reverse, whatever one of them does.

A feature is a file with a `Part`, and a line in the agent's list.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from undaunted.base.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from undaunted.fault_tolerance.agent.round import Round
    from undaunted.fault_tolerance.worker.spawner import Spawned

# Every part has its deadlines. This is for one that does not keep to them.
CLOSE_S = 30.0
_CANCEL_S = 1.0


class Part:
    """A part that lives as long as the agent. Each hook may be left out.

    Attributes:
        close_s: how long `close` may take, seconds. One that does not wait takes no time.
    """

    close_s = CLOSE_S

    def open(self) -> Awaitable[None] | None:
        """Begin. If this raises, the agent ends."""

    def round_begins(self, current: Round) -> None:
        """The pages are of these ranks from now on."""

    def ranks_run(self, current: Round, spawned: Spawned) -> None:
        """The ranks of this round have been started."""

    def round_ends(self) -> None:
        """The ranks have ended, or the agent ends first."""

    def round_over(self, number: int) -> None:
        """All that the ranks of this round have printed is where it belongs."""

    def processes(self) -> set[int]:
        """Processes below the agent that belong to no round."""
        return set()

    def servers(self) -> set[tuple[int, int]]:
        """Those that end after all ranks: pid and start time."""
        return set()

    def close(self) -> Awaitable[None] | None:
        """Release everything, also if `open` has failed half-way or was never called."""


@dataclass
class Held(Part):
    """A part that is no `Part`: what it does is given."""

    closes: Callable[[], Any]
    opens: Callable[[], Awaitable[None] | None] = lambda: None
    pids: Callable[[], set[int]] = set
    servers_now: Callable[[], set[tuple[int, int]]] = set
    close_s: float = CLOSE_S

    def open(self) -> Awaitable[None] | None:
        """See `Part`."""
        return self.opens()

    def processes(self) -> set[int]:
        """See `Part`."""
        return self.pids()

    def servers(self) -> set[tuple[int, int]]:
        """See `Part`."""
        return self.servers_now()

    def close(self) -> Awaitable[None] | None:
        """See `Part`."""
        closing = self.closes()
        return closing if asyncio.iscoroutine(closing) else None


class Parts:
    """All of them.

    Args:
        parts: in the order in which they are opened. Whatever needs another one comes after it.
        failed: called with what a part raises as it closes; does not raise.
    """

    def __init__(self, parts: Iterable[Part], failed: Callable[[BaseException], None]) -> None:
        self._parts = list(parts)
        self._failed = failed

    async def open(self) -> None:
        """Open them all; what one of them raises is raised, and `close` is to follow."""
        for part in self._parts:
            if (opening := part.open()) is not None:
                await opening

    async def close(self) -> None:
        """Close them all, the last one first; what one of them raises keeps none from that."""
        while self._parts:
            part = self._parts.pop()
            try:
                if (closing := part.close()) is not None:
                    await _in_time(closing, part)
            except Exception as error:  # noqa: BLE001 - the others have to be closed
                self._failed(error)

    def round_begins(self, current: Round) -> None:
        """See `Part`."""
        for part in self._parts:
            part.round_begins(current)

    def ranks_run(self, current: Round, spawned: Spawned) -> None:
        """See `Part`."""
        for part in self._parts:
            part.ranks_run(current, spawned)

    def round_ends(self) -> None:
        """See `Part`."""
        for part in reversed(self._parts):
            part.round_ends()

    def round_over(self, number: int) -> None:
        """See `Part`."""
        for part in self._parts:
            part.round_over(number)

    def processes(self) -> set[int]:
        """Processes below the agent that belong to no round."""
        found = {pid for part in self._parts for pid in part.processes()}
        return found | {pid for pid, _ in self.servers()}

    def servers(self) -> set[tuple[int, int]]:
        """Those of them that end after all ranks: pid and start time."""
        return {server for part in self._parts for server in part.servers()}


async def _in_time(closing: Awaitable[None], part: Part) -> None:
    """Wait for a part that closes; one that does not come to its end is left behind.

    Raises:
        TimeoutError: that is so.
    """
    task = asyncio.ensure_future(closing)
    await asyncio.wait([task], timeout=part.close_s)
    if not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_S)
        limit = format_duration(part.close_s)
        raise TimeoutError(f"{part!r} has not closed within {limit}")
    if not task.cancelled():
        task.result()
