"""What happens, in words: entries of the journal, and lines for people. Decides nothing."""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.attribution.error_file import ErrorReport
from undaunted.attribution.evidence import RankEvidence, expired_in_words, format_full
from undaunted.attribution.exits import signal_name
from undaunted.base.text import count, format_duration, format_ranks, name_ranks, one_line
from undaunted.fault_tolerance.advice import remembered
from undaunted.fault_tolerance.function_call import shown
from undaunted.fault_tolerance.output.lines import DONE, ERROR, INFO, PROGRESS
from undaunted.journal import events as e
from undaunted.progress.layout import EVALUATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.attribution.hang import HangVerdict, Seen
    from undaunted.coordinator.policy import messages as job
    from undaunted.coordinator.policy.messages import Iterations
    from undaunted.fault_tolerance.agent.judge import Judgement
    from undaunted.fault_tolerance.agent.kernel_log import Record
    from undaunted.fault_tolerance.agent.processes import Worker
    from undaunted.fault_tolerance.agent.round import Round
    from undaunted.fault_tolerance.data import WorkloadControlRequest
    from undaunted.fault_tolerance.nodes_config import Nodes
    from undaunted.fault_tolerance.output.messages import Messages
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.fault_tolerance.worker.messages import Ready
    from undaunted.fault_tolerance.worker.spawner import Spawned
    from undaunted.journal.writer import JournalWriter
    from undaunted.progress.reader import RingEvent
    from undaunted.progress.snapshot import PageSnapshot
    from undaunted.progress.timeouts import Expired

_NS = 1_000_000_000
UNREAD = "nobody reads"  # part of who wants a restart, where ranks could not print
_CLOSE_S = 2.0
_SHOWN_NS = 50 * _NS  # of progress, at least that apart: about once a minute
_KERNEL_LINES = 8  # in the journal
# As `checkpointing.announce` puts it into the page of rank 0.
_DOUBTED = re.compile(r"doubted step=([0-9]+) taken=([0-9]+) (.*)", re.DOTALL)


def _in_log(record: Record) -> str:
    """A line as rules of logs read it."""
    seconds, micros = divmod(round(record.t * 1e6), 1_000_000)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    return f"{when}.{micros:06d}Z kernel: {record.text}"


