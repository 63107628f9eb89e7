"""The node agent: carries out what the two state machines command.

Control flow of the whole main job is in this file. Everything that happens becomes an event for the
node (`node.Node`) or the job policy (behind `orders`); both answer with commands, and `_carry_out`
and `_obey` map each command to one call below. What ranks do becomes events in `ranks`.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted import __version__
from undaunted.base import process
from undaunted.base.recent import Recent
from undaunted.base.timers import Timers
from undaunted.checkpointing.keeping.shelf import Shelf
from undaunted.coordinator.policy import messages as job
from undaunted.fault_tolerance.advice import failure_before
from undaunted.fault_tolerance.agent import node as m
from undaunted.fault_tolerance.agent.clearing import Clearing
from undaunted.fault_tolerance.agent.control import Control
from undaunted.fault_tolerance.agent.devices import Throttling
from undaunted.fault_tolerance.agent.helpers import TERM_S, Helpers, with_helpers
from undaunted.fault_tolerance.agent.import_learner import ImportLearner
from undaunted.fault_tolerance.agent.inprocess import InProcess
from undaunted.fault_tolerance.agent.judge import serve_error_file
from undaunted.fault_tolerance.agent.kernel_log import Death, loaders_killed
from undaunted.fault_tolerance.agent.last_copies import write_last_copies
from undaunted.fault_tolerance.agent.liveness import Liveness
from undaunted.fault_tolerance.agent.node_health import NodeHealth
from undaunted.fault_tolerance.agent.orders import find_orders
from undaunted.fault_tolerance.agent.outside import Outside
from undaunted.fault_tolerance.agent.parts import CLOSE_S, Held, Part, Parts
from undaunted.fault_tolerance.agent.processes import Tree, Worker, Workers
from undaunted.fault_tolerance.agent.progress import ProgressFile, ProgressNotes
from undaunted.fault_tolerance.agent.ranks import Ranks
from undaunted.fault_tolerance.agent.round import Round, RoundFactory
from undaunted.fault_tolerance.agent.scribe import Scribe
from undaunted.fault_tolerance.agent.status import limits_in_words
from undaunted.fault_tolerance.agent.step_times import StepTimes
from undaunted.fault_tolerance.agent.stopping import Stopping
from undaunted.fault_tolerance.agent.tasks import Tasks, Turns, end_on_failed_callbacks
from undaunted.fault_tolerance.output.destinations import in_words
from undaunted.fault_tolerance.output.job_logs import JobLogs
from undaunted.fault_tolerance.output.lines import ERROR, TEXT
from undaunted.fault_tolerance.output.messages import Messages, append_to
from undaunted.fault_tolerance.pulse import BEAT_S
from undaunted.fault_tolerance.run_config import SCRIPT_MAY_BE_LOST
from undaunted.fault_tolerance.simulated_faults import injected
from undaunted.journal import events as e
from undaunted.journal.writer import JournalWriter

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from undaunted.fault_tolerance.agent.begun import Begun
    from undaunted.fault_tolerance.run_config import RunConfig, Script

_CLOSE_JOURNAL_S = 2.0
_CLOSE_ORDERS_S = 120.0  # a leader waits for others, as long as some of their leases
_LAST_STEPS_S = 300.0  # of rounds that are over: their output is copied, to a disk that may be slow
# For processes that a killed one left behind in the last moment; longer only for the unkillable.
_LAST_SWEEP_S = 2.0
# Once the ranks have ended only helpers of ours are left, and what was named. On a busy machine one
# of low priority takes seconds to end: nobody waits for that, as it has got SIGKILL.
_OURS_END_S = 0.5
# A rank that ends so soon after a signal of the program's has saved, perhaps, and others still do.
_SAVES_FOR_S = 600.0


def serve(config: RunConfig, front: socket.socket, begun: Begun) -> int:
    """Run the job; return the launcher's exit code. The process ends then."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # It is not closed: that waits, without a deadline, for tasks and threads that do not end.
    return loop.run_until_complete(_run(config, front, begun))


async def _run(config: RunConfig, front: socket.socket, begun: Begun) -> int:
    agent = Agent(config, front, begun)
    try:
        return await agent.run()
    finally:
        await agent.close()


