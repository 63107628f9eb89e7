"""What the launcher does with the output of one round: shows it, and keeps one log of it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from undaunted.base.deadline import within
from undaunted.fault_tolerance.output import destinations
from undaunted.fault_tolerance.output.bounded_files import BoundedFiles
from undaunted.fault_tolerance.output.job_logs import open_here
from undaunted.fault_tolerance.output.round_log import ContainsFilter, RoundLog
from undaunted.fault_tolerance.output.tee import OutputTee

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.fault_tolerance.output.destinations import RankOutput, Stream
    from undaunted.fault_tolerance.output.job_logs import OpenLog
    from undaunted.fault_tolerance.run_config import RunConfig

# How long it may take to open files: the file system may hang.
_OPEN_S = 1.0
# How long the last output of a round may take to reach the console, and its log. The next round
# does not wait for it, only the end of the job does.
_SHOW_S = 5.0
_LOG_S = 120.0


class RoundOutput:
    """Follows the files of the ranks from `start` to `close`."""

    def __init__(
        self,
        config: RunConfig,
        round_no: int,
        ranks: Sequence[int],
        world_size: int,
        outputs: Sequence[RankOutput],
        problem: str = "",
        open_log: OpenLog = open_here,
    ) -> None:
        """Prepare.

        Args:
            config: of the run.
            round_no: number of the round, from 0.
            ranks: in the job, of each local rank.
            world_size: number of ranks of the job.
            outputs: where the streams of each local rank go.
            problem: what went wrong when that was decided, "" = nothing.
            open_log: opens the log of the round.
        """
        entries = [
            entry
            for local_rank, (rank, output) in enumerate(zip(ranks, outputs, strict=True))
            for entry in destinations.tee_entries(config, local_rank, rank, output)
        ]
        self._log_dir = config.log_dir
        self._problems = [problem] if problem else []
        self._tee = OutputTee(entries)
        paths = (stream.path for output in outputs for stream in output if not stream.temporary)
        self._bound = BoundedFiles(filter(None, paths), config.log_max_bytes)
        self._logs: list[RoundLog] = []
        if config.applog_prefix:
            path = destinations.round_log_path(config.applog_prefix, round_no)
            sources = destinations.log_sources(list(zip(ranks, outputs, strict=True)))
            self._logs.append(RoundLog(path, sources, world_size, open_log=open_log))
        filters: tuple[tuple[int, Stream, Sequence[str]], ...] = (
            (1, "stdout", config.stdout_filters),
            (2, "stderr", config.stderr_filters),
        )
        for stream_fd, stream, texts in filters:
            if texts:
                path = destinations.filtered_path(config, round_no, stream)
                sources = destinations.filtered_sources(entries, stream_fd)
                keeps = partial(ContainsFilter, tuple(texts))
                self._logs.append(RoundLog(path, sources, world_size, keeps))

    def start(self) -> list[str]:
        """Begin, within a second; return what cannot be done, as lines for the user.

        Before the ranks start.
        """
        silent = [f"{self._log_dir} does not answer: output of the ranks may not be shown"]
        return within(_OPEN_S, self._start, silent)

    def _start(self) -> list[str]:
        self._tee.start()
        self._bound.start()
        for log in self._logs:
            log.start()
        return self._news()

    def request_close(self) -> None:
        """The ranks have ended: copy the rest. Does not wait; may be called twice."""
        self._tee.request_close(_SHOW_S)
        for log in self._logs:
            log.request_close()

    def close(self) -> list[str]:
        """Wait until everything is copied, bounded; return what went wrong since `start`."""
        deadline = time.monotonic() + _LOG_S
        self._tee.close(_SHOW_S)
        for log in self._logs:
            log.close(max(0.0, deadline - time.monotonic()))
        self._bound.close(_SHOW_S)  # now that nobody reads them any more
        return self._news()

    def _news(self) -> list[str]:
        news: list[str] = []
        of_logs = (log.problems for log in self._logs)
        for problems in (self._problems, self._tee.problems, self._bound.problems, *of_logs):
            news += problems
            problems.clear()
        return news