class Scribe:
    """Makes entries of the journal and lines for people out of what happens to a node's ranks."""

    def __init__(self, config: RunConfig, journal: JournalWriter, messages: Messages) -> None:
        self._config = config
        self.journal = journal
        self.say = messages.say
        self._shows_progress = messages.at_terminal
        self._shown: tuple[int, int, int] | None = None  # round, iteration, when: in the last line
        self._round = -1
        self._milestones: set[tuple[int, str]] = set()
        self._detected_ns: int | None = None
        self._restarting_since_ns: int | None = None  # the failure that this round comes after
        self._stop_heard_ns: int | None = None  # when this round was to be stopped
        self._lost_noticed_ns: int | None = None  # the same, where a node is lost: it says nothing
        self._restarts = 0
        self._ordered: dict[int, str] = {}  # rounds after which somebody wants another one: why
        self._fresh = False  # the ranks of this round have everything to import
        self._progress: tuple[Iterations, int] | None = None  # recorded last
        self._last_traceback = ""
        self._heartbeats_missed = False
        self._stopped_by = ""  # the first signal to the launcher
        self._hang: e.FailureDetected | None = None  # noticed, and perhaps none
        self._passed_on: set[str] = set()  # signals of the program's that were named
        self._why = ""  # a round is stopped, and nobody is blamed for it
        self._said = ""  # the last line about who is to blame
        self._blamed: int | None = None  # the last round of which it was said who is to blame
        self._unsaid = ""  # who hangs on this node, until it is known who does in the job
        self._unsaid_of = -1  # the rank that it is about
        self.root_cause: Judgement | None = None

    # --- the job --------------------------------------------------------------------------------

    def job_started(self) -> None:
        """The launcher begins."""
        config = self._config
        argv = shown([config.target, *config.args])
        limits: dict[str, float | None] = {
            "initial_heartbeat": config.limits.initial_heartbeat_s,
            "heartbeat": config.limits.heartbeat_s,
            "out_of_section": config.limits.out_of_section_s,
        }
        limits |= {f"section:{name}": value for name, value in config.limits.sections.items()}
        self.journal.record(
            e.JobStarted(
                t=_now_ns(),
                run_id=config.run_id,
                argv=argv,
                nproc_per_node=config.nproc_per_node,
                max_restarts=config.max_restarts,
                worker_start=config.worker_start,
                limits=limits,
                log_dir=self._where_logs_are(),
                nodes=_nodes(config.nodes),
            )
        )
        allowed = f", {count(config.max_restarts, 'restart')} allowed"
        if config.nodes is not None and not config.nodes.is_host and not config.max_restarts:
            allowed = ""  # whoever coordinates the job knows
        self.say(
            f"{count(config.nproc_per_node, 'rank')} of {one_line(argv[0])} on {config.node}"
            f"{allowed}; report: undaunted report {shlex.quote(config.run_dir)}",
            level=INFO,
        )

    def _where_logs_are(self) -> str:
        config = self._config
        if any([*config.stdout, *config.stderr]):
            return config.log_dir
        return str(Path(config.applog_prefix).parent) if config.applog_prefix else ""

    def job_ended(self, end: job.End) -> None:
        """The outcome is decided."""
        outcome = end.outcome
        self._say_unsaid()
        self._restarts = max(self._restarts, end.round)
        self.journal.record(
            e.JobEnded(
                t=_now_ns(),
                round=self._round,
                outcome=outcome.value,
                exit_code=outcome.exit_code,
                reason=end.reason,
                alone=end.alone,
            )
        )
        if outcome.exit_code and self._last_traceback:
            self.say("the first cause in full:", level=ERROR)
            self.say(self._last_traceback.rstrip("\n"), level=ERROR, prefix=False)
        ordered = self._restarts_ordered()
        used = self._restarts - len(ordered)
        again = f", {count(used, 'restart')}" if used else ""
        for why, number in Counter(ordered).items():
            again += f", {count(number, 'restart')} {why}"
        label = outcome.value.replace("_", " ")
        if self._stopped_by == "SIGINT" and label == "preempted":  # a person has pressed Ctrl-C
            label = "interrupted"
        text = f"{label}{again}: {self._without_said(end.reason)}"
        self.say(text, level=ERROR if outcome.exit_code else DONE)

    def _restarts_ordered(self) -> list[str]:
        """Why rounds that others have followed were stopped, where somebody wanted it."""
        return [why for number, why in self._ordered.items() if number < self._restarts]

    def decided(self, decided: job.Decided) -> None:
        """The job policy decided to restart or to end."""
        self._ordered.pop(decided.round, None)
        if decided.by and decided.action == "restart":
            unread = UNREAD in decided.by
            self._ordered[decided.round] = "to write to files" if unread else "on request"
            self._why = ""  # it is said now
            now = time.strftime("%H:%M:%S")
            follows = f"round {decided.round} is stopped, another one follows"
            self.say(f"{now} {decided.reason}: {follows}; it costs no restart", level=INFO)
        elif decided.round != self._blamed or self._said not in decided.reason:
            self._why = f"round {decided.round} was stopped: {decided.reason}"
        self.journal.record(
            e.Decision(
                t=_now_ns(),
                round=self._round,
                action=decided.action,
                reason=decided.reason,
                restarts_left=decided.restarts_left,
                by=decided.by,
            )
        )

    def blamed(self, blamed: job.Blamed) -> None:
        """Of all nodes, this one was the first to fail in a round."""
        victims = list(blamed.victims)
        self.journal.record(
            e.RoundBlamed(
                t=_now_ns(),
                round=self._round,
                number=blamed.round,
                node=blamed.node,
                line=blamed.line,
                victims=victims,
                ranks=list(blamed.ranks),
                cause=blamed.cause,
                certain=blamed.certain,
            )
        )
        self._why, self._unsaid, self._blamed = "", "", blamed.round
        self._said = blamed.line
        self._lost_noticed_ns = self._stop_heard_ns if blamed.lost else None
        if blamed.node != self._config.node:
            self._last_traceback = ""  # of a victim
            if blamed.ranks and self.root_cause is not None:
                report = ErrorReport(blamed.line, "", int(time.time()))
                self.root_cause = replace(self.root_cause, report=report)
        names = ", ".join(victims)
        others = f"; {names} stopped because of it" if victims else ""
        if blamed.ranks and victims:
            others = f"; the ranks of {names} are victims"
        self.say(
            one_line(f"first cause in round {blamed.round}: {blamed.line}{others}", longest=1000),
            level=ERROR,
        )

    def advised(self, advised: job.Advised) -> None:
        """What is best done after a round; said where that is more than a restart."""
        event = e.RoundAdvised(
            t=_now_ns(),
            round=self._round,
            number=advised.round,
            action=advised.action,
            reason=advised.reason,
            nodes=list(advised.nodes),
            cause=advised.cause,
            done=advised.done,
            ranks=list(advised.ranks),
            confidence=advised.confidence,
            failure=remembered(advised.failure, self._config.run_id, time.time()),
        )
        self.journal.record(event)
        if not event.line or (event.done and event.action == "stop"):
            return  # of the end it is said anyway
        acts = event.done or self._config.advice == "act"
        word, hint = "done" if event.done else "advice", "" if acts else " (--advice act does so)"
        text = f"{word} after round {advised.round}: {event.line}{hint}"
        self.say(one_line(text, longest=1000))

    def slow(self, slow: job.Slow) -> None:
        """A rank is slower than its peers, or is not any more."""
        self.journal.record(
            e.SlowRank(
                t=_now_ns(),
                round=slow.round,
                rank=slow.rank,
                on=slow.node,
                line=slow.line,
                over=slow.over,
                slower=slow.slower,
                lost=slow.lost,
                beside=list(slow.beside),
            )
        )
        self.say(slow.line, level=INFO if slow.over else ERROR)

    def gpu_throttled(self, rank: int, gpu: int, reasons: list[str]) -> None:
        """A GPU of a slow rank has low clocks."""
        line = f"GPU {gpu}, which rank {rank} uses, has low clocks: {', '.join(reasons)}"
        event = e.GpuThrottled(
            t=_now_ns(), round=self._round, rank=rank, gpu=gpu, reasons=reasons, line=line
        )
        self.journal.record(event)
        self.say(line, level=ERROR)

    def kernel_logged(self, number: int, records: Sequence[Record], path: str) -> None:
        """The kernel has logged errors in a round that failed; they go to ``path``."""
        self.journal.write_text(path, "".join(f"{_in_log(each)}\n" for each in records))
        lines = [each.text for each in records[:_KERNEL_LINES]]
        more = f" and {len(records) - 1} more" if len(records) > 1 else ""
        line = f"the kernel of node {self._config.node} logged: {lines[0]}{more}; see {path}"
        event = e.KernelLogged(
            t=_now_ns(), round=number, lines=lines, count=len(records), file=path, line=line
        )
        self.journal.record(event)
        self.say(line, level=INFO)

    # --- a round --------------------------------------------------------------------------------

    def round_started(self, current: Round) -> None:
        """A round begins: its workers are about to be started."""
        start = current.start
        self._say_unsaid()
        if self._why and self._config.nodes is not None:
            self.say(self._why, level=INFO)
        self._restarts = self._round = start.round
        self._why = self._last_traceback = ""
        self._restarting_since_ns, self._detected_ns = self._detected_ns, None
        if self._restarting_since_ns is None and start.group_rank == 0:
            self._restarting_since_ns = self._lost_noticed_ns
        self._lost_noticed_ns = self._stop_heard_ns = None
        self._milestones.clear()
        ranks = [current.rank(local_rank) for local_rank in range(start.slots)]
        self.journal.record(
            e.RoundStarted(
                t=_now_ns(),
                round=self._round,
                world_size=start.world_size,
                ranks=ranks,
                master_addr=start.master_addr,
                master_port=start.master_port,
            )
        )

    def workers_spawned(self, spawned: Spawned) -> None:
        """Every local rank is a process."""
        self._fresh = spawned.mode == "fresh"
        self.journal.record(
            e.WorkersSpawned(
                t=_now_ns(),
                round=self._round,
                mode=spawned.mode,
                pids=list(spawned.pids),
                reason=spawned.reason,
            )
        )

    def workers_start_fresh(self, reason: str) -> None:
        """Workers are not forked from the template, because of ``reason``."""
        self.journal.record(e.TemplateLost(t=_now_ns(), round=self._round, reason=reason))
        self.say(f"workers start fresh, not warm: {reason}")

    def template_ready(self, pid: int, ready: Ready) -> None:
        """The template has imported what it was asked to."""
        self.journal.record(
            e.TemplateReady(
                t=_now_ns(),
                round=self._round,
                pid=pid,
                modules=ready.modules,
                import_ns=ready.import_ns,
            )
        )
        for module, error in ready.failed.items():
            if module not in self._config.preload and error.startswith("ModuleNotFoundError"):
                continue  # not installed; a program that needs it will say so itself
            self.say(one_line(f"{module} cannot be imported for warm workers: {error}"))

    def milestones(self, current: Round, local_rank: int, page: PageSnapshot) -> None:
        """Record milestones seen for the first time, and say once if a page is unreadable."""
        rank = current.rank(local_rank)
        if page.problem and (rank, "problem") not in self._milestones:
            self._milestones.add((rank, "problem"))
            self.say(
                f"rank {rank} is not watched for hangs in this round: its page is unreadable "
                f"({page.problem})"
            )
        for name, at_ns in (
            ("first_line", page.first_line_ns),
            ("initialized", page.initialized_ns),
            ("first_step", page.first_step_ns),
        ):
            if at_ns is None or (rank, name) in self._milestones:
                continue
            self._milestones.add((rank, name))
            iteration = page.first_iteration if name == "first_step" else None
            self.journal.record(
                e.RankMilestone(
                    t=_now_ns(),
                    round=self._round,
                    rank=rank,
                    name=name,
                    at_ns=at_ns,
                    iteration=iteration,
                )
            )
            if name == "first_line":
                self._say_if_all_run_again(current, at_ns)

    def _say_if_all_run_again(self, current: Round, at_ns: int) -> None:
        running = sum(1 for _, name in self._milestones if name == "first_line")
        if self._restarting_since_ns is None or running < current.start.slots:
            return
        took = format_duration((at_ns - self._restarting_since_ns) / _NS)
        self._restarting_since_ns = None
        imports = " as new interpreters: their imports come after that" if self._fresh else ""
        here = "" if self._config.nodes is None else " of this node"
        number = self._restarts - len(self._restarts_ordered())
        label = self._ordered.get(
            current.start.round - 1, f"{number} of {current.start.max_restarts}"
        )
        self.say(
            f"restart {label}: {count(running, 'rank')}{here} running again {took} after the "
            f"failure was noticed, at the first line of the script{imports}",
            level=INFO,
        )

    def round_progress(self, seen: Iterations, last_ns: int) -> None:
        """The highest iteration reached so far was begun at ``last_ns``."""
        if seen.first is None or seen.last is None or self._progress == (seen, last_ns):
            return
        self._progress = (seen, last_ns)
        self.journal.record(
            e.RoundProgress(
                t=_now_ns(),
                round=self._round,
                first_iteration=seen.first,
                last_iteration=seen.last,
                last_ns=last_ns,
            )
        )
        if self._shows_progress:
            self._show_progress(seen.last, last_ns)

    def _show_progress(self, iteration: int, at_ns: int) -> None:
        """Show people at a terminal how far the job is, now and then."""
        since = self._shown
        if since is None or since[0] != self._round:
            self._shown = self._round, iteration, at_ns
        elif at_ns - since[2] >= _SHOWN_NS and iteration > since[1]:
            rate = (iteration - since[1]) * _NS / (at_ns - since[2])
            pace = f"{rate:.3g} per second" if rate >= 1 else f"{format_duration(1 / rate)} each"
            restarts = count(self._restarts, "restart")
            self.say(f"iteration {iteration}, {pace}, {restarts}", level=PROGRESS)
            self._shown = self._round, iteration, at_ns

    def stop_requested(self, stop: job.Stop) -> None:
        """The round is to be stopped."""
        if not self._why and self._blamed != stop.round:  # no decision was heard of
            self._why = f"round {stop.round} was stopped: {stop.reason}"
        self._record_hang()
        self._stop_heard_ns = self._stop_heard_ns or _now_ns()
        self.journal.record(
            e.StopRequested(
                t=_now_ns(), round=self._round, reason=stop.reason, grace_s=stop.grace_s
            )
        )

    def stop_agreed(self, order: job.StopAfter) -> None:
        """Ranks that ask stop after the same iteration."""
        iteration = order.iteration % EVALUATION if order.iteration >= 0 else -1
        self.journal.record(e.StopAgreed(t=_now_ns(), round=self._round, iteration=iteration))

    def rank_replaced(self, current: Round, local_rank: int, pid: int) -> None:
        """Another process was started in the place of a lost rank."""
        rank = current.rank(local_rank)
        self.journal.record(e.RankReplaced(t=_now_ns(), round=current.number, rank=rank, pid=pid))

    def rank_exited(self, current: Round, worker: Worker) -> None:
        """A rank's process ended."""
        code = worker.code
        assert code is not None
        self.journal.record(
            e.RankExited(
                t=_now_ns(),
                round=self._round,
                rank=current.rank(worker.local_rank),
                pid=worker.pid,
                exit_code=code if code >= 0 else None,
                signal=signal_name(-code) if code < 0 else "",
                by_us=worker.signalled_by_us,
            )
        )

    def round_stopped(self, unkillable: tuple[int, ...]) -> None:
        """No process of the round is left but the ``unkillable``."""
        self._record_hang()
        self.journal.record(
            e.RoundStopped(t=_now_ns(), round=self._round, unkillable=list(unkillable))
        )
        if unkillable:
            self.say(
                f"processes {', '.join(map(str, unkillable))} cannot be killed (uninterruptible "
                "wait in the kernel: disk or driver); going on without waiting for them",
                level=ERROR,
            )

    # --- failures -------------------------------------------------------------------------------

    def crash_detected(self, rank: int, since_ns: int, detail: str) -> None:
        """Rank ``rank`` crashed at ``since_ns``, as far as that is known yet."""
        self._failure("crash", rank, since_ns, detail)

    def hang_detected(self, rank: int, expired: Expired) -> None:
        """A rank passed a limit; who is to blame is not known yet."""
        detail = f"{expired.watch}: {expired.age_s:.3f} s, limit {expired.limit_s:g} s"
        self._detected_ns = _now_ns()
        self._hang = e.FailureDetected(
            t=self._detected_ns,
            round=self._round,
            kind="hang",
            rank=rank,
            since_ns=expired.deadline_ns,
            detail=detail,
        )

    def rank_compiles(self, seen: Seen, alarm: Expired, limits: int) -> None:
        """A limit was passed, but a rank compiles in child processes: that is no hang."""
        self._hang = None
        longest = format_duration(limits * alarm.limit_s)
        self.say(
            f"rank {seen.rank} (node {seen.node}, pid {seen.pid}) compiles (torch.compile): its "
            f"child processes are busy. {expired_in_words(alarm)}; it is no hang before {longest}. "
            "--ft-rank-section-timeouts warmup:TIME,step:TIME gives the first steps more time"
        )

    def spawn_failed(self, detail: str) -> None:
        """The workers could not be started."""
        self._failure("spawn", -1, None, detail)
        self.say(detail, level=ERROR)

    def _record_hang(self) -> None:
        """Record that a limit was passed, now that it is known to be no rank that compiles."""
        hang, self._hang = self._hang, None
        if hang is not None:
            self.journal.record(hang)

    def _failure(self, kind: str, rank: int, since_ns: int | None, detail: str) -> None:
        self._record_hang()
        self._detected_ns = _now_ns()
        self.journal.record(
            e.FailureDetected(
                t=_now_ns(),
                round=self._round,
                kind=kind,
                rank=rank,
                since_ns=since_ns,
                detail=detail,
            )
        )

    def evidence_collected(self, seen: list[RankEvidence], path: str, began_ns: int) -> None:
        """Stacks and states were gathered since ``began_ns``; they go to ``path``."""
        self._record_hang()
        self.journal.write_text(path, format_full(seen))
        ranks = [each.rank for each in seen]
        took_ns = _now_ns() - began_ns
        self.journal.record(
            e.EvidenceCollected(
                t=_now_ns(), round=self._round, ranks=ranks, path=path, duration_ns=took_ns
            )
        )

    def rank_silent(
        self, evidence: list[RankEvidence], seen: Seen, expired: Expired, path: str
    ) -> None:
        """All ranks were looked at, since one has done nothing for a part of its limit."""
        at = f" at {seen.frame}" if seen.frame else ""
        what = f"rank {seen.rank} (node {seen.node}): {expired_in_words(expired)}{at}"
        self._nothing_stopped_yet(evidence, seen.rank, what, path)

    def ranks_left(self, evidence: list[RankEvidence], verdict: HangVerdict, path: str) -> None:
        """All ranks were looked at: those that run wait for some that have ended with 0."""
        self._nothing_stopped_yet(evidence, verdict.waiting[0], verdict.line, path)

    def _nothing_stopped_yet(
        self, evidence: list[RankEvidence], rank: int, what: str, path: str
    ) -> None:
        self.journal.write_text(path, format_full(evidence))
        line = f"{what}; nothing is stopped yet; stacks of all ranks here: {path}"
        self.journal.record(
            e.RankSilent(t=_now_ns(), round=self._round, rank=rank, line=line, path=path)
        )
        self.say(line, rank=rank)

    def verdict(self, judgement: Judgement) -> None:
        """Record and show a verdict, with the round it is about.

        Who hangs on one of several nodes is said only if nobody says who does in the whole job.
        """
        event = judgement.event
        self._record_hang()
        self.journal.record(event)
        of_all = event.kind == "hang" and self._config.nodes is not None
        if not of_all or event.round != self._blamed:
            self._unsaid, self._unsaid_of = one_line(event.line, longest=1000), event.rank
        if not of_all:
            self._say_unsaid()
        self._last_traceback = judgement.event.traceback
        self.root_cause = judgement

    def _say_unsaid(self) -> None:
        """Say the verdict of this node, unless there was one of the job."""
        if self._unsaid:
            self.say(self._unsaid, level=ERROR, rank=self._unsaid_of)
            self._said = self._unsaid
        self._unsaid = ""

    def _without_said(self, reason: str) -> str:
        """Shorten the line of a hang, which is long, if people have just read it."""
        line = self._said.partition("; stacks: ")[0]
        who, hangs, _ = line.partition(" hangs: ")
        return reason.replace(line, f"{who} hangs, see above") if hangs else reason

    def verdict_withdrawn(self) -> None:
        """Another node was to blame, or a rank compiles; the round goes on."""
        self._record_hang()
        self.root_cause, self._unsaid, self._last_traceback = None, "", ""

    def verdict_of(self, number: int) -> tuple[str, bool]:
        """What was found out about round ``number``, "" = nothing; and whether only victims are."""
        judged, event = self.root_cause, self.verdict_event(number)
        if judged is None or event is None:
            return "", False
        return event.line, not judged.certain

    def verdict_event(self, number: int) -> e.Verdict | None:
        """The verdict about round ``number``, None = there is none."""
        judged = self.root_cause
        return None if judged is None or judged.event.round != number else judged.event

    # --- small things ---------------------------------------------------------------------------

    def ring_events(self, rank: int, ring: list[RingEvent], lost: int) -> None:
        """A rank put these events into its page; ``lost`` more were overwritten."""
        for event in ring:
            self.journal.record(
                e.RankEvent(
                    t=_now_ns(),
                    round=self._round,
                    rank=rank,
                    name=event.name,
                    at_ns=event.at_ns,
                    text=event.text,
                )
            )
            if event.name == "checkpoint" and (found := _DOUBTED.match(event.text)):
                self.say(
                    one_line(
                        f"the checkpoint of step {found[1]} is not trusted: {found[3]}; the ranks "
                        f"go on from step {found[2]} (--no-checkpoint-fallback loads the newest)"
                    )
                )
        if lost:
            self.journal.record(
                e.RankEventsLost(t=_now_ns(), round=self._round, rank=rank, count=lost)
            )

    def control_requested(self, rank: int, request: WorkloadControlRequest) -> None:
        """A rank asks for something about the whole job."""
        action, text = request.action.name, request.description
        self.journal.record(
            e.ControlRequested(
                t=_now_ns(), round=self._round, rank=rank, action=action, description=text
            )
        )
        self.say(one_line(f"rank {rank} requests {action}: {text or 'no reason given'}"))

    def not_ended_in_time(self, ranks: Sequence[int], grace_s: float) -> None:
        """These ranks were told to stop, and are killed now."""
        late = f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"
        after = format_duration(grace_s)
        self.say(f"{late} had not ended {after} after the order to stop: SIGKILL, perhaps unsaved")

    def agent_paused(self, seconds: float) -> None:
        """This process did not run for a while."""
        self.journal.record(e.AgentPaused(t=_now_ns(), round=self._round, seconds=seconds))
        self.say(
            f"the launcher itself did not run for {format_duration(seconds)}; "
            "every deadline is moved by that"
        )

    def heartbeats_missing(self) -> None:
        """No rank has sent a heartbeat within the limit that was given for it; said once."""
        if self._heartbeats_missed:
            return
        self._heartbeats_missed = True
        limit_s = self._config.limits.heartbeat_s or 0.0
        self.say(
            f"no rank has called undaunted.step yet, {format_duration(limit_s)} after the start: "
            "hangs are not noticed before one does"
        )

    def signal_received(self, name: str, *, ranks: bool, first: bool, again: bool) -> None:
        """The launcher got a signal to stop.

        Args:
            name: of the signal.
            ranks: whether ranks run here.
            first: whether nothing has stopped the round before.
            again: whether this signal came before.
        """
        self.journal.record(e.SignalReceived(t=_now_ns(), round=self._round, signal=name))
        self._stopped_by = self._stopped_by or name
        if not ranks:
            what = "no rank runs here, so that nothing is waited for"
        elif first:
            what = f"passed on to the ranks, which have {self._time_to_save(name)}"
        elif again:
            what = "the ranks are being stopped already"
        else:
            what = f"the ranks are being stopped, and have {self._time_to_save(name)}"
        self.say(f"received {name}: {what}")

    def _time_to_save(self, name: str) -> str:
        """Say how long the ranks have: what is known of it, and whose limit it is."""
        config = self._config
        limit = f"{format_duration(config.term_timeout_s)} to save and end (--term-timeout)"
        if name == "SIGINT":
            if config.slurm_task:
                return f"{limit}, unless srun ends its step, as it does after a Ctrl-C"
            return f"{limit}; a second Ctrl-C ends them at once"
        if 0 < config.grace_s < config.term_timeout_s:
            least = f"{format_duration(config.grace_s)} to save and end"
            return f"{least} where Slurm ends the job (KillWait, GraceTime, --signal)"
        if config.slurm and not config.grace_s:
            return f"{limit}, or less: Slurm kills them after its KillWait where it ends the job"
        return limit

    def programs_signal(self, name: str, ranks: Sequence[int], *, everywhere: bool) -> None:
        """The launcher got a signal that is the program's; the job goes on.

        Args:
            name: of the signal.
            ranks: to which it was passed on.
            everywhere: it came to all processes of the job, the ranks too.
        """
        event = e.SignalPassedOn(
            t=_now_ns(), round=self._round, signal=name, ranks=list(ranks), everywhere=everywhere
        )
        self.journal.record(event)
        if name in self._passed_on:
            return
        self._passed_on.add(name)
        if everywhere:
            what = "the ranks got it as well"
        elif ranks:
            what = f"passed on to {name_ranks(ranks)}"
        else:
            what = "no rank has a handler for it, so that it is not passed on"
        self.say(f"received {name}: {what}; the job goes on (--signals-to-handle makes it a stop)")

    def launcher_ends(self, name: str) -> None:
        """The launcher got a signal that it does not handle, and that ends it."""
        self.journal.record(e.SignalReceived(t=_now_ns(), round=self._round, signal=name))
        self.say(f"received {name}, which ends the launcher: --signals-to-handle leaves it out")


def _now_ns() -> int:
    return time.monotonic_ns()


def _nodes(nodes: Nodes | None) -> e.JobNodes | None:
    """Return what the journal says of the nodes of the job."""
    if nodes is None:
        return None
    return e.JobNodes(
        least=nodes.min_nodes,
        most=nodes.max_nodes,
        elastic=nodes.elastic,
        grouped=bool(nodes.segment or nodes.replacement_group_size),
        lease_s=nodes.lease_s,
        away_timeout_s=nodes.away_timeout_s,
    )
