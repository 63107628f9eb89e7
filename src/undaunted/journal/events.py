"""Every event the journal knows, as typed and versioned records.

A journal is a file of JSON lines. Each line is one event; its ``event`` key names the type below.
Common fields: ``t`` is CLOCK_MONOTONIC in nanoseconds (comparable only within one boot of one
node), ``wall`` is Unix time in seconds (for humans), ``node`` the node's name, ``round`` the number
of the round (cycle), from 0. Times inside events that end in ``_ns`` are CLOCK_MONOTONIC too.

Rules for changing this file: fields are only added, always with a default; a field never changes
its meaning. Readers skip events and fields they do not know. ``SCHEMA`` goes up when a reader of an
older build would misread a journal.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

SCHEMA = 1

# Bounded, so that no number in a damaged journal is too large to calculate with.
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# What takes ranks one by one must not be led by a damaged line into filling the memory.
Ranks = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Event(
    msgspec.Struct, kw_only=True, tag_field="event", frozen=True, omit_defaults=True, gc=False
):
    """The fields of every event.

    Attributes:
        t: CLOCK_MONOTONIC of the node, nanoseconds.
        wall: Unix time, seconds.
        node: name of the node that wrote it.
        round: number of the round, -1 before the first.

    The writer fills in those that are not given: an event of this moment, this node, this round.
    """

    t: Nanoseconds = 0
    wall: Seconds = 0.0
    node: str = ""
    round: int = -1


class JournalOpened(Event, tag="journal_opened", frozen=True, kw_only=True):
    """First line of a file: who writes it, on which boot of which machine.

    ``start_ticks`` is when the process ``pid`` of the namespace ``pid_namespace`` began, in clock
    ticks since boot; 0 = not known. ``slurm_step`` is the step of Slurm of which it is a task, as
    in 17.0; "" = of none.
    """

    schema: int = SCHEMA
    version: str = ""
    boot_id: str = ""
    pid: int = 0
    start_ticks: int = 0
    pid_namespace: int = 0
    slurm_step: str = ""

    @property
    def writer(self) -> tuple[str, int, int]:
        """Tell the process from all others that write to the same file."""
        return self.boot_id, self.pid, self.start_ticks


class JobNodes(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The options of a launcher about the nodes of its job: ``--nnodes MIN:MAX`` and its rules.

    ``grouped``: nodes take part in groups or segments only, so that a healthy one may lose its seat
    with another one's. A node without a leader stops its ranks ``lease_s`` and ``away_timeout_s``
    after it has heard of it, at the latest.
    """

    least: int
    most: int
    elastic: bool = False
    grouped: bool = False
    lease_s: Seconds = 0.0
    away_timeout_s: Seconds = 0.0


class JobStarted(Event, tag="job_started", frozen=True, kw_only=True):
    """The launcher begins. ``argv`` is the user's program with its arguments.

    ``log_dir`` is where redirected output of the ranks lies, "" where nothing is redirected.
    ``nodes`` is None in a job of one node.
    """

    run_id: str
    argv: list[str]
    nproc_per_node: int
    max_restarts: int
    worker_start: str = "warm"
    limits: dict[str, float | None] = {}
    log_dir: str = ""
    nodes: JobNodes | None = None


class RoundStarted(Event, tag="round_started", frozen=True, kw_only=True):
    """The coordinator's ``start`` arrived. ``ranks`` are this node's global ranks."""

    world_size: Ranks
    ranks: list[int]
    master_addr: str = ""
    master_port: int = 0
    max_restarts: int = 0


class WorkersSpawned(Event, tag="workers_spawned", frozen=True, kw_only=True):
    """All local workers exist. ``reason`` says why a start was fresh although warm was asked."""

    mode: str
    pids: list[int]
    reason: str = ""


class RankMilestone(Event, tag="rank_milestone", frozen=True, kw_only=True):
    """A rank passed a milestone at ``at_ns``.

    ``name`` is ``first_line`` (the user's program begins), ``initialized`` (monitoring began) or
    ``first_step`` (the first ``undaunted.step``, number ``iteration``).
    """

    rank: int
    name: str
    at_ns: Nanoseconds
    iteration: int | None = None


