"""What the launcher does with the output of one round: shows it, and keeps one log of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.fault_tolerance.output import destinations
from undaunted.fault_tolerance.output.round_log import RoundLog
from undaunted.fault_tolerance.output.tee import OutputTee

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.fault_tolerance.output.destinations import RankOutput
    from undaunted.fault_tolerance.run_config import RunConfig

# How long the last output of a round may take to reach the console, and its log. The next round
# does not wait for it, only the end of the job does.
_SHOW_S = 5.0
_LOG_S = 60.0


class RoundOutput:
    """Follows the files of the ranks from `start` to `close`."""

    def __init__(
        self,
        config: RunConfig,
        round_no: int,
        first_rank: int,
        world_size: int,
        outputs: Sequence[RankOutput],
    ) -> None:
        """Prepare.

        Args:
            config: of the run.
            round_no: number of the round, from 0.
            first_rank: rank in the job of local rank 0.
            world_size: number of ranks of the job.
            outputs: where the streams of each local rank go.
        """
        ranks = list(enumerate(outputs))
        self._tee = OutputTee(
            [
                entry
                for local_rank, output in ranks
                for entry in destinations.tee_entries(
                    config, local_rank, first_rank + local_rank, output
                )
            ]
        )
        self._log: RoundLog | None = None
        if config.applog_prefix:
            self._log = RoundLog(
                destinations.round_log_path(config.applog_prefix, round_no),
                destinations.log_sources([(first_rank + lr, output) for lr, output in ranks]),
                world_size,
            )

    def start(self) -> list[str]:
        """Begin; return what cannot be done, as lines for the user. Before the ranks start."""
        self._tee.start()
        if self._log is not None:
            self._log.start()
        return self._news()

    def request_close(self) -> None:
        """The ranks have ended: copy the rest. Does not wait; may be called twice."""
        self._tee.request_close(_SHOW_S)
        if self._log is not None:
            self._log.request_close()

    def close(self) -> list[str]:
        """Wait until everything is copied, bounded; return what went wrong since `start`."""
        self._tee.close(_SHOW_S)
        if self._log is not None:
            self._log.close(_LOG_S)
        return self._news()

    def _news(self) -> list[str]:
        news = list(self._tee.problems)
        self._tee.problems.clear()
        if self._log is not None:
            news += self._log.problems
            self._log.problems.clear()
        return news
