"""What is left to do for a round that is over, while the next one begins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.agent.round import leftovers
from undaunted.fault_tolerance.agent.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.agent.round.round import Round
    from undaunted.fault_tolerance.agent.telling.attribution import Attribution
    from undaunted.fault_tolerance.agent.telling.scribe import Scribe
    from undaunted.fault_tolerance.run_config import RunConfig


class Aftermath:
    """Begins what is bounded by itself; it is waited for at the end of the job, not cancelled.

    Args:
        config: the run.
        scribe: shows what went wrong.
        attribution: learns that the log of a round is complete.
        failed: called with the exception of a bug of ours.
    """

    def __init__(
        self,
        config: RunConfig,
        scribe: Scribe,
        attribution: Attribution,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._scribe = scribe
        self._attribution = attribution
        self._tasks = Tasks(failed)

    def finish_output(self, current: Round) -> None:
        """Have the last output of a round that is closed copied."""
        self._tasks.start(self._finish_output(current))

    def name_leftovers(self, number: int) -> None:
        """Name processes that went on outside of the agent's tree, if that is asked for."""
        if self._config.check_remaining_processes:
            self._tasks.start(self._name_leftovers(number))

    async def wait(self) -> None:
        """Wait for all of it."""
        await self._tasks.wait()

    async def _finish_output(self, current: Round) -> None:
        for problem in await asyncio.to_thread(current.finish_output):
            self._scribe.say(problem)
        self._attribution.round_over(current.number)

    async def _name_leftovers(self, number: int) -> None:
        if line := await asyncio.to_thread(leftovers.line, self._config.run_dir, number):
            self._scribe.say(line)
