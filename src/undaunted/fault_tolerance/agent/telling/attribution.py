"""What an attribution service says about the rounds: asked for, told, and perhaps obeyed."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from undaunted.coordinator.core import messages as job
from undaunted.fault_tolerance.output.destinations import round_log_path

if TYPE_CHECKING:
    from undaunted.fault_tolerance.agent.orders.orders import Orders
    from undaunted.fault_tolerance.agent.telling.attribution_client import Answer, AttributionClient
    from undaunted.fault_tolerance.agent.telling.scribe import Scribe
    from undaunted.fault_tolerance.run_config import RunConfig

_STOP = "STOP"
_LAST_RESULT_S = 5.0


class Attribution:
    """Asks the service of a run about each round; does nothing if the run has none.

    Args:
        config: the run.
        scribe: who tells the journal and the user.
        orders: where advice to stop goes, if that may end the job.
    """

    def __init__(self, config: RunConfig, scribe: Scribe, orders: Orders) -> None:
        self._config = config
        self._scribe = scribe
        self._orders = orders
        self._round = -1
        self._client = self._connect() if config.attribution_service else None

    def round_began(self, number: int) -> None:
        """The log of this round is being written."""
        self._round = number
        if self._client is not None:
            self._client.round_began(number, self._log(number))

    def round_over(self, number: int) -> None:
        """The log of this round is complete."""
        if self._client is not None:
            self._client.round_over(number, self._log(number))

    async def close(self) -> None:
        """Wait a little for the last result. Before the scribe is closed."""
        if self._client is None:
            return
        if not await asyncio.to_thread(self._client.close, _LAST_RESULT_S):
            self._problem(
                f"the attribution service has no result of round {self._round} yet; "
                f"its log is {self._log(self._round)}"
            )
        await asyncio.sleep(0)  # what has come is dealt with

    def _connect(self) -> AttributionClient:
        from undaunted.fault_tolerance.agent.telling.attribution_client import AttributionClient

        loop = asyncio.get_running_loop()

        def answered(answer: Answer) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._answered, answer)

        user = os.environ.get("SLURM_JOB_USER") or os.environ.get("USER") or str(os.getuid())
        url = self._config.attribution_service
        return AttributionClient(url, answered, self._problem, user=user)

    def _answered(self, answer: Answer) -> None:
        self._scribe.attributed(answer)
        if answer.action == _STOP and self._config.attribution_may_end_job:
            why = f"after round {answer.round}: {answer.text}"
            about = (self._config.node, self._round, why)
            self._orders.post(job.ShutdownRequested(*about, by="the attribution service"))

    def _problem(self, line: str) -> None:
        self._scribe.say(line)

    def _log(self, number: int) -> str:
        return round_log_path(self._config.applog_prefix, number)
