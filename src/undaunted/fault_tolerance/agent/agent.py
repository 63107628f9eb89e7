"""The node agent: carries out what the two state machines command.

Control flow of the whole main job is in this file. Everything that happens becomes an event for the
node (`core.node`) or the job policy (behind `orders`); both answer with commands, and `_carry_out`
and `_obey` map each command to one call below. What ranks do becomes events in `rank_events`.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from undaunted import __version__
from undaunted.base import process
from undaunted.base.timers import Timers
from undaunted.checkpointing.keeping.shelf import Shelf
from undaunted.coordinator.core import messages as job
from undaunted.fault_tolerance.agent.blame.judge import serve_error_file
from undaunted.fault_tolerance.agent.inprocess.inprocess import InProcess
from undaunted.fault_tolerance.agent.last_copies import write_last_copies
from undaunted.fault_tolerance.agent.node.clearing import Clearing
from undaunted.fault_tolerance.agent.node.node_health import NodeHealth
from undaunted.fault_tolerance.agent.orders.orders import find_orders
from undaunted.fault_tolerance.agent.outside import Outside
from undaunted.fault_tolerance.agent.processes.replacing import Replacing
from undaunted.fault_tolerance.agent.processes.tree import Tree
from undaunted.fault_tolerance.agent.processes.workers import Worker, Workers
from undaunted.fault_tolerance.agent.ranks.progress_file import ProgressFile
from undaunted.fault_tolerance.agent.ranks.progress_notes import ProgressNotes
from undaunted.fault_tolerance.agent.ranks.rank_events import RankEvents
from undaunted.fault_tolerance.agent.round.aftermath import Aftermath
from undaunted.fault_tolerance.agent.round.round import Round, RoundFactory
from undaunted.fault_tolerance.agent.tasks import Tasks, tell_of_failed_callbacks
from undaunted.fault_tolerance.agent.telling.attribution import Attribution
from undaunted.fault_tolerance.agent.telling.metrics import Metrics
from undaunted.fault_tolerance.agent.telling.scribe import Scribe
from undaunted.fault_tolerance.agent.turns import Turns
from undaunted.fault_tolerance.core import node
from undaunted.fault_tolerance.core import node_messages as m
from undaunted.fault_tolerance.output.job_logs import JobLogs
from undaunted.fault_tolerance.simulated_faults import injected

if TYPE_CHECKING:
    import socket

    from undaunted.fault_tolerance.agent.begun import Begun
    from undaunted.fault_tolerance.run_config import RunConfig

# For processes that a killed one left behind in the last moment; longer only for the unkillable.
_LAST_SWEEP_S = 2.0


def serve(config: RunConfig, front: socket.socket, begun: Begun) -> int:
    """Run the job; return the launcher's exit code."""
    return asyncio.run(_run(config, front, begun))


async def _run(config: RunConfig, front: socket.socket, begun: Begun) -> int:
    agent = Agent(config, front, begun)
    try:
        return await agent.run()
    finally:
        await agent.close()


