"""What ranks do: seen in pages and processes, told to the journal, the node and the job policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.fault_tolerance.agent.blame.examine import Examiner
from undaunted.fault_tolerance.agent.ranks.learned import LimitKeeper
from undaunted.fault_tolerance.agent.ranks.news import News
from undaunted.fault_tolerance.agent.ranks.requests import Requests
from undaunted.fault_tolerance.agent.ranks.watch import Listener, PageWatch
from undaunted.fault_tolerance.core import node_messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.agent.begun import Begun
    from undaunted.fault_tolerance.agent.inprocess.inprocess import InProcess
    from undaunted.fault_tolerance.agent.orders.orders import Orders
    from undaunted.fault_tolerance.agent.processes.workers import Worker, Workers
    from undaunted.fault_tolerance.agent.round.round import Round, RoundFactory
    from undaunted.fault_tolerance.agent.telling.scribe import Scribe
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.progress.area import MailboxRequest
    from undaunted.progress.reader import RingEvent
    from undaunted.progress.snapshot import PageSnapshot
    from undaunted.progress.timeouts import Expired


class RankEvents:
    """Listens to the ranks of one round after the other.

    Args:
        config: the run.
        begun: has their pages and pipes.
        workers: their processes.
        scribe: tells the journal.
        rounds: learns which planned faults have happened.
        orders: where ranks' wishes go.
        inprocess: knows which ranks can be spared.
        post: takes events for the node.

    Attributes:
        watch: over the pages.
        limits: what ranks are held to.
    """

    def __init__(
        self,
        config: RunConfig,
        begun: Begun,
        workers: Workers,
        scribe: Scribe,
        rounds: RoundFactory,
        orders: Orders,
        inprocess: InProcess,
        post: Callable[[m.Event], None],
    ) -> None:
        self._workers = workers
        self._scribe = scribe
        self._inprocess = inprocess
        self._post = post
        self._round: Round | None = None
        listener = Listener(
            limit_passed=self._limit_passed,
            news=self._page_news,
            ring_events=self._ring_events,
            request=self._request,
            paused=scribe.agent_paused,
            unfed=scribe.heartbeats_missing,
        )
        self.watch = PageWatch(begun.area, config.limits, listener)
        self.limits = LimitKeeper(config, begun.area, self.watch, scribe)
        self._examiner = Examiner(config, begun.area, begun.pipes, workers, self.watch, scribe)
        self._news = News(rounds, scribe, self._errored)
        self._requests = Requests(config.node, begun.area, self.limits, scribe, orders)

    def begin_round(self, current: Round) -> None:
        """The pages are of these ranks from now on."""
        self._round = current
        self.limits.begin_round(current.start.world_size)

    def exited(self, worker: Worker) -> None:
        """The process of a rank has ended."""
        assert worker.code is not None
        rank = worker.local_rank
        self.watch.read_news()  # what it wrote last
        self.watch.rank_ended(rank)
        self._scribe.rank_exited(self._this_round(), worker)
        spared, again = self._inprocess.goes_on_without(rank), self._inprocess.may_return(rank)
        absent = self._inprocess.absent()
        self._post(m.RankExited(rank, worker.code, spared, again, absent))

    # --- what the node wants --------------------------------------------------------------------

    def hold_to_limits(self, *, on: bool) -> None:
        """Watch all ranks of the round that still run; or none."""
        workers = self._workers.all if on else []
        self.watch.hold_to_limits(
            [worker.spawned_ns for worker in workers],
            [worker.local_rank for worker in workers if worker.code is not None],
        )

    def crash_detected(self, local_rank: int, detail: str) -> None:
        """Tell the journal of the first crash of a round that was seen."""
        self._examiner.crash_detected(self._this_round(), local_rank, detail)

    def judge_crash(self, *, final: bool) -> None:
        """Find out which rank crashed first; if that is not clear yet, the node hears of it."""
        if not self._examiner.judge_crash(self._this_round(), final=final):
            self._post(m.CrashUnclear())

    async def judge_hang(self) -> None:
        """Find out which rank hangs, and tell the node."""
        current = self._this_round()
        judgement = await self._examiner.hang(current)
        self._post(m.HangJudged(current.number, judgement.culprits, judgement.event.line))

    def misuse(self) -> bool | None:
        """Whether the ranks of the round ended as programs do that are called wrongly."""
        return self._examiner.misuse(self._this_round())

    # --- what the watch has seen ----------------------------------------------------------------

    def _limit_passed(self, local_rank: int, expired: Expired) -> None:
        self._workers.reap()  # on a busy machine, word of its end may come after its limit
        if self._workers.has_ended(local_rank):
            return
        self._scribe.hang_detected(self._this_round().rank(local_rank), expired)
        self.limits.limit_ended_rank(expired)
        self._post(m.LimitPassed(local_rank, expired.watch))

    def _page_news(self, local_rank: int, page: PageSnapshot) -> None:
        if self._round is not None:
            self._news.page(self._round, local_rank, page)

    def _ring_events(self, local_rank: int, events: list[RingEvent], lost: int) -> None:
        self._news.ring(self._this_round(), local_rank, events, lost)

    def _request(self, local_rank: int, message: MailboxRequest) -> None:
        self._requests.take(self._this_round(), local_rank, message)

    # --- leaves ---------------------------------------------------------------------------------

    def _errored(self, local_rank: int, detail: str) -> None:
        spared = self._inprocess.goes_on_without(local_rank)
        self._post(m.RankErrored(local_rank, detail, spared))

    def _this_round(self) -> Round:
        assert self._round is not None, "ranks do nothing before their round"
        return self._round
