"""The launcher shows the output of one round, keeps one log of it, and bounds it."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from undaunted.base.deadline import within
from undaunted.fault_tolerance.output import destinations
from undaunted.fault_tolerance.output.console import Console
from undaunted.fault_tolerance.output.filters import DeviceListFilter
from undaunted.fault_tolerance.output.follower import Follower
from undaunted.fault_tolerance.output.job_logs import open_here
from undaunted.fault_tolerance.output.line_copy import LineCopy
from undaunted.fault_tolerance.output.rank_file import Bound, RankFile
from undaunted.fault_tolerance.output.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.fault_tolerance.output.destinations import RankOutput
    from undaunted.fault_tolerance.output.job_logs import OpenLog
    from undaunted.fault_tolerance.run_config import RunConfig

# How long it may take to open files: the file system may hang.
_OPEN_S = 1.0
# How long the last output of a round may take to reach the console, and its log. The next round
# does not wait for it, only the end of the job does.
_SHOW_S = 5.0
_LOG_S = 120.0
_BOUND_BATCH_S = 0.1


class RoundOutput:
    """Follows the files of the ranks from `start` to `close`."""

    def __init__(
        self,
        config: RunConfig,
        round_no: int,
        ranks: Sequence[int],
        world_size: int,
        outputs: Sequence[RankOutput],
        open_log: OpenLog = open_here,
    ) -> None:
        """Prepare.

        Args:
            config: of the run.
            round_no: number of the round, from 0.
            ranks: in the job, of each local rank.
            world_size: number of ranks of the job.
            outputs: where the streams of each local rank go.
            open_log: opens the log of the round.
        """
        self._config, self._open_log = config, open_log
        self._outputs = list(zip(ranks, outputs, strict=True))
        self._files = {
            stream.path: RankFile(stream.path)
            for output in outputs
            for stream in output
            if stream.path
        }
        self._where = destinations.round_dir(config.log_dir, round_no)
        self._followers = list(self._consoles())
        if config.applog_prefix:
            path = destinations.round_log_path(config.applog_prefix, round_no)
            self._followers.append(self._log(path, world_size))
        if config.log_max_bytes:
            self._followers.append(self._bounds(config.log_max_bytes))

    def start(self) -> list[str]:
        """Begin, within a second; return what cannot be done, as lines for the user.

        Before the ranks start.
        """
        log_dir = self._config.log_dir
        silent = [f"{log_dir} does not answer: output of the ranks may not be shown"]
        return within(_OPEN_S, self._start, silent)

    def _start(self) -> list[str]:
        for follower in self._followers:
            follower.start()
        return self._news()

    def request_close(self) -> None:
        """The ranks have ended: copy the rest. Does not wait; may be called twice."""
        for follower in self._followers:
            follower.request_close()

    def close(self) -> list[str]:
        """Wait until everything is copied, bounded; return what went wrong since `start`."""
        for follower in self._followers:
            follower.close()
        return self._news()

    def _consoles(self) -> Iterator[Follower]:
        """A follower for each stream of the launcher; one for both if they are the same file."""
        copies: dict[object, tuple[int, list[LineCopy]]] = {}
        for local_rank, (rank, output) in enumerate(self._outputs):
            prefix = destinations.line_prefix(self._config, local_rank, rank)
            for fd, stream in enumerate(output, 1):
                if stream.shown:
                    copy = LineCopy(self._files[stream.path], prefix)
                    copies.setdefault(_identity(fd), (fd, []))[1].append(copy)
        kept = f"they are in {self._where}"
        for fd, parts in copies.values():
            yield Follower(
                "the console",
                partial(_console, fd, kept),
                parts,
                where=self._where,
                limit_s=_SHOW_S,
            )

    def _log(self, path: str, world_size: int) -> Follower:
        copies = {
            stream.path: LineCopy(
                self._files[stream.path],
                rank_prefix(rank, world_size).encode(),
                DeviceListFilter(),
                temporary=stream.temporary,
            )
            for rank, output in self._outputs
            for stream in output
            if stream.path
        }
        return Follower(
            f"the log {path}",
            lambda follower: self._open_log(path, follower.unread_bytes),
            list(copies.values()),
            where=self._where,
            limit_s=_LOG_S,
        )

    def _bounds(self, most: int) -> Follower:
        paths = {s.path for _, output in self._outputs for s in output if not s.temporary}
        return Follower(
            "the shortening of files",
            lambda _: Sink(),
            [Bound(self._files[path], most) for path in sorted(paths - {""})],
            where=self._where,
            limit_s=_SHOW_S,
            batch_s=_BOUND_BATCH_S,
        )

    def _news(self) -> list[str]:
        news: list[str] = []
        for follower in self._followers:
            news += follower.problems
            follower.problems.clear()
        return news


def _console(fd: int, kept: str, follower: Follower) -> Console:
    return Console(fd, follower.wait_for_writer, kept=kept)


def _identity(fd: int) -> object:
    """What tells two descriptors of one file from two files."""
    try:
        status = os.fstat(fd)
    except OSError:  # closed
        return fd
    return status.st_dev, status.st_ino


def rank_prefix(rank: int, world_size: int) -> str:
    """Prefix of a line of a rank: ``" 7: "`` in a job of 16, so that lines stand in columns."""
    return f"{rank:>{len(str(max(0, world_size - 1)))}}: "