class Agent:
    """One per node. Owns every process, timer, thread and descriptor it uses."""

    def __init__(self, config: RunConfig, front: socket.socket, begun: Begun) -> None:
        self._config = config
        self._outside = Outside(front, self, config.signals)
        self._logs = JobLogs(config, __version__, self._say)
        self._scribe = Scribe(config, __version__, self._logs.open)
        self._area = begun.area
        self._pipes = begun.pipes
        self._spawner = begun.spawner
        journal = self._scribe.journal
        self._metrics = Metrics(
            config, begun.metrics, self._area, journal, self._say, lambda: self._orders.leads
        )
        self._spawner.tell(
            self._scribe.workers_start_fresh, self._scribe.template_ready, self._scribe.say
        )
        self._workers = Workers(on_exit=self._rank_exited, on_tree_change=self._child_ended)
        self._health = NodeHealth(config, begun.environment, self._scribe)
        self._clearing = Clearing(config, begun.environment, self._scribe, self._health)
        self._tree = Tree(self._workers, self._spared, lambda: self._post(m.TreeEmpty()))
        self._shelf = Shelf(self._scribe.say)
        self._rounds = RoundFactory(config, begun, self._logs.open, self._shelf.name)
        self._turns = Turns()
        self._inprocess = InProcess(config, self._scribe)
        reserve, say = self._rounds.reserve, self._scribe.say
        self._orders = find_orders(config, self._turns, self._obey, reserve, say, self._inprocess)
        self._attribution = Attribution(config, self._scribe, self._orders)
        self._aftermath = Aftermath(config, self._scribe, self._attribution, self._failed)
        self._ranks = RankEvents(
            config,
            begun,
            self._workers,
            self._scribe,
            self._rounds,
            self._orders,
            self._inprocess,
            self._post,
        )
        self._replacing = Replacing(
            self._spawner,
            self._workers,
            self._area,
            self._ranks.watch,
            self._scribe,
            is_current=lambda current: current is self._round,
            is_stopping=lambda: self._stop_ordered,
            failed=lambda rank: self._post(m.RankExited(rank, 1, spared=True)),
        )
        self._progress_notes = ProgressNotes(self._area, self._scribe)
        self._progress_file = ProgressFile(config.checkpoint_iteration_file, config.cwd)
        self._node = node.Node(config.rank_termination_signal, self._clearing.longest_s)
        self._round: Round | None = None
        self._stop_ordered = False
        self._restart_decided = False
        self._abandoned = False  # the front is gone
        self._timers = Timers()
        self._tasks = Tasks(self._failed)
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> int:
        """From the first worker to the exit code."""
        loop = asyncio.get_running_loop()
        tell_of_failed_callbacks(loop, self._failed)
        loop.add_signal_handler(signal.SIGCHLD, self._workers.reap)
        self._outside.open()
        self._shelf.open()
        self._ranks.watch.open()
        self._logs.begin()
        self._metrics.open()
        self._scribe.job_started()
        self._tasks.start(self._progress_file.begin())
        self._tasks.start(self._join())
        code = await self._ended
        if code == job.Outcome.FAILED.exit_code and self._scribe.root_cause is not None:
            await asyncio.to_thread(serve_error_file, self._scribe.root_cause)
        if code != job.Outcome.FINISHED.exit_code and self._round is not None:
            await write_last_copies(
                self._shelf,
                self._round.specs[0].env,
                self._config.last_copies_mb_per_s * 1e6,
                self._workers.code_of,
                self._scribe,
            )
        return code

    async def close(self) -> None:
        """Release everything; what is left of the tree is killed."""
        if self._round is not None and self._node.state is not node.State.IDLE:
            self._close_round()
        self._outside.close()
        self._inprocess.close()
        self._ranks.watch.close()
        self._progress_notes.close()
        self._timers.cancel()
        await self._tasks.cancel()
        self._clearing.close()
        self._health.close()
        await self._orders.close()
        await self._spawner.close()
        process.end_descendants(_LAST_SWEEP_S, self._logs.processes())
        # After that: a console that nobody reads takes seconds, in which nobody shall live on.
        await self._aftermath.wait()
        await self._attribution.close()
        self._rounds.close()
        self._shelf.close()
        await self._metrics.close()
        self._area.close()
        self._pipes.close()
        self._scribe.close_log()
        await self._logs.close()
        self._scribe.close()

    async def _join(self) -> None:
        """Take part in the job, if this node is healthy. The template imports meanwhile."""
        if problem := self._injected(0) or await self._health.examine():
            self._unhealthy(problem)
        else:
            await self._orders.join()

    # --- events and commands --------------------------------------------------------------------

    def _post(self, event: m.Event) -> None:
        """Feed an event to the node; events caused on the way wait for their turn."""
        self._turns.take(partial(self._handle, event))

    def _handle(self, event: m.Event) -> None:
        if self._abandoned:
            return  # what becomes of the ranks now is nobody's failure
        for command in self._node.handle(event):
            self._carry_out(command)

    def _obey(self, order: job.Command) -> None:
        """Carry out a command of the job policy."""
        match order:
            case job.Start():
                self._begin_round(order)
            case job.Stop():
                self._stop_ordered = True
                self._health.end_watch()
                self._scribe.stop_requested(order)
                restart = self._restart_decided
                self._post(m.StopRound(order.round, order.grace_s, order.signal, restart))
            case job.Decided():
                self._restart_decided = order.action == "restart"
                self._inprocess.begin_stop()
                self._scribe.decided(order)
            case job.Blamed() if self._config.nodes is not None:
                self._scribe.blamed(order)
            case job.Remark(text=text):
                self._scribe.say(text)
            case job.End():
                self._end(order)

    def _carry_out(self, command: m.Command) -> None:  # noqa: C901, PLR0912 - one case each
        """Carry out a command of the node."""
        match command:
            case m.Spawn():
                self._tasks.start(self._spawn())
            case m.CallOffSpawn():
                self._spawner.call_off()
            case m.Watch(on=on):
                self._ranks.hold_to_limits(on=on)
            case m.GoOnWithout(local_rank=rank, detail=detail):
                self._rank_lost(rank, detail)
            case m.StartAgain(local_rank=rank):
                self._tasks.start(self._replacing.start(self._this_round(), rank))
            case m.GatherEvidence():
                self._tasks.start(self._ranks.judge_hang())
            case m.JudgeCrash(final=final):
                self._ranks.judge_crash(final=final)
            case m.SignalRanks(local_ranks=ranks, signal=number):
                self._workers.signal_ranks(ranks, number)
            case m.SignalTree(signal=number):
                self._tree.signal(number)
            case m.PrepareClearing():
                self._clearing.prepare()
            case m.ClearNode(round=number):
                self._tasks.start(self._clear(number))
            case m.SetTimer(name=name, delay_s=delay_s):
                fired = m.TimerFired(name, self._node.round)
                self._timers.set(name, delay_s, partial(self._post, fired))
            case m.ReportFailed():
                self._report_failed(command)
            case m.ReportFinished(lost=lost):
                self._orders.post(job.NodeFinished(self._config.node, self._node.round, lost))
            case m.ReportStopped():
                self._round_stopped(command)

    def _end(self, end: job.End) -> None:
        self._scribe.job_ended(end)
        if not self._ended.done():
            self._ended.set_result(end.outcome.exit_code)

    # --- a round --------------------------------------------------------------------------------

    def _begin_round(self, start: job.Start) -> None:
        self._timers.cancel()
        self._stop_ordered = False
        try:
            self._round = self._rounds.begin(start, self._inprocess.open())
        except OSError as error:
            self._cannot_begin(start, error)
            return
        self._inprocess.begin_round(self._round)
        self._metrics.begin_round(self._round)
        self._workers.begin_round()
        self._scribe.round_started(self._round)
        self._ranks.begin_round(self._round)
        self._post(m.StartRound(start.round, start.slots))

    def _cannot_begin(self, start: job.Start, error: OSError) -> None:
        """Tell the policy that the round has failed; the node never hears of it."""
        detail = f"round {start.round} cannot begin: {error.strerror or error}"
        self._scribe.spawn_failed(detail)
        self._orders.post(job.NodeFailed(self._config.node, start.round, detail))
        self._orders.post(job.NodeStopped(self._config.node, start.round))

    async def _spawn(self) -> None:
        current = self._this_round()
        for problem in await asyncio.to_thread(current.follow_output):
            self._scribe.say(problem)
        self._attribution.round_began(current.number)
        try:
            spawned = await self._spawner.spawn(current.specs)
        except OSError as error:
            self._post(m.SpawnFailed(f"workers could not be started: {error}"))
            return
        self._workers.adopt(spawned.pids)
        self._scribe.workers_spawned(spawned)
        self._progress_notes.begin()
        self._health.begin_watch(self._unhealthy)
        self._post(m.WorkersSpawned())

    def _report_failed(self, report: m.ReportFailed) -> None:
        detail = report.detail
        if report.kind == "spawn":
            self._scribe.spawn_failed(detail)
        elif report.kind == "crash":
            detail = f"rank {self._this_round().rank(report.local_rank)}: {detail}"
            self._ranks.crash_detected(report.local_rank, report.detail)
        _, victim = self._scribe.verdict_of(self._node.round)
        event = job.NodeFailed(self._config.node, self._node.round, detail, victim=victim)
        self._orders.post(event)

    def _rank_exited(self, worker: Worker) -> None:
        self._ranks.exited(worker)

    def _rank_lost(self, local_rank: int, detail: str) -> None:
        self._workers.all[local_rank].lost = True
        self._inprocess.lost(local_rank, detail)
        if not self._config.restart_lost_ranks:
            what = f"rank {self._this_round().rank(local_rank)}: {detail}"
            self._orders.post(job.RankLost(self._config.node, self._node.round, what))

    def _child_ended(self) -> None:
        self._tree.look()
        if not self._abandoned and not self._ended.done():
            self._spawner.look()

    def _spared(self) -> set[int]:
        """Processes that belong to no round."""
        own = self._spawner.pids() | self._clearing.pids() | self._health.pids()
        return own | {pid for pid, _ in self._logs.processes()}

    async def _clear(self, number: int) -> None:
        problem = await self._clearing.clear(self._workers.pids)
        self._post(m.NodeClear(number, problem))

    def _injected(self, next_round: int) -> str:
        return injected(self._config.gpu_failures, next_round, self._config.infra_rank)

    def _unhealthy(self, problem: str) -> None:
        self._orders.post(job.NodeUnhealthy(self._config.node, self._node.round, problem))

    def _round_stopped(self, report: m.ReportStopped) -> None:
        unkillable = self._tree.left() if report.unkillable else ()
        self._tree.forget()
        self._clearing.close()
        self._ranks.watch.read_news()
        self._close_round()
        seen = self._progress_notes.end()
        self._scribe.round_stopped(unkillable)
        self._aftermath.name_leftovers(self._node.round)
        if problem := report.problem or self._injected(self._node.round + 1):
            self._unhealthy(problem)
        about = (self._config.node, self._node.round, report.all_ok, unkillable)
        misuse = self._ranks.misuse()
        stopped = job.NodeStopped(*about, iterations=seen, misuse=misuse)
        self._tasks.start(self._report_stopped(stopped))

    async def _report_stopped(self, stopped: job.NodeStopped) -> None:
        iterations = await self._progress_file.reached(stopped.iterations)
        verdict, victim = self._scribe.verdict_of(stopped.round)
        self._orders.post(replace(stopped, iterations=iterations, verdict=verdict, victim=victim))

    def _close_round(self) -> None:
        current = self._this_round()
        current.close()
        self._inprocess.close()
        self._ranks.limits.end_round()
        self._aftermath.finish_output(current)

    def _this_round(self) -> Round:
        assert self._round is not None, "the policy starts a round before anything refers to it"
        return self._round

    # --- what comes from outside (see `outside.Told`) ---------------------------------------------

    def told_to_stop(self, number: int, *, again: bool) -> None:
        """Pass it on to the policy, which passes it on to the ranks."""
        name = signal.Signals(number).name
        ranks = self._node.state is not node.State.IDLE
        self._scribe.signal_received(name, ranks=ranks, first=not self._stop_ordered, again=again)
        self._restart_decided = False
        self._post(m.NoRestart())
        self._orders.post(job.Preempted(self._config.node, number, name))

    def told_to_kill(self) -> None:
        """No more grace."""
        self._post(m.KillNow())

    def front_gone(self) -> None:
        """End the tree and this process; the others learn why."""
        self._abandoned = True
        self._scribe.say("the launcher was killed: its ranks are ended as well")
        if self._config.nodes is not None:
            reason = "its launcher was killed"
            self._orders.post(job.NodeFailed(self._config.node, self._node.round, reason))
        self._workers.signal_tree(signal.SIGKILL, spare=set())
        if not self._ended.done():
            self._ended.set_result(1)

    # --- leaves ---------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._scribe.say(text)

    def _failed(self, error: BaseException) -> None:
        """A bug of ours must end the job with its traceback, not leave it waiting."""
        if self._ended.done():
            context = {"message": "while the agent ends", "exception": error}
            asyncio.get_running_loop().default_exception_handler(context)
        else:
            self._ended.set_exception(error)
