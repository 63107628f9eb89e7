"""Records what happens to a node's ranks as events of the journal; a `Narrator` shows them.

Decides nothing, and has no sentences but those of remarks.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.attribution.evidence import RankEvidence, expired_in_words, format_full
from undaunted.attribution.exits import signal_name
from undaunted.base.text import format_duration, format_ranks, one_line
from undaunted.fault_tolerance.advice import remembered
from undaunted.fault_tolerance.agent.narrator import Narrator
from undaunted.fault_tolerance.function_call import shown
from undaunted.fault_tolerance.output.lines import ERROR, INFO, WARNING
from undaunted.journal import events as e
from undaunted.progress.layout import EVALUATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.attribution.hang import HangVerdict, RankObservation
    from undaunted.coordinator.policy import messages as job
    from undaunted.coordinator.policy.messages import Iterations
    from undaunted.fault_tolerance.agent.kernel_log import Record
    from undaunted.fault_tolerance.agent.processes import Worker
    from undaunted.fault_tolerance.agent.round import Round
    from undaunted.fault_tolerance.data import WorkloadControlRequest
    from undaunted.fault_tolerance.nodes_config import Nodes
    from undaunted.fault_tolerance.output.messages import Messages
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.fault_tolerance.worker.messages import Ready
    from undaunted.journal.writer import JournalWriter
    from undaunted.progress.reader import RingEvent
    from undaunted.progress.snapshot import PageSnapshot
    from undaunted.progress.timeouts import Expired

_KERNEL_LINES = 8  # in the journal
_LEVELS = {INFO: "info", WARNING: "warning", ERROR: "error"}


def _in_log(record: Record) -> str:
    """A line as rules of logs read it."""
    seconds, micros = divmod(round(record.t * 1e6), 1_000_000)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    return f"{when}.{micros:06d}Z kernel: {record.text}"


class Scribe:
    """Makes entries of the journal out of what happens to a node's ranks."""

    def __init__(self, config: RunConfig, journal: JournalWriter, messages: Messages) -> None:
        self._config = config
        self.journal = journal
        self._messages = messages
        self._narrator = Narrator(config)
        journal.subscribe(self._show)
        self._milestones: set[tuple[int, str]] = set()
        self._progress: tuple[Iterations, int] | None = None  # recorded last
        self._heartbeats_missed = False
        self._hang: e.FailureDetected | None = None  # noticed, and perhaps none

    def _show(self, event: e.Event) -> None:
        for text, level, rank, prefix in self._narrator.take(event):
            self._messages.say(text, level=level, rank=rank, prefix=prefix)

    def say(
        self, text: str, *, level: int = WARNING, rank: int | None = None, pause_s: float = 0.0
    ) -> None:
        """Record and show a line that no other event tells. Any thread may do so."""
        who = -1 if rank is None else rank
        self.journal.record(e.Remark(text=text, level=_LEVELS[level], rank=who, pause_s=pause_s))

    # --- the job --------------------------------------------------------------------------------

    def job_started(self) -> None:
        """The launcher begins."""
        config = self._config
        limits: dict[str, float | None] = {
            "initial_heartbeat": config.limits.initial_heartbeat_s,
            "heartbeat": config.limits.heartbeat_s,
            "out_of_section": config.limits.out_of_section_s,
        }
        limits |= {f"section:{name}": value for name, value in config.limits.sections.items()}
        self.journal.record(
            e.JobStarted(
                run_id=config.run_id,
                argv=shown([config.target, *config.args]),
                nproc_per_node=config.nproc_per_node,
                max_restarts=config.max_restarts,
                worker_start=config.worker_start,
                limits=limits,
                log_dir=self._where_logs_are(),
                nodes=_nodes(config.nodes),
            )
        )

    def _where_logs_are(self) -> str:
        config = self._config
        if any([*config.stdout, *config.stderr]):
            return config.log_dir
        return str(Path(config.applog_prefix).parent) if config.applog_prefix else ""

    def job_ended(self, end: job.End) -> None:
        """The outcome is decided."""
        self.journal.record(
            e.JobEnded(
                outcome=end.outcome.value,
                exit_code=end.outcome.exit_code,
                reason=end.reason,
                alone=end.alone,
                last_round=end.round,
            )
        )

    def decided(self, decided: job.Decided) -> None:
        """The job policy decided to restart or to end."""
        self.journal.record(
            e.Decision(
                number=decided.round,
                action=decided.action,
                reason=decided.reason,
                restarts_left=decided.restarts_left,
                by=decided.by,
                purpose=decided.purpose,
            )
        )

    def blamed(self, blamed: job.Blamed) -> None:
        """Of all nodes, this one was the first to fail in a round."""
        self.journal.record(
            e.RoundBlamed(
                number=blamed.round,
                node=blamed.node,
                line=blamed.line,
                victims=list(blamed.victims),
                ranks=list(blamed.ranks),
                cause=blamed.cause,
                certain=blamed.certain,
                lost=blamed.lost,
                paused=blamed.paused,
            )
        )

    def advised(self, advised: job.Advised) -> None:
        """Record the advice after a round."""
        self.journal.record(
            e.RoundAdvised(
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
        )

    def slow(self, slow: job.Slow) -> None:
        """A rank is slower than its peers, or is not any more."""
        self.journal.record(
            e.SlowRank(
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

    def kernel_logged(self, number: int, records: Sequence[Record], path: str) -> None:
        """The kernel has logged errors in a round that failed; they go to ``path``."""
        self.journal.write_text(path, "".join(f"{_in_log(each)}\n" for each in records))
        lines = [each.text for each in records[:_KERNEL_LINES]]
        self.journal.record(
            e.KernelLogged(round=number, lines=lines, count=len(records), file=path)
        )

    # --- a round --------------------------------------------------------------------------------

    def round_started(self, current: Round) -> None:
        """A round begins: its workers are about to be started."""
        start = current.start
        self._milestones.clear()
        self.journal.record(
            e.RoundStarted(
                round=start.round,
                world_size=start.world_size,
                ranks=[current.rank(local_rank) for local_rank in range(start.slots)],
                master_addr=start.master_addr,
                master_port=start.master_port,
                max_restarts=start.max_restarts,
            )
        )

    def template_ready(self, pid: int, ready: Ready) -> None:
        """The template has imported what it was asked to."""
        self.journal.record(
            e.TemplateReady(pid=pid, modules=ready.modules, import_ns=ready.import_ns)
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
                f"({page.problem})",
                rank=rank,
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
                e.RankMilestone(rank=rank, name=name, at_ns=at_ns, iteration=iteration)
            )

    def round_progress(self, seen: Iterations, last_ns: int) -> None:
        """The highest iteration reached so far was begun at ``last_ns``."""
        if seen.first is None or seen.last is None or self._progress == (seen, last_ns):
            return
        self._progress = (seen, last_ns)
        self.journal.record(
            e.RoundProgress(first_iteration=seen.first, last_iteration=seen.last, last_ns=last_ns)
        )

    def stop_requested(self, stop: job.Stop) -> None:
        """The round is to be stopped."""
        self._record_hang()
        self.journal.record(e.StopRequested(reason=stop.reason, grace_s=stop.grace_s))

    def stop_agreed(self, order: job.StopAfter) -> None:
        """Ranks that ask stop after the same iteration."""
        self.journal.record(e.StopAgreed(iteration=order.iteration % EVALUATION))

    def rank_exited(self, current: Round, worker: Worker) -> None:
        """A rank's process ended."""
        code = worker.code
        assert code is not None
        self.journal.record(
            e.RankExited(
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
        self.journal.record(e.RoundStopped(unkillable=list(unkillable)))

    # --- failures -------------------------------------------------------------------------------

    def crash_detected(self, rank: int, since_ns: int, detail: str) -> None:
        """Rank ``rank`` crashed at ``since_ns``, as far as that is known yet."""
        self._failure("crash", rank, since_ns, detail)

    def hang_detected(self, rank: int, expired: Expired) -> None:
        """A rank passed a limit; who is to blame is not known yet."""
        detail = f"{expired.watch}: {expired.age_s:.3f} s, limit {expired.limit_s:g} s"
        self._hang = e.FailureDetected(
            t=time.monotonic_ns(),
            kind="hang",
            rank=rank,
            since_ns=expired.deadline_ns,
            detail=detail,
        )

    def rank_compiles(self, seen: RankObservation, alarm: Expired, limits: int) -> None:
        """A limit was passed, but a rank compiles in child processes: that is no hang."""
        self._hang = None
        longest = format_duration(limits * alarm.limit_s)
        self.say(
            f"rank {seen.rank} (node {seen.node}, pid {seen.pid}) compiles (torch.compile): its "
            f"child processes are busy. {expired_in_words(alarm)}; it is no hang before {longest}. "
            "--ft-rank-section-timeouts warmup:TIME,step:TIME gives the first steps more time",
            rank=seen.rank,
        )

    def spawn_failed(self, detail: str) -> None:
        """The workers could not be started."""
        self._failure("spawn", -1, None, detail)

    def _record_hang(self) -> None:
        """Record that a limit was passed, now that it is known to be no rank that compiles."""
        hang, self._hang = self._hang, None
        if hang is not None:
            self.journal.record(hang)

    def _failure(self, kind: str, rank: int, since_ns: int | None, detail: str) -> None:
        self._record_hang()
        self.journal.record(
            e.FailureDetected(kind=kind, rank=rank, since_ns=since_ns, detail=detail)
        )

    def evidence_collected(self, seen: list[RankEvidence], path: str, began_ns: int) -> None:
        """Stacks and states were gathered since ``began_ns``; they go to ``path``."""
        self._record_hang()
        self.journal.write_text(path, format_full(seen))
        ranks = [each.rank for each in seen]
        took_ns = time.monotonic_ns() - began_ns
        self.journal.record(e.EvidenceCollected(ranks=ranks, path=path, duration_ns=took_ns))

    def rank_silent(
        self, evidence: list[RankEvidence], seen: RankObservation, expired: Expired, path: str
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
        self.journal.record(e.RankSilent(rank=rank, line=line, path=path))

    def verdict(self, event: e.Verdict) -> None:
        """Record the rank that failed first, and why."""
        self._record_hang()
        self.journal.record(event)

    def verdict_withdrawn(self) -> None:
        """Another node was to blame, or a rank compiles; the round goes on."""
        self._record_hang()
        self._narrator.withdraw()

    # --- small things ---------------------------------------------------------------------------

    def ring_events(self, rank: int, ring: list[RingEvent], lost: int) -> None:
        """A rank put these events into its page; ``lost`` more were overwritten."""
        for event in ring:
            self.journal.record(
                e.RankEvent(rank=rank, name=event.name, at_ns=event.at_ns, text=event.text)
            )
        if lost:
            self.journal.record(e.RankEventsLost(rank=rank, count=lost))

    def control_requested(self, rank: int, request: WorkloadControlRequest) -> None:
        """A rank asks for something about the whole job."""
        action, text = request.action.name, request.description
        self.journal.record(e.ControlRequested(rank=rank, action=action, description=text))

    def not_ended_in_time(self, ranks: Sequence[int], grace_s: float) -> None:
        """These ranks were told to stop, and are killed now."""
        late = f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"
        after = format_duration(grace_s)
        self.say(f"{late} had not ended {after} after the order to stop: SIGKILL, perhaps unsaved")

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