class RoundProgress(Event, tag="round_progress", frozen=True, kw_only=True):
    """The progress of the ranks of this node.

    Written when they have been spawned and 1, 3, 7, 15, 31 and 63 seconds later. From then on it is
    written once a minute, and when the round has stopped.
    ``first_iteration`` is the lowest a rank began with, ``last_iteration`` the highest begun, at
    ``last_ns``. Not written as long as no rank has called ``undaunted.step``.
    """

    first_iteration: int
    last_iteration: int
    last_ns: Nanoseconds


class FailureDetected(Event, tag="failure_detected", frozen=True, kw_only=True):
    """The agent noticed a failure. ``t`` is when; ``since_ns`` when it happened, where known.

    ``kind`` is ``crash`` or ``hang``. For a hang ``since_ns`` is the moment the limit was passed.
    """

    kind: str
    rank: int
    since_ns: Nanoseconds | None = None
    detail: str = ""


class EvidenceCollected(Event, tag="evidence_collected", frozen=True, kw_only=True):
    """Stacks and process states were gathered in ``duration_ns``. ``path`` holds them in full."""

    ranks: list[int]
    path: str = ""
    duration_ns: Nanoseconds = 0


class RankSilent(Event, tag="rank_silent", frozen=True, kw_only=True):
    """A rank has done nothing for a quarter of a limit, or since another one ended with 0.

    All of the node were looked at. Nothing is stopped for it. ``line`` says so to people; ``path``
    holds the stacks in full.
    """

    rank: int
    line: str
    path: str = ""


HARD_TIMEOUT = "hard timeout"


class Verdict(Event, tag="verdict", frozen=True, kw_only=True):
    """A failure. ``line`` is the one-line explanation shown to the user.

    ``rank`` is the first cause, not a victim. ``limit_s``, ``age_s`` and ``watch`` (``heartbeat``,
    ``initial heartbeat``, ``section 'x'``, ``outside sections``) are set for hangs;
    ``exit_code``, ``signal`` and ``exception`` for crashes. ``frame`` is the innermost frame of the
    user's code. ``suspects`` are the ranks that are just as suspect as this one, ``waiting`` the
    ranks that waited for them. ``distribution`` says how long the awaited work took before. A
    rank that in-process restart has ended for its hang has the ``signal`` of a crash and the
    ``watch`` ``hard timeout``. ``peak_memory_bytes`` is the most memory that the process, or
    one that it had waited for, had; ``core`` says where its core file is. ``cause``: its name,
    where the verdict itself knows it, "" = see ``kind``. ``fault`` is the id of a fault that was
    injected into the rank in this round, "" = none was.
    """

    kind: str
    rank: int
    local_rank: int
    pid: int
    line: str
    watch: str = ""
    age_s: Seconds | None = None
    limit_s: Seconds | None = None
    limit_source: str = ""
    iteration: int | None = None
    frame: str = ""
    exit_code: int | None = None
    signal: str = ""
    exception: str = ""
    traceback: str = ""
    suspects: list[int] = []
    waiting: list[int] = []
    stacks: str = ""
    distribution: str = ""
    peak_memory_bytes: int | None = None
    core: str = ""
    cause: str = ""
    fault: str = ""


class LimitsChanged(Event, tag="limits_changed", frozen=True, kw_only=True):
    """Ranks are held to other limits from now on: learned ones, or calculated by the ranks.

    Keys are ``initial_heartbeat``, ``heartbeat``, ``out_of_section`` and ``section:NAME``; only
    limits that are learned or calculated are listed. ``sources`` says where each comes from.
    """

    limits: dict[str, float | None]
    sources: dict[str, str] = {}


class StopRequested(Event, tag="stop_requested", frozen=True, kw_only=True):
    """Workers get the order to stop: SIGTERM now, SIGKILL after ``grace_s``."""

    reason: str
    grace_s: Seconds


class StopAgreed(Event, tag="stop_agreed", frozen=True, kw_only=True):
    """Ranks that ask whether to stop do so after this iteration, all the same one.

    Batches of an evaluation in which they stop count as iterations here. -1: no rank asks.
    """

    iteration: int


class RankExited(Event, tag="rank_exited", frozen=True, kw_only=True):
    """A rank's process ended. ``by_us`` tells whether the agent had told it to."""

    rank: int
    pid: int
    exit_code: int | None = None
    signal: str = ""
    by_us: bool = False


