"""Finds out what went wrong: evidence is gathered, judged, and told to the journal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.agent.blame import evidence
from undaunted.fault_tolerance.agent.blame.judge import (
    Judgement,
    is_misuse,
    judge_crash,
    judge_hang,
)

if TYPE_CHECKING:
    from undaunted.fault_tolerance.agent.begun import StackPipes
    from undaunted.fault_tolerance.agent.processes.workers import Workers
    from undaunted.fault_tolerance.agent.ranks.watch import PageWatch
    from undaunted.fault_tolerance.agent.round.round import Round
    from undaunted.fault_tolerance.agent.telling.scribe import Scribe
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.progress.area import PageArea
    from undaunted.progress.snapshot import PageSnapshot


@dataclass(frozen=True)
class Examiner:
    """Examines rounds of one node."""

    config: RunConfig
    area: PageArea
    pipes: StackPipes
    workers: Workers
    watch: PageWatch
    scribe: Scribe

    def pages(self) -> list[PageSnapshot]:
        """The pages of all local ranks."""
        return [self.area.snapshot(index) for index in range(self.area.ranks)]

    def crash_detected(self, current: Round, local_rank: int, detail: str) -> None:
        """A rank has crashed, the first one seen."""
        error = self.area.snapshot(local_rank).error
        since_ns = error.at_ns if error else self.workers.all[local_rank].exited_ns
        self.scribe.crash_detected(current.rank(local_rank), since_ns, detail)

    def judge_crash(self, current: Round, *, final: bool) -> bool:
        """Say which rank crashed first and why; return False if that is not clear yet."""
        self.watch.read_news()
        judgement = judge_crash(self.config, current, self.workers.all, self.pages())
        if not judgement.certain and not final:
            return False
        self.scribe.verdict(judgement)
        return True

    def misuse(self, current: Round) -> bool | None:
        """Whether the ranks of the round ended as programs do that are called wrongly."""
        return is_misuse(self.workers.all, self.pages(), announced=current.announced)

    async def hang(self, current: Round) -> Judgement:
        """Gather stacks and states of all ranks and say which one hangs."""
        began_ns = time.monotonic_ns()
        workers = self.workers.all
        ranks = [current.rank(worker.local_rank) for worker in workers]
        expired = self.watch.expired_now([worker.spawned_ns for worker in workers])
        seen = await evidence.gather(workers, ranks, self.pages(), expired, self.pipes)
        self.scribe.evidence_collected(seen, current.stacks_path, began_ns)
        judgement = judge_hang(self.config, current, seen)
        self.scribe.verdict(judgement)
        return judgement
