"""The ranks of this node: what they do becomes events of the node; they are judged, and replaced.

What is seen in pages and processes goes to the journal, to the node's state machine, and to the job
policy, which ranks may ask for something.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from undaunted.attribution.communication import COMPILING
from undaunted.attribution.findings import UNEQUAL
from undaunted.attribution.hang import judge, look, with_recording
from undaunted.attribution.peers import is_peer_lost, names_lost_peer
from undaunted.attribution.ruling import encode
from undaunted.base import process
from undaunted.base.signals import SPREAD_S
from undaunted.base.text import one_line
from undaunted.base.timers import Timers
from undaunted.coordinator.policy import messages as job
from undaunted.fault_tolerance import advice
from undaunted.fault_tolerance.agent import evidence, ras
from undaunted.fault_tolerance.agent import node as m
from undaunted.fault_tolerance.agent.judge import (
    could_not_write,
    is_misuse,
    judge_crash,
    judge_hang,
    last_error_lines,
)
from undaunted.fault_tolerance.agent.limit_keeper import LimitKeeper
from undaunted.fault_tolerance.agent.recordings import Recordings
from undaunted.fault_tolerance.agent.status import RankNow
from undaunted.fault_tolerance.agent.watch import Callbacks, PageWatch
from undaunted.fault_tolerance.data import WorkloadAction, decode_request
from undaunted.journal import events as e
from undaunted.progress.snapshot import ErrorRecord, PageSnapshot, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.attribution.evidence import RankEvidence
    from undaunted.attribution.hang import RankObservation
    from undaunted.fault_tolerance.agent.begun import Begun
    from undaunted.fault_tolerance.agent.inprocess import InProcess
    from undaunted.fault_tolerance.agent.orders import Orders
    from undaunted.fault_tolerance.agent.processes import Worker, Workers
    from undaunted.fault_tolerance.agent.round import Judgement, Round
    from undaunted.fault_tolerance.agent.scribe import Scribe
    from undaunted.fault_tolerance.agent.stopping import Stopping
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.progress.area import MailboxRequest
    from undaunted.progress.reader import RingEvent
    from undaunted.progress.timeouts import Expired

_NS = 1_000_000_000
_MESSAGE = 200  # characters of an error
# A rank compiles if the processes below it have used so much CPU time in so many seconds, and so
# many times its limit at most.
_COMPILER_CPU_S = 0.05
_COMPILER_S = 1.0
_COMPILER_LIMITS = 5
# Ranks that do nothing since one ended with 0 are looked at after so many times the longest time
# that they took for a step, and so long at least.
_LEFT_STEPS = 5
_LEFT_LEAST_S = 5.0
_CHECKPOINT = "checkpoint"  # as `checkpointing.announce` names its events; it imports logging


class Ranks:
    """Listens to the ranks of one round after the other.

    Args:
        config: the run.
        begun: has their pages and pipes, and starts their processes.
        workers: their processes.
        scribe: makes entries of the journal, and lines.
        orders: gets what ranks ask for.
        inprocess: knows without which ranks the others go on.
        stopping: answers ranks that ask whether to stop.
        post: takes events for the node.

    Attributes:
        watch: over the pages.
        limits: what ranks are held to.
        recordings: asks ranks what their Flight Recorders hold.
    """

    def __init__(
        self,
        config: RunConfig,
        begun: Begun,
        workers: Workers,
        scribe: Scribe,
        orders: Orders,
        inprocess: InProcess,
        stopping: Stopping,
        post: Callable[[m.Event], None],
    ) -> None:
        self._config = config
        self._area = begun.area
        self._pipes = begun.pipes
        self._spawner = begun.spawner
        self._workers = workers
        self._scribe = scribe
        self._orders = orders
        self._inprocess = inprocess
        self._stopping = stopping
        self._post = post
        self._round: Round | None = None
        self._signals = begun.signals
        self._told_at: dict[int, float] = {}  # when local ranks have got a signal to stop
        self._evidence: list[RankEvidence] = []  # what was gathered last in this round
        self._seen: list[RankObservation] = []  # what that says
        self._look: asyncio.Future[tuple[list[RankEvidence], list[RankObservation]]] | None = None
        self._silent: tuple[int, Expired] | None = None  # for whom all are being looked at
        self._left = False  # all are being looked at since some have ended with 0
        self._timers = Timers()
        self._compilers: set[int] = set()  # local ranks seen last whose compilers work
        callbacks = Callbacks(
            limit_passed=self._limit_passed,
            silent=self._fell_silent,
            page_changed=self._page_changed,
            ring_events=self._ring_events,
            request=self._request,
            paused=lambda seconds: scribe.journal.record(e.AgentPaused(seconds=seconds)),
            no_heartbeats=scribe.heartbeats_missing,
        )
        self.watch = PageWatch(begun.area, config.limits, callbacks)
        self.recordings = Recordings()
        self.limits = LimitKeeper(config, begun.area, self.watch, scribe.journal, scribe.say)

    def begin_round(self, current: Round) -> None:
        """The pages are of these ranks from now on."""
        self._round, self._evidence, self._seen, self._silent = current, [], [], None
        self._left = False
        self.limits.begin_round(current.start.world_size)
        self._stopping.begin_round(current.number)
        for local_rank in range(self._area.ranks):
            self._signals.drain(local_rank)
        self._told_at.clear()

    def listen(self) -> None:
        """Hear from now on which signals ranks get."""
        loop = asyncio.get_running_loop()
        for local_rank in range(self._area.ranks):
            loop.add_reader(self._signals.read_fd(local_rank), self._hear, local_rank)

    def close(self) -> None:
        """Hear nothing more."""
        for local_rank in range(self._area.ranks):
            asyncio.get_running_loop().remove_reader(self._signals.read_fd(local_rank))

    def has_stop_signal(self, local_rank: int) -> bool:
        """Return whether somebody else has just sent a rank a signal to stop."""
        return self._awaits_s(local_rank) > 0

    def _hear(self, local_rank: int) -> None:
        if not {*self._config.signals}.isdisjoint(self._signals.drain(local_rank)):
            self._told_at[local_rank] = time.monotonic()

    def _awaits_s(self, local_rank: int, code: int = 0) -> float:
        """For how long a peer or a signal may be why a rank ends; see `m.RankExited`."""
        self._hear(local_rank)
        known = self._workers.all  # none yet, where a rank is quicker than this process
        if local_rank < len(known) and known[local_rank].signalled_by_us:
            return 0.0
        now = time.monotonic()
        told_at = now if -code in self._config.signals else self._told_at.get(local_rank)
        return 0.0 if told_at is None else max(0.0, told_at + SPREAD_S - now)

    def _lost_told_peer(self, error: ErrorRecord) -> bool:
        """Whether a rank has lost a peer that may have got a signal to stop: here, or elsewhere."""
        if not self._peer_may_have_signal():
            return False
        return is_peer_lost(error.type.rpartition(".")[2], error.message, error.traceback)

    def _aborted_for_told_peer(self, worker: Worker) -> bool:
        """The same of a rank that a library has ended, such as NCCL: only its output says why."""
        if worker.code != -signal.SIGABRT or not self._peer_may_have_signal():
            return False
        page = self._area.snapshot(worker.local_rank)
        return names_lost_peer(last_error_lines(self._this_round(), worker, page))

    def _peer_may_have_signal(self) -> bool:
        elsewhere = self._this_round().start.group_world_size > 1
        return elsewhere or any(map(self.has_stop_signal, range(self._area.ranks)))

    def end_round(self) -> None:
        """No rank of the round is left."""
        self._timers.cancel()
        self.limits.end_round()

    # --- what the node commands ------------------------------------------------------------------

    def hold_to_limits(self, *, on: bool, anew: bool = False) -> None:
        """Watch all ranks of the round that still run; or none. ``anew``: limits count from now."""
        workers = self._workers.all if on else []
        if not workers:
            self.watch.release()
            return
        self.watch.hold_to_limits(
            [worker.spawned_ns for worker in workers],
            [worker.local_rank for worker in workers if worker.code is not None],
            anew_ns=time.monotonic_ns() if anew else 0,
        )

    def crash_detected(self, local_rank: int, detail: str) -> None:
        """Record the first crash of a round that was seen."""
        error = self._area.snapshot(local_rank).error
        since_ns = error.at_ns if error else self._workers.all[local_rank].exited_ns
        self._scribe.crash_detected(self._this_round().rank(local_rank), since_ns, detail)

    def judge_crash(self, *, final: bool) -> None:
        """Say which rank crashed first and why; if that is not clear yet, post it."""
        judgement = self._judged()
        if judgement.certain or final:
            self._give_verdict(judgement)
        else:
            self._post(m.CrashUnclear())

    def judge_late_crash(self) -> None:
        """Say which rank crashed first and why, if one did by itself; none was reported."""
        judgement = self._judged()
        if judgement.certain:
            for local_rank in judgement.culprits:
                code = self._workers.all[local_rank].code
                self.crash_detected(local_rank, m.describe_exit(code or 0))
            self._give_verdict(judgement)

    def _give_verdict(self, judgement: Judgement) -> None:
        self._this_round().verdict = judgement
        self._scribe.verdict(judgement.event)

    async def gather_evidence(self, how: m.GatherEvidence) -> None:
        """Gather stacks and states of all ranks; post that they are there."""
        current, workers = self._this_round(), self._workers.all
        began_ns = time.monotonic_ns()
        ranks = [current.rank(worker.local_rank) for worker in workers]
        expired = self.watch.expired_now([worker.spawned_ns for worker in workers])
        living = [worker.pid for worker in workers if worker.code is None]
        asks_nccl = how.recordings and not how.by_hand
        seen, recorded, said = await asyncio.gather(
            evidence.gather(workers, ranks, self._pages(), expired, self._pipes),
            self.recordings.ask(living if how.recordings else ()),
            ras.ask(current.specs[0].env, {each.pid for each in workers if asks_nccl}),
        )
        plain = (look(each, node=self._config.node, now_ns=began_ns) for each in seen)
        looked = [
            replace(with_recording(each, recorded), nccl=said.get(each.pid, "")) for each in plain
        ]
        compilers = set() if how.by_hand else await _compilers_at_work(looked)
        if current is self._round:
            self._compilers = compilers
            self._keep(current, seen, looked, began_ns, by_hand=how.by_hand)
        asked, self._look = self._look, None
        if asked is not None and not asked.done():
            asked.set_result((seen, looked))
        self._post(m.EvidenceGathered(current.number))

    def _keep(
        self,
        current: Round,
        evidence: list[RankEvidence],
        looked: list[RankObservation],
        began_ns: int,
        *,
        by_hand: bool,
    ) -> None:
        """Write down what a look has seen; a look for a person is not judged."""
        silent, self._silent = self._silent, None
        if silent is not None:
            local_rank, expired = silent
            seen = looked[local_rank]
            self._scribe.rank_silent(evidence, seen, expired, current.early_stacks_path)
        if by_hand:
            return
        self._evidence, self._seen = evidence, looked
        left, self._left = self._left, False
        if left and (verdict := judge(looked)).cause == UNEQUAL:
            self._scribe.ranks_left(evidence, verdict, current.early_stacks_path)
        # Who only compiles does not hang: nothing has failed.
        if silent is None and not left and not self._compiling(current):
            self._scribe.evidence_collected(evidence, current.stacks_path, began_ns)

    def next_look(self) -> asyncio.Future[tuple[list[RankEvidence], list[RankObservation]]]:
        """Return what the look at the ranks that ends next has seen."""
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._look)

    def now(self) -> list[RankNow]:
        """All ranks of the round, as they are."""
        current = self._round
        if current is None:
            return []
        pages = self._pages()
        return [
            RankNow(
                current.rank(worker.local_rank),
                worker,
                pages[worker.local_rank],
                self.watch.limits_for(pages[worker.local_rank]),
            )
            for worker in self._workers.all
        ]

    def evidence(self) -> bytes:
        """Return what was gathered in this round, for the leader; b"" = nothing."""
        return encode(self._seen)

    def judge_hang(self) -> None:
        """Say which rank of this node hangs, and post it."""
        current = self._this_round()
        if (found := self._compiling(current)) is not None:
            self._scribe.rank_compiles(*found, _COMPILER_LIMITS)
            self._post(m.GoOn(current.number))
            return
        judgement = judge_hang(current, self._evidence, self._seen)
        self._give_verdict(judgement)
        self._post(m.HangJudged(current.number, judgement.culprits, judgement.event.line))

    def _compiling(self, current: Round) -> tuple[RankObservation, Expired] | None:
        """Which rank would be blamed for a hang, and for which limit, though it only compiles."""
        alarms = [each.expired for each in self._seen if each.expired is not None]
        if not self._compilers or not alarms:
            return None
        alarm = max(alarms, key=lambda each: each.age_s)
        culprits = judge_hang(current, self._evidence, self._seen).culprits
        if not self._compilers.issuperset(culprits):
            return None
        if alarm.age_s > _COMPILER_LIMITS * alarm.limit_s:
            return None
        return self._seen[culprits[0]], alarm

    def finding(self, verdict: Judgement | None) -> bytes:
        """Return the finding of the verdict about the last round, for the leader; b"" = none."""
        if verdict is None or not self._workers.all:
            return b""
        worker = self._workers.all[verdict.event.local_rank]
        ended_ns = worker.exited_ns or time.monotonic_ns()
        return advice.encode(verdict.event, (ended_ns - worker.spawned_ns) / _NS)

    async def start_again(self, current: Round, local_rank: int) -> None:
        """Start a process in the place of a lost rank of this round; it joins the others again."""
        spec, rank = current.specs[local_rank], current.rank(local_rank)
        spec = replace(spec, env={**spec.env, "UNDAUNTED_INPROCESS_REJOIN": "1"})
        self._area.reset(local_rank)
        began_ns = time.monotonic_ns()
        try:
            spawned = await self._spawner.spawn([spec])
        except OSError as error:
            if current is self._round:
                self._scribe.say(
                    f"no process could be started in the place of rank {rank}: {error}"
                )
                self._post(m.RankExited(local_rank, 1, others_go_on=True))
            return
        (pid,) = spawned.pids
        if current is not self._round:
            self._workers.end(pid)
            return
        if current.stopping:
            self._workers.end(pid)
        self.watch.rank_replaced(local_rank, time.monotonic_ns())
        self._scribe.journal.record(e.RankReplaced(rank=rank, pid=pid))
        self._workers.replace(local_rank, pid, began_ns)

    def could_not_write(self, local_rank: int) -> bool:
        """Return whether a rank failed as programs do that write where nobody reads any more."""
        return could_not_write(self._workers.all[local_rank], self._area.snapshot(local_rank))

    def left(self) -> tuple[int, ...]:
        """Ranks of the round that have ended with 0 before anybody has told them to."""
        ended = (each for each in self._workers.all if each.code == 0 and not each.lost)
        mine = (each.local_rank for each in ended if not each.signalled_by_us)
        return tuple(self._this_round().rank(local_rank) for local_rank in mine)

    def end_by_their_own_word(self) -> bool:
        """Return whether ranks that end, or have ended, do so by `sys.exit`, as far as is known."""
        codes = [worker.code for worker in self._workers.all if worker.code is not None]
        errors = {page.error.type for page in self._pages() if page.error is not None}
        return min(codes, default=0) >= 0 and errors <= {"SystemExit"}

    def misuse(self) -> bool | None:
        """Return whether the ranks of the round ended as programs do whose arguments are wrong."""
        announced = self._this_round().checkpoint_announced
        return is_misuse(self._workers.all, self._pages(), announced=announced)

    # --- what ranks do ----------------------------------------------------------------------------

    def exited(self, worker: Worker) -> None:
        """The process of a rank has ended."""
        assert worker.code is not None
        rank = worker.local_rank
        self.watch.read_pages()  # what it wrote last
        self.watch.rank_ended(rank)
        self._scribe.rank_exited(self._this_round(), worker)
        if killed := self._inprocess.killed(rank):
            self._this_round().killed[rank] = killed
        others_go_on = self._inprocess.goes_on_without(rank)
        may_return = self._inprocess.may_return(rank)
        absent = self._inprocess.absent()
        awaits_s = self._awaits_s(rank, worker.code)
        if not awaits_s and self._aborted_for_told_peer(worker):
            awaits_s = SPREAD_S
        self._post(m.RankExited(rank, worker.code, others_go_on, may_return, absent, awaits_s))
        if worker.code == 0:
            self._expect_others_to_go_on()

    def _expect_others_to_go_on(self) -> None:
        """Have all looked at, should those that still run do nothing any more."""
        ended_ns = max(worker.exited_ns for worker in self._workers.all if worker.code == 0)
        pages = [
            page
            for worker, page in zip(self._workers.all, self._pages(), strict=True)
            if worker.code is None and page.phase is Phase.STEPPING
        ]
        if not pages or self._this_round().stopping:
            return
        longest_s = max(page.heartbeat_max_ns for page in pages) / _NS
        wait_ns = int(max(_LEFT_LEAST_S, _LEFT_STEPS * longest_s) * _NS)
        last_ns = max(page.heartbeat_ns or 0 for page in pages)
        if last_ns > ended_ns + wait_ns:
            return  # they do not need the one that has ended
        left_s = (max(last_ns, ended_ns) + wait_ns - time.monotonic_ns()) / _NS
        if left_s > 0:
            self._timers.set("left", left_s, self._expect_others_to_go_on)
        else:
            self._left = True
            self._post(m.Gather(self._this_round().number))

    def _limit_passed(self, local_rank: int, expired: Expired) -> None:
        self._workers.reap()  # on a busy machine, word of its end may come after its limit
        if self._workers.has_ended(local_rank):
            return
        self._silent, self._left = None, False
        self._timers.cancel()
        self._scribe.hang_detected(self._this_round().rank(local_rank), expired)
        self.limits.limit_ended_rank(expired)
        self._post(m.LimitPassed(local_rank, expired.watch))

    def _fell_silent(self, local_rank: int, expired: Expired) -> None:
        """Have all ranks looked at while there is time; nothing is ended."""
        self._silent = (local_rank, expired)
        self._post(m.Gather(self._this_round().number))

    def _page_changed(self, local_rank: int, page: PageSnapshot) -> None:
        if self._round is None:
            return
        self._scribe.milestones(self._round, local_rank, page)
        self._stopping.pass_wish(local_rank, self._round.rank(local_rank), page.wish)
        if page.phase is Phase.FAILED and page.error is not None:
            awaits_s = self._awaits_s(local_rank)
            if not awaits_s and self._lost_told_peer(page.error):
                awaits_s = SPREAD_S
            stopped = awaits_s > 0 or self._stopping.has_stopped(local_rank)
            if page.error.type == "SystemExit" and stopped:
                return  # that is how it says that it has stopped
            others_go_on = self._inprocess.goes_on_without(local_rank)
            detail = _in_words(page.error)
            self._post(m.RankErrored(local_rank, detail, others_go_on, awaits_s))

    def _ring_events(self, local_rank: int, events: list[RingEvent], lost: int) -> None:
        """A rank has noted events; ``lost`` more were overwritten."""
        current = self._this_round()
        for event in events:
            if event.name == "fault":
                current.fault_happened(local_rank, event.text)
            elif event.name.startswith("stop_"):  # of `Session.stop_here`
                self._stopping.keep_text(local_rank, event.text)
            current.checkpoint_announced |= event.name == _CHECKPOINT
        self._scribe.ring_events(current.rank(local_rank), events, lost)

    def _request(self, local_rank: int, message: MailboxRequest) -> None:
        """Do what a rank asks for: take limits that it has calculated, or control the workload."""
        if (reply := self.limits.take(message.payload)) is not None:
            self._area.answer(local_rank, message, reply)
            return
        try:
            request = decode_request(message.payload)
        except ValueError as error:
            self._area.answer(local_rank, message, str(error).encode())
            return
        current = self._this_round()
        self._scribe.control_requested(current.rank(local_rank), request)
        self._area.answer(local_rank, message, b"ok")
        node, number, why = self._config.node, current.number, request.description
        if request.action is WorkloadAction.ShutdownWorkload:
            self._orders.post(job.ShutdownRequested(node, number, why))
        elif request.action is WorkloadAction.ExcludeThisNode:
            self._orders.post(job.ExclusionRequested(node, number, why))

    # --- leaves ---------------------------------------------------------------------------------

    def _judged(self) -> Judgement:
        self.watch.read_pages()
        return judge_crash(self._config, self._this_round(), self._workers.all, self._pages())

    def _pages(self) -> list[PageSnapshot]:
        return [self._area.snapshot(index) for index in range(self._area.ranks)]

    def _this_round(self) -> Round:
        assert self._round is not None, "ranks do nothing before their round"
        return self._round


def _in_words(error: ErrorRecord) -> str:
    if error.type != "SystemExit":
        first = one_line(error.message.strip().partition("\n")[0], _MESSAGE)
        return f"raised {error.type}: {first}" if first else f"raised {error.type}"
    is_code = error.message.removeprefix("-").isdecimal()
    return f"exits with {error.message if is_code else 1}"


async def _compilers_at_work(looked: Sequence[RankObservation]) -> set[int]:
    """Return local ranks that compile, and below which processes compute; takes a moment then."""
    pids = {i: each.pid for i, each in enumerate(looked) if each.activity == COMPILING}
    if not pids or not any(each.expired for each in looked):
        return set()

    def used_s() -> dict[int, float]:
        return {local_rank: process.cpu_below_s(pid) for local_rank, pid in pids.items()}

    before_s = await asyncio.to_thread(used_s)
    await asyncio.sleep(_COMPILER_S)
    after_s = await asyncio.to_thread(used_s)
    return {each for each in pids if after_s[each] - before_s[each] >= _COMPILER_CPU_S}