class RoundStopped(Event, tag="round_stopped", frozen=True, kw_only=True):
    """No process of the round is left. ``unkillable`` lists pids that would not die."""

    unkillable: list[int] = []


class InProcessPhase(Event, tag="inprocess_phase", frozen=True, kw_only=True):
    """A part of getting a function that is restarted inside its processes to run again.

    Attributes:
        call: how many calls of such functions there were before.
        epoch: which restart of the call, from 1; the one that is under way.
        phase: ``detect`` (at ``t`` the epoch before is over, for ``reasons``); ``abort``, ``stop``,
            ``finalize``, ``health`` and others that ranks name (the longest time of a rank);
            ``agree`` (what else it took until all were known to be ready); ``re-enter`` (at ``t``
            the ``members`` get the order to run the function).
        took_s: seconds; of ``detect`` how long the function had run, of ``re-enter`` since
            ``detect``.
        rank: whose time it is; the last one that was ready, of ``agree``; -1 = nobody's.
        members: how many ranks take part from now on.
        lost: which ranks of the job do not any more.
        reasons: one line per reason.
    """

    call: int
    epoch: int
    phase: str
    took_s: Seconds = 0.0
    rank: int = -1
    members: int = 0
    lost: list[int] = []
    reasons: list[str] = []


class InProcessCall(Event, tag="inprocess_call", frozen=True, kw_only=True):
    """A call of a function that is restarted inside its processes.

    ``call``: how many such calls there were before. ``what``: ``begun``, ``finished`` in all of the
    ``members``, ``ended`` (it cannot go on, for ``text``), ``resumed`` (somebody else decides about
    it). ``epoch``: the one that is on.
    """

    call: int
    epoch: int
    what: str
    members: int = 0
    text: str = ""


class MemoryReclaimed(Event, tag="memory_reclaimed", frozen=True, kw_only=True):
    """Before a restart, ``duration_ns`` were spent until the memory of all devices was free.

    ``devices`` were looked at; ``pids`` are ended processes that the driver still listed at the
    first look. ``held`` says what was in use when ``timeout_s`` were over, "" if nothing was.
    ``skipped`` says why nothing was waited for.
    """

    duration_ns: Nanoseconds = 0
    timeout_s: Seconds = 0.0
    devices: int = 0
    pids: list[int] = []
    held: str = ""
    skipped: str = ""