class Agent:
    """One per node. Owns every process, timer, thread and descriptor it uses."""

    def __init__(self, config: RunConfig, front: socket.socket, begun: Begun) -> None:
        self._config, self._front = config, front
        # --- what speaks and writes ---
        self._messages = Messages(config.ft.log_level, form=config.lines)
        self._logs = JobLogs(config, __version__, self._messages.say)
        if config.launcher_log:
            self._messages.write_to(config.launcher_log, config.node, self._logs.open)
        path = Path(config.run_dir, f"journal-{config.node}.jsonl")
        failure = failure_before(path)
        self._journal = JournalWriter(
            path, node=config.node, version=__version__, say=self._messages.say
        )
        self._scribe = Scribe(config, self._journal, self._messages)
        self._say = say = self._scribe.say
        # --- what is made once, and serves every round ---
        self._begun = begun
        self._area, self._spawner, self._pulse = begun.area, begun.spawner, begun.pulse
        self._workers = Workers(on_exit=self._rank_exited, on_tree_change=self._child_ended)
        self._spawner.report_to(
            self._start_fresh,
            self._scribe.template_ready,
            say,
            self._workers.code_of,
        )
        self._outside = Outside(
            front,
            config.signals,
            stop=self._stop_signalled,
            kill=self._kill_now,
            programs=self._programs_signal,
            ends=self._front_ends,
            front_gone=self._front_gone,
        )
        self._timers = Timers()
        self._tasks = Tasks(self._failed)
        self._last_steps = Tasks(self._failed)  # of rounds that are over; waited for, not cancelled
        self._turns = Turns()
        self._shelf = Shelf(say)
        stop_s = config.stop_timeout_s
        self._helpers = Helpers(TERM_S if stop_s is None else stop_s)
        empty = partial(self._post, m.TreeEmpty())
        self._tree = Tree(self._workers, self._kept_processes, empty, self._spare_helpers)
        self._health = NodeHealth(config, begun.environment, self._journal, say)
        self._clearing = Clearing(config, begun.environment, self._journal, self._health)
        self._throttling = Throttling(begun.environment)
        self._rounds = RoundFactory(config, begun, self._logs.open, self._shelf.name)
        self._inprocess = InProcess(config, self._journal, say)
        self._orders = find_orders(
            config, self._turns, self._obey, self._rounds.reserve, say, self._inprocess, failure
        )
        self._stopping = Stopping(config.node, self._area, self._orders, self._workers)
        self._ranks = Ranks(
            config,
            begun,
            self._workers,
            self._scribe,
            self._orders,
            self._inprocess,
            self._stopping,
            self._post,
        )
        self._step_times = StepTimes(
            config.node, self._area, self._ranks.recordings, self._workers, self._orders
        )
        self._imports = ImportLearner(
            config,
            self._area,
            self._ranks.recordings,
            self._workers,
            self._spawner,
            self._journal,
        )
        self._progress = ProgressNotes(self._area, self._scribe)
        self._progress_file = ProgressFile(config.ft.checkpoint_iteration_file or "", config.cwd)
        # --- what is going on ---
        self._node = m.Node(int(config.ft.rank_termination_signal), self._clearing.longest_s)
        self._recent = Recent(
            {
                "rank_termination_signal": self._node.rank_termination_signal,
                "clearing_s": self._node.clearing_s,
            }
        )
        self._control = Control(
            config,
            __version__,
            self._node,
            self._recent,
            self._ranks,
            self._orders,
            self._post,
            self._say,
        )
        self._round: Round | None = None
        self._restart_decided = False
        self._programs_signal_s = -math.inf  # when ranks got one last
        self._abandoned = False  # the front is gone
        self._cut_short = False  # the agent ends while ranks run
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._parts = Parts(self._list(), _failed_to_close)

    def _list(self) -> Iterator[Part]:
        """All that is opened, in this order, and closed, the last one first."""
        config, begun, ranks = self._config, self._begun, self._ranks
        yield Held(self._messages.close)
        yield Held(partial(self._journal.close, _CLOSE_JOURNAL_S))
        grace_s = config.log_server.grace_s if config.log_server is not None else 0.0
        yield Held(
            self._logs.close,
            self._logs.begin,
            servers_now=self._logs.processes,
            close_s=2 * grace_s + CLOSE_S,
        )
        yield Held(self._messages.close_log)
        for resource in (begun.signals, begun.pipes, begun.area):
            yield Held(resource.close)
        yield Liveness(config.liveness_port, self._say)
        if config.metrics is not None:  # what nobody asks for is not even imported
            from undaunted.fault_tolerance.agent.metrics import Metrics

            yield Metrics(config, begun.metrics, begun.area, self._journal, self._say, self._orders)
        if config.attribution_service:
            from undaunted.fault_tolerance.agent.attribution import Attribution

            yield Attribution(config, self._orders, self._journal, self._say)
        yield Held(self._shelf.close, self._shelf.open)
        yield Held(self._rounds.close)
        # A console that nobody reads takes seconds, in which no process shall live on.
        yield Held(self._last_steps.wait, close_s=_LAST_STEPS_S)
        yield Held(self._end_all)
        yield Held(self._spawner.close, pids=self._spawner.pids)
        yield Held(self._orders.close, close_s=_CLOSE_ORDERS_S)
        yield Held(self._health.close, pids=self._health.pids)
        yield Held(self._throttling.close, pids=self._throttling.pids)
        yield Held(self._clearing.close, pids=self._clearing.pids)
        yield Held(self._control.close)
        yield Held(self._tasks.cancel)
        yield Held(self._helpers.close, pids=self._helpers.pids)
        yield Held(self._timers.cancel)
        yield Held(self._beat)  # the last one
        yield Held(self._progress.close)
        yield Held(ranks.watch.close, ranks.watch.open)
        yield Held(ranks.close, ranks.listen)
        yield Held(ranks.recordings.close)
        yield self._imports
        yield self._step_times
        yield self._inprocess
        yield self._outside
        yield Held(self._cut)

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> int:
        """From the first worker to the exit code."""
        loop = asyncio.get_running_loop()
        end_on_failed_callbacks(loop, self._failed)
        loop.add_signal_handler(signal.SIGCHLD, self._workers.reap)
        await self._parts.open()
        self._scribe.job_started()
        self._tasks.start(self._progress_file.begin())
        self._tasks.start(self._join())
        self._tasks.start(self._control.serve())
        code = await self._ended
        cause = None if self._round is None else self._round.verdict
        if code == job.Outcome.FAILED.exit_code and cause is not None:
            await asyncio.to_thread(serve_error_file, cause)
        if code != job.Outcome.FINISHED.exit_code and self._round is not None:
            await write_last_copies(
                self._shelf,
                self._round.specs[0].env,
                self._config.ft.last_copies_mb_per_s * 1e6,
                self._workers.code_of,
                self._round.number,
                self._journal,
                self._say,
            )
        if line := await self._helpers.wait():
            self._say(line)
        return code

    async def close(self) -> None:
        """Release everything; what is left of the tree is killed."""
        await self._parts.close()

    def _cut(self) -> None:
        """Close the round that is on, if there is one."""
        self._cut_short = self._round is not None and self._node.state is not m.State.IDLE
        if self._cut_short:
            self._close_round()

    def _end_all(self) -> None:
        """Kill what is left below this process; note what ranks that are cut short did last."""
        limit_s = _LAST_SWEEP_S if self._cut_short else _OURS_END_S
        process.end_descendants(limit_s, self._parts.servers())
        if self._cut_short:
            self._ranks.watch.read_events()
            self._progress.end()

    async def _join(self) -> None:
        """Take part in the job, if this node is healthy. The template imports meanwhile."""
        if problem := self._injected(0) or await self._health.examine():
            self._unhealthy(problem)
        else:
            self._beat()
            await self._orders.join()

    # --- events and commands --------------------------------------------------------------------

    def _post(self, event: m.Event) -> None:
        """Feed an event to the node; events caused on the way wait for their turn."""
        self._turns.take(partial(self._handle, event))

    def _handle(self, event: m.Event) -> None:
        if self._abandoned:
            return  # what becomes of the ranks now is nobody's failure
        commands = self._node.handle(event)
        self._recent.note(time.monotonic_ns(), event, commands)
        for command in commands:
            self._carry_out(command)

    def _obey(self, order: job.Command) -> None:  # noqa: C901, PLR0912 - one case each
        """Carry out a command of the job policy."""
        self._control.take_command(order)
        match order:
            case job.Start():
                self._begin_round(order)
            case job.Stop():
                if self._round is not None:
                    self._round.stopping = True
                self._health.end_watch()
                self._scribe.stop_requested(order)
                self._post(
                    m.StopRound(
                        order.round,
                        order.grace_s,
                        order.signal,
                        self._restart_decided,
                        bool(order.agree),
                        order.failed,
                        *self._spared(order),
                    )
                )
                if order.agree:
                    self._stopping.freeze(order)
            case job.StopAfter(round=number) if number == self._node.round:
                ask = order.iteration >= 0
                if ask:
                    self._scribe.stop_agreed(order)
                self._stopping.stop_after(order.iteration)
                self._post(m.Agreed(number, ask))
            case job.Gather(round=number):
                self._post(m.Gather(number))
            case job.GoOn(round=number):
                self._post(m.GoOn(number))
            case job.Decided():
                self._restart_decided = order.action == "restart"
                self._inprocess.begin_stop()
                self._scribe.decided(order)
            case job.Blamed() if self._config.nodes is not None:
                self._blamed(order)
            case job.Advised():
                self._scribe.advised(order)
            case job.Slow():
                self._scribe.slow(order)
                if order.node == self._config.node and not order.over:
                    self._tasks.start(self._look_at_gpus(order.rank))
            case job.NewLimits(limits=limits, by=by):
                if self._ranks.limits.order(limits, by):
                    self._say(f"limits by {by}: {limits_in_words(limits)}")
            case job.Say():
                self._scribe.say(order.text, pause_s=order.pause_s)
            case job.End():
                self._end(order)

    def _blamed(self, order: job.Blamed) -> None:
        """The error file of this node shall name the ranks that all nodes together blame."""
        self._scribe.blamed(order)
        elsewhere = bool(order.ranks) and order.node != self._config.node
        if elsewhere and self._round is not None and self._round.verdict is not None:
            self._round.verdict = self._round.verdict.blaming(order.line)

    async def _look_at_gpus(self, rank: int) -> None:
        """Say why the GPUs of a slow rank have low clocks, if they do."""
        current = self._round
        for worker in self._workers.all if current is not None else ():
            if current is not None and current.rank(worker.local_rank) == rank:
                for device in await self._throttling.devices(worker.pid):
                    gpu, reasons = device.index, device.throttled
                    self._journal.record(e.GpuThrottled(rank=rank, gpu=gpu, reasons=reasons))

    def _carry_out(self, command: m.Command) -> None:  # noqa: C901, PLR0912 - one case each
        """Carry out a command of the node."""
        match command:
            case m.Spawn():
                self._tasks.start(self._spawn())
            case m.CallOffSpawn():
                self._spawner.call_off()
            case m.Watch(on=on, anew=anew):
                if anew:
                    self._this_round().verdict = None
                    self._scribe.verdict_withdrawn()
                self._ranks.hold_to_limits(on=on, anew=anew)
            case m.GoOnWithout(local_rank=rank, detail=detail):
                self._rank_lost(rank, detail)
            case m.StartAgain(local_rank=rank):
                self._tasks.start(self._ranks.start_again(self._this_round(), rank))
            case m.GatherEvidence():
                self._tasks.start(self._ranks.gather_evidence(command))
            case m.JudgeHang():
                self._ranks.judge_hang()
            case m.JudgeCrash(final=final):
                self._ranks.judge_crash(final=final)
            case m.JudgeLateCrash():
                self._ranks.judge_late_crash()
            case m.SignalRanks(local_ranks=ranks, signal=number, agree=agree):
                self._signal_ranks(ranks, number, agree=agree)
            case m.SayLate(local_ranks=ranks, grace_s=grace_s):
                late = [self._this_round().rank(local_rank) for local_rank in ranks]
                self._scribe.not_ended_in_time(late, grace_s)
            case m.SignalTree(signal=number):
                self._tree.signal(number)
            case m.EndOrphans():
                self._tree.end_orphans()
            case m.PrepareClearing():
                self._clearing.prepare()
            case m.ClearNode(round=number):
                self._tasks.start(self._clear(number))
            case m.SetTimer(name=name, delay_s=delay_s):
                fired = m.TimerFired(name, self._node.round)
                self._timers.set(name, delay_s, partial(self._post, fired))
            case m.ReportSuspected(detail=detail):
                self._orders.post(job.HangSuspected(self._config.node, self._node.round, detail))
            case m.ReportEvidence(gathered=gathered):
                evidence = self._ranks.evidence() if gathered else b""
                self._orders.post(job.NodeEvidence(self._config.node, self._node.round, evidence))
            case m.ReportFailed():
                self._report_failed(command)
            case m.ReportFinished(lost=lost):
                self._orders.post(job.NodeFinished(self._config.node, self._node.round, lost))
            case m.ReportStopped():
                self._round_stopped(command)

    def _beat(self) -> None:
        """Let the front see that this process does not stand still, while ranks may run."""
        if self._pulse is not None:
            self._pulse.beat(0.0 if self._ended.done() else self._orders.ranks_outlive_s)
            self._timers.set("beat", BEAT_S, self._beat)

    def _start_fresh(self, reason: str) -> None:
        """Workers are not forked from the template any more."""
        self._journal.record(e.TemplateLost(reason=reason))

    def _end(self, end: job.End) -> None:
        self._scribe.job_ended(end)
        script = self._config.script
        is_there = script is None or script.node in self._orders.members
        if not is_there or (script is not None and end.outcome is not job.Outcome.FINISHED):
            with suppress(OSError):
                self._front.send(SCRIPT_MAY_BE_LOST)
        if not self._ended.done():
            self._ended.set_result(end.outcome.exit_code)

    # --- a round --------------------------------------------------------------------------------

    def _begin_round(self, start: job.Start) -> None:
        self._timers.cancel()
        self._beat()
        script = self._config.script
        if script is not None and script.node not in self._orders.members:
            self._keep_output(script, start)
        try:
            self._round = self._rounds.begin(
                start, self._inprocess.listen(), self._ranks.recordings.open()
            )
        except OSError as error:
            self._cannot_begin(start, error)
            return
        self._parts.round_begins(self._round)
        self._workers.begin_round()
        self._scribe.round_started(self._round)
        self._ranks.begin_round(self._round)
        self._post(m.StartRound(start.round, start.slots))

    def _keep_output(self, script: Script, start: job.Start) -> None:
        """The program that shows our output may be lost with its node."""
        if not self._rounds.keep_output():
            return
        text = (
            f"node {script.node}, which runs the batch script, has no part in round {start.round}; "
            "in case it is lost, what is printed and said from now on is also in "
            f"{self._config.log_dir} and {self._config.launcher_log}, of each node"
        )
        self._say(text)
        if start.group_rank == 0:
            line = TEXT.line(text)
            self._last_steps.start(
                asyncio.to_thread(append_to, script.output, self._config.node, line)
            )

    def _cannot_begin(self, start: job.Start, error: OSError) -> None:
        """Report to the policy that the round has failed; `Node` takes no part in it."""
        detail = f"round {start.round} cannot begin: {error.strerror or error}"
        self._scribe.spawn_failed(detail)
        self._orders.post(job.NodeFailed(self._config.node, start.round, detail))
        self._orders.post(job.NodeStopped(self._config.node, start.round))

    async def _spawn(self) -> None:
        current = self._this_round()
        for problem in await asyncio.to_thread(current.follow_output):
            self._say(problem)
        try:
            spawned = await self._spawner.spawn(current.specs)
        except OSError as error:
            self._post(m.SpawnFailed(f"workers could not be started: {error}"))
            return
        self._workers.adopt(spawned.pids)
        mode, pids = spawned.mode, list(spawned.pids)
        self._journal.record(e.WorkersSpawned(mode=mode, pids=pids, reason=spawned.reason))
        self._messages.share(any(not each.stdout or not each.stderr for each in current.specs))
        self._progress.begin()
        self._parts.ranks_run(current, spawned)
        self._health.begin_watch(current.number, self._unhealthy)
        self._post(m.WorkersSpawned())

    def _report_failed(self, report: m.ReportFailed) -> None:
        detail = report.detail
        if report.kind in {"crash", "signal"}:
            detail = f"rank {self._this_round().rank(report.local_rank)}: {detail}"
        if report.kind == "spawn":
            self._scribe.spawn_failed(detail)
        elif report.kind == "crash":
            self._ranks.crash_detected(report.local_rank, report.detail)
            if streams := self._unread(report.local_rank):
                by = f"the launcher of node {self._config.node}, whose {streams} nobody reads,"
                self._orders.post(
                    job.RestartOrdered(
                        self._config.node, self._node.round, by, purpose="to write to files"
                    )
                )
                return
        verdict = None if self._round is None else self._round.verdict
        victim = verdict is not None and not verdict.certain
        self._orders.post(
            job.NodeFailed(
                self._config.node,
                self._node.round,
                detail,
                victim=victim,
                hang=report.kind == "hang",
                by_signal=report.kind == "signal",
            )
        )

    def _unread(self, local_rank: int) -> str:
        """Which of our streams a rank could not write to, as nobody reads them; "" = none.

        That is no failure of the rank: later rounds write to files, and no restart is used. Without
        any restart the job ends as a program does whose reader has gone.
        """
        if not self._config.max_restarts or not self._ranks.could_not_write(local_rank):
            return ""
        streams = self._rounds.leave_unread(local_rank)
        if streams:
            names = in_words(streams)
            where = Path(self._config.log_dir, f"attempt_{self._node.round + 1}")
            self._say(f"nobody reads {names} of the launcher any more: ranks write to {where}")
            return names
        return ""

    def _signal_ranks(self, ranks: tuple[int, ...], number: int, *, agree: bool) -> None:
        """Signal ranks; those that ask whether to stop would hear it and go on: they are killed.

        Not so those that have stopped: they save, and have their time for that.
        """
        ask = self._stopping.who_asks(ranks)
        self._tell(tuple(rank for rank in ranks if rank not in ask), number)
        if not agree:
            self._stopping.over = True
            work = tuple(rank for rank in ask if not self._stopping.has_stopped(rank))
            self._workers.signal_ranks(work, signal.SIGKILL)

    def _tell(self, ranks: tuple[int, ...], number: int) -> None:
        """Signal ranks, but none for the second time that got the launcher's signal as well.

        A handler that saves would begin anew while it saves. So those with a handler are given the
        time in which the sender of the launcher's signal may signal them.
        """
        wait_s = min(self._outside.goes_on_s(number), self._config.term_timeout_s / 4)
        now: list[int] = []
        later: list[int] = []
        for rank in ranks:
            if number not in self._config.signals or not self._ranks.has_stop_signal(rank):
                waits = wait_s > 0 and self._workers.catches(rank, number)
                (later if waits else now).append(rank)
        self._workers.signal_ranks(tuple(now), number)
        if later:
            self._timers.set("tell", wait_s, partial(self._tell, tuple(later), number))

    def _rank_exited(self, worker: Worker) -> None:
        ended_ns = 0 if self._pulse is None else self._pulse.ranks_ended_ns
        if ended_ns > worker.spawned_ns:
            worker.ended_by_front(ended_ns)
        self._ranks.exited(worker)

    def _rank_lost(self, local_rank: int, detail: str) -> None:
        self._workers.all[local_rank].lost = True
        self._inprocess.lost(local_rank, detail)
        if not self._config.restart_lost_ranks:
            what = f"rank {self._this_round().rank(local_rank)}: {detail}"
            self._orders.post(job.RankLost(self._config.node, self._node.round, what))

    def _child_ended(self) -> None:
        self._helpers.look()
        self._tree.look()
        if not self._abandoned and not self._ended.done():
            self._spawner.replace_dead_template()

    def _kept_processes(self) -> set[int]:
        """Processes that belong to no round."""
        return self._parts.processes()

    def _spare_helpers(self, left: tuple[int, ...]) -> None:
        if ranks := self._workers.ranks:  # else it is unknown which processes are ranks
            self._helpers.adopt(left, ranks, restart=self._node.restarts)

    def _spared(self, stop: job.Stop) -> tuple[tuple[int, ...], float]:
        """Local ranks that may end by themselves after a failure, and how long."""
        ranks = [worker for worker in self._workers.all if worker.code is None and stop.failed]
        saves = time.monotonic() - self._programs_signal_s < _SAVES_FOR_S
        if saves and self._ranks.end_by_their_own_word():
            return tuple(worker.local_rank for worker in ranks), m.SAVE_S
        found = with_helpers(worker.pid for worker in ranks)
        return tuple(worker.local_rank for worker in ranks if worker.pid in found), m.RAISE_S

    async def _clear(self, number: int) -> None:
        problem = await self._clearing.clear(number, self._workers.pids)
        self._post(m.NodeClear(number, problem))

    def _injected(self, next_round: int) -> str:
        return injected(self._config.gpu_failures, next_round, self._config.infra_rank)

    def _unhealthy(self, problem: str) -> None:
        self._orders.post(job.NodeUnhealthy(self._config.node, self._node.round, problem))

    def _round_stopped(self, report: m.ReportStopped) -> None:
        unkillable = self._tree.left() if report.unkillable else ()
        self._tree.forget()
        self._clearing.close()
        self._ranks.watch.read_pages()
        self._ranks.watch.end()
        if not report.all_ok:
            self._keep_kernel_log()
        self._close_round()
        iterations = self._progress.end()
        self._messages.share(False)
        self._scribe.round_stopped(unkillable)
        if problem := report.problem or self._injected(self._node.round + 1):
            self._unhealthy(problem)
        stopped = job.NodeStopped(
            self._config.node,
            self._node.round,
            report.all_ok and not self._stopping.early,
            unkillable,
            iterations=iterations,
            misuse=self._ranks.misuse(),
            left=self._ranks.left(),
        )
        self._tasks.start(self._report_stopped(stopped))

    def _keep_kernel_log(self) -> None:
        """Keep what the kernel has said in a round that failed."""
        current = self._this_round()
        deaths = [Death(*each) for each in self._workers.killed_by_others()]
        if current.verdict is not None:
            event = current.verdict.event
            deaths += loaders_killed(f"{event.exception}\n{event.traceback}")
        if records := current.kernel_log.read(deaths):
            self._scribe.kernel_logged(current.number, records, current.kernel_log_path)

    async def _report_stopped(self, stopped: job.NodeStopped) -> None:
        verdict = self._this_round().verdict
        iterations = await self._progress_file.reached(stopped.iterations)
        self._orders.post(
            msgspec.structs.replace(
                stopped,
                iterations=iterations,
                verdict="" if verdict is None else verdict.event.line,
                victim=verdict is not None and not verdict.certain,
                finding=self._ranks.finding(verdict),
            )
        )

    def _close_round(self) -> None:
        current = self._this_round()
        current.close()
        self._parts.round_ends()
        self._ranks.end_round()
        self._last_steps.start(self._finish_output(current))

    async def _finish_output(self, current: Round) -> None:
        """Have the last output of a round that is closed copied."""
        for problem in await asyncio.to_thread(current.finish_output):
            self._say(problem)
        self._parts.round_over(current.number)

    def _this_round(self) -> Round:
        assert self._round is not None, "the policy starts a round before anything refers to it"
        return self._round

    # --- what comes from outside (see `Outside`) --------------------------------------------------

    def _stop_signalled(self, number: int) -> None:
        """Pass it on to the policy, which passes it on to the ranks."""
        name = signal.Signals(number).name
        self._journal.record(e.SignalReceived(signal=name))
        self._restart_decided = False
        self._spawner.replace_no_more()
        self._post(m.NoRestart())
        self._orders.post(job.Preempted(self._config.node, number, name))

    def _programs_signal(self, number: int, everywhere: bool) -> None:
        """Pass a signal on that means something to the program, if ranks have a handler for it."""
        passed = [] if everywhere else self._workers.pass_on(number)
        if everywhere or passed:
            self._programs_signal_s = time.monotonic()
        ranks = [self._this_round().rank(local_rank) for local_rank in passed]
        name = signal.Signals(number).name
        self._journal.record(e.SignalPassedOn(signal=name, ranks=ranks, everywhere=everywhere))

    def _front_ends(self, number: int) -> None:
        self._journal.record(e.SignalReceived(signal=signal.Signals(number).name))

    def _kill_now(self) -> None:
        """The user insists."""
        self._helpers.kill()
        self._post(m.KillNow())

    def _front_gone(self) -> None:
        """End the tree and this process; the others learn why."""
        self._abandoned = True
        if self._ended.done():
            return  # the ranks have ended; a copy in memory may just be written
        which = "" if self._config.nodes is None else f" of node {self._config.node}"
        self._say(f"the launcher{which} was killed: its ranks are ended as well", level=ERROR)
        if self._config.nodes is not None:
            reason = "its launcher was killed"
            self._orders.post(job.NodeFailed(self._config.node, self._node.round, reason))
        self._workers.signal_tree(signal.SIGKILL, spare=set())
        self._ended.set_result(1)

    # --- leaves ---------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        """A bug of ours must end the job with its traceback, not leave it waiting."""
        if self._ended.done():
            _failed_to_close(error)
        else:
            self._ended.set_exception(error)


def _failed_to_close(error: BaseException) -> None:
    """Show a bug of ours where nothing is left to be ended."""
    context = {"message": "while the agent ends", "exception": error}
    asyncio.get_running_loop().default_exception_handler(context)
