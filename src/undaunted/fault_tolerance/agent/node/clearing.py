"""Between two rounds: everything that makes sure that the next one finds a fit node.

All of it is done at the same time, each with a deadline of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from undaunted.base.text import format_duration
from undaunted.fault_tolerance.agent.node.reclaim import Reclaim
from undaunted.journal import events as e

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from undaunted.fault_tolerance.agent.node.node_health import NodeHealth
    from undaunted.fault_tolerance.agent.telling.scribe import Scribe
    from undaunted.fault_tolerance.run_config import RunConfig

# The tasks below keep to their own deadlines; this is for when one does not.
_SPARE_S = 5.0


class Clearing:
    """What `core.node` calls CLEARING. Owns the helper programs it takes.

    Args:
        config: the run.
        environ: of the ranks.
        scribe: told how it went.
        health: checks the node; belongs to the caller.
    """

    def __init__(
        self, config: RunConfig, environ: Mapping[str, str], scribe: Scribe, health: NodeHealth
    ) -> None:
        self._scribe = scribe
        self._health = health
        self._timeout_s = config.gpu_memory_reclaim_timeout_s
        self._reclaim = Reclaim(config, environ)
        self._running: asyncio.Task[object] | None = None

    @property
    def longest_s(self) -> float:
        """How long it takes at most, seconds; 0 = there is nothing to do."""
        longest_s = max(self._timeout_s if self._reclaim.wanted else 0.0, self._health.longest_s)
        return longest_s + _SPARE_S if longest_s else 0.0

    def prepare(self) -> None:
        """Start what takes a while to start, while the ranks end."""
        self._reclaim.prepare()

    def pids(self) -> set[int]:
        """The helper programs that run: they belong to no round."""
        return self._reclaim.pids()

    async def clear(self, ended: AbstractSet[int]) -> str:
        """Do it all; return why this node can run no round, "" if it can.

        Args:
            ended: processes of the round that ended.
        """
        self._running = asyncio.current_task()
        try:
            problems = await asyncio.gather(
                self._wait_for_memory(ended),
                self._health.examine(),
            )
        finally:
            self._running = None
            self._reclaim.close()
        return "; ".join(problem for problem in problems if problem)

    def close(self) -> None:
        """Give up what is under way and end the helper programs; `prepare` starts them again."""
        if self._running is not None:
            self._running.cancel()  # it ends them
        else:
            self._reclaim.close()

    async def _wait_for_memory(self, ended: AbstractSet[int]) -> str:
        """Never a problem: whatever is still in use may be enough to go on."""
        if not self._reclaim.wanted:
            return ""
        outcome = await self._reclaim.wait(ended)
        self._scribe.record(
            e.MemoryReclaimed,
            duration_ns=outcome.duration_ns,
            timeout_s=self._timeout_s,
            devices=outcome.devices,
            pids=list(outcome.pids),
            held=outcome.held,
            skipped=outcome.skipped,
        )
        if outcome.skipped:
            self._scribe.say(f"restarts do not wait for device memory: {outcome.skipped}")
        elif outcome.held:
            hint = (
                ". If it belongs to others, raise --ft-gpu-memory-tolerance-mb, or give "
                "--ft-gpu-memory-reclaim-timeout 0"
            )
            self._scribe.say(
                f"device memory is not free after {format_duration(self._timeout_s)}: "
                f"{outcome.held}; going on{hint if outcome.devices else ''}"
            )
        return ""