class CheckResult(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The result of one check of a node.

    ``duration_ns`` is None if it has not answered; ``text`` is what it found, "" = all is well;
    ``failed`` says whether that makes the node unhealthy.
    """

    name: str
    subject: str = ""
    duration_ns: Nanoseconds | None = None
    text: str = ""
    failed: bool = False


class NodeChecked(Event, tag="node_checked", frozen=True, kw_only=True):
    """The health of the node was checked, in ``duration_ns``: before a round, or in one.

    Checks that are repeated in a round are written only when one of them fails. ``problem`` says
    why the node is unhealthy, "" if it is not.
    """

    duration_ns: Nanoseconds = 0
    problem: str = ""
    checks: list[CheckResult] = []


class Decision(Event, tag="decision", frozen=True, kw_only=True):
    """The decision of the coordinator: ``restart`` or ``end``.

    A second one in a round replaces the first: the restart was taken back. ``by``: who has ordered
    it with ``undaunted ctl``, or the launcher whose output nobody reads any more. Such a restart is
    none of those that ``--max-restarts`` allows. ``purpose``: of that launcher, "" = a person wants
    it. ``number``: the round that ends, -1 = ``round``.
    """

    action: str
    reason: str
    restarts_left: int = 0
    by: str = ""
    purpose: str = ""
    number: int = -1


class ControlRequested(Event, tag="control_requested", frozen=True, kw_only=True):
    """A rank asked for a workload control action (``Continue``, ``ExcludeThisNode``, ...)."""

    rank: int
    action: str
    description: str = ""


class RankEvent(Event, tag="rank_event", frozen=True, kw_only=True):
    """A small event a rank put into its page: a name and a short text, at ``at_ns``."""

    rank: int
    name: str
    at_ns: Nanoseconds
    text: str = ""


class RankEventsLost(Event, tag="rank_events_lost", frozen=True, kw_only=True):
    """A rank wrote events faster than the agent read them; ``count`` are missing."""

    rank: int
    count: int


class TemplateReady(Event, tag="template_ready", frozen=True, kw_only=True):
    """The warm template can fork workers. ``modules`` were imported for them."""

    pid: int
    modules: list[str] = []
    import_ns: Nanoseconds = 0


class ImportsLearned(Event, tag="imports_learned", frozen=True, kw_only=True):
    """Workers of later rounds find imported what those of this round have imported.

    ``modules`` of them, of ``packages``: to import them has taken ``took_ns``. ``left`` are those
    packages that each rank imports itself, and why; ``problem`` why all.
    """

    modules: int = 0
    packages: list[str] = []
    took_ns: Nanoseconds = 0
    left: dict[str, str] = {}
    problem: str = ""


class TemplateLost(Event, tag="template_lost", frozen=True, kw_only=True):
    """The template died or may not fork; workers start fresh, until another one is ready."""

    reason: str


class AttributionResult(Event, tag="attribution_result", frozen=True, kw_only=True):
    """An attribution service said what ``log_path``, the log of round ``round``, shows.

    ``action`` is what it recommends (``RESTART``, ``STOP``, ...), "" = nothing; to get the result
    took ``duration_ns``.
    """

    log_path: str
    action: str = ""
    text: str = ""
    duration_ns: Nanoseconds = 0


class AgentPaused(Event, tag="agent_paused", frozen=True, kw_only=True):
    """The agent itself did not run for ``seconds``; every deadline was moved by that."""

    seconds: Seconds


class SignalReceived(Event, tag="signal_received", frozen=True, kw_only=True):
    """The launcher got a signal that it passes on to the ranks, or that ends the launcher."""

    signal: str


class SignalPassedOn(Event, tag="signal_passed_on", frozen=True, kw_only=True):
    """The launcher got a signal that is the program's, such as SIGUSR1; the job goes on.

    ``ranks`` have got it from the launcher. ``everywhere``: all processes of the job got it.
    """

    signal: str
    ranks: list[int] = []
    everywhere: bool = False


class EventsLost(Event, tag="events_lost", frozen=True, kw_only=True):
    """The journal could not be written for a while; ``count`` events are missing before this."""

    count: int
    reason: str = ""


class RankLost(Event, tag="rank_lost", frozen=True, kw_only=True):
    """A rank has failed, and the others go on with the function that they have called together."""

    rank: int
    detail: str


class RankReplaced(Event, tag="rank_replaced", frozen=True, kw_only=True):
    """A process was started in the place of a lost rank."""

    rank: int
    pid: int


class RoundBlamed(Event, tag="round_blamed", frozen=True, kw_only=True):
    """In a job of several nodes: what ended round ``number`` first, on which node.

    ``victims`` are nodes that failed because of it. ``ranks`` to blame and ``cause`` are known
    where all nodes were looked at after a hang; not ``certain``: most likely. ``lost``: the node is
    gone, and can say nothing itself. ``paused``: its leader stood still, and missed others
    since then; ``line`` says so.
    """

    number: int
    node: str
    line: str
    victims: list[str] = []
    ranks: list[int] = []
    cause: str = ""
    certain: bool = True
    lost: bool = False
    paused: bool = False


class RoundAdvised(Event, tag="round_advised", frozen=True, kw_only=True):
    """The best action after round ``number``, which has failed, by all failures of the job.

    ``action``: restart, exclude (go on without ``nodes``), stop. ``cause`` is that of the failure,
    "" = not known, of ``ranks``, with its ``confidence`` from 0 to 1. ``done``: the job does so;
    otherwise this is advice only. ``failure``: its text for the ranks of the next round, also of
    the job's next start, as they choose which checkpoint to load; "" = nothing.
    """

    number: int
    action: str
    reason: str = ""
    nodes: list[str] = []
    cause: str = ""
    done: bool = False
    ranks: list[int] = []
    confidence: float = 1.0
    failure: str = ""

    @property
    def line(self) -> str:
        """The action and its reason, in words; "" = a restart, which needs none."""
        match self.action:
            case "stop":
                return f"end the job: {self.reason}"
            case "exclude":
                return f"go on without {', '.join(self.nodes)}: {self.reason}"
        return ""


class SlowRank(Event, tag="slow_rank", frozen=True, kw_only=True):
    """A rank is slower than its peers in what it does by itself, or is not any more (``over``).

    Every node records it; ``on`` is the node of the rank. It takes longer by the share ``slower``
    than the median of its peers. By this the share ``lost`` of the time of a step is lost.
    ``beside`` names what it spends more time on than others: ``gc`` (Python's garbage collector),
    ``queue`` (waiting for a CPU core), ``cpu`` (its main thread computes), ``section NAME`` (one of
    its sections), ``line FUNCTION (FILE:LINE) > ...``; and the part of a step in which it becomes
    late: ``before collectives``, ``between collectives``, ``after collectives``.
    """

    rank: int
    on: str
    line: str
    over: bool = False
    slower: float = 0.0
    lost: float = 0.0
    beside: list[str] = []


class GpuThrottled(Event, tag="gpu_throttled", frozen=True, kw_only=True):
    """A rank was found slow, and a GPU that it uses has low clocks; of a node's own ranks.

    ``gpu`` is its number as the driver counts; ``reasons`` are those of the driver. ``line`` is of
    earlier versions.
    """

    rank: int
    gpu: int
    reasons: list[str] = []
    line: str = ""


class KernelLogged(Event, tag="kernel_logged", frozen=True, kw_only=True):
    """Lines that the kernel of this node has logged in a round that failed, if one is an error.

    ``lines`` are the first ones; ``count`` how many there are, all of them in ``file``. ``line`` is
    of earlier versions.
    """

    lines: list[str]
    count: int
    file: str = ""
    line: str = ""


class Remark(Event, tag="remark", frozen=True, kw_only=True):
    """A line of the launcher, or of the process that watches it, that no other kind tells.

    ``level``: info, warning or error. ``rank``: which one it is about, -1 = no single one.
    ``pause_s``: it tells of a pause of so many seconds before the next round.
    """

    text: str
    level: str = "warning"
    rank: int = -1
    pause_s: Seconds = 0.0


class LastCopy(Event, tag="last_copy", frozen=True, kw_only=True):
    """After the end of a job: what became of a copy of a checkpoint that was in memory only.

    ``step`` is that of training, -1 where it is not known; ``bytes`` the size of its files. It was
    to be written to ``place`` within ``allowed_s``. ``outcome``: written, failed, given_up; the
    last two with ``why``.
    """

    step: int
    bytes: int = 0
    place: str = ""
    outcome: str = ""
    why: str = ""
    allowed_s: Seconds = 0.0
    seconds: Seconds = 0.0


class JobEnded(Event, tag="job_ended", frozen=True, kw_only=True):
    """The job is over; only ``last_copy`` and ``remark`` come later.

    ``outcome``: finished, failed, preempted, excluded, no_restart, suspect, invalid, straggler,
    too_few_nodes.

    ``alone``: this node has ended by itself; what became of the job, it does not know.
    ``last_round`` is the last one of the job, as far as the node knows.
    """

    outcome: str
    exit_code: int
    reason: str = ""
    alone: bool = False
    last_round: int = -1


AnyEvent = (
    JournalOpened
    | JobStarted
    | RoundStarted
    | WorkersSpawned
    | RankMilestone
    | RoundProgress
    | FailureDetected
    | EvidenceCollected
    | RankSilent
    | Verdict
    | LimitsChanged
    | StopRequested
    | StopAgreed
    | RankExited
    | RoundStopped
    | RoundBlamed
    | RoundAdvised
    | SlowRank
    | GpuThrottled
    | KernelLogged
    | RankLost
    | RankReplaced
    | InProcessPhase
    | InProcessCall
    | MemoryReclaimed
    | NodeChecked
    | Decision
    | ControlRequested
    | RankEvent
    | RankEventsLost
    | TemplateReady
    | ImportsLearned
    | TemplateLost
    | AttributionResult
    | AgentPaused
    | SignalReceived
    | SignalPassedOn
    | EventsLost
    | Remark
    | JobEnded
    | LastCopy
)
