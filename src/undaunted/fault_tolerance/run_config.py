"""Everything one launcher needs to know about its run, after parsing and validation."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from undaunted.base import values
from undaunted.base.ids import file_name
from undaunted.base.options import Kind, Opt, Part
from undaunted.base.values import Count, Flag, OptionalSeconds, Port, Seconds, Text
from undaunted.fault_tolerance.config import HEALTH, NODES, OUTPUT, FaultToleranceConfig
from undaunted.fault_tolerance.metrics_config import MetricsConfig
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.fault_tolerance.output.lines import LineFormat
from undaunted.fault_tolerance.output.server.config import LogServerConfig
from undaunted.health.check import Settings
from undaunted.progress.limits import Limits

# Headings of the help.
WORKERS = "Workers"
STOPPING = "Stopping"

# SIGTERM, SIGINT, SIGHUP, SIGQUIT
STOP_SIGNALS = (15, 2, 1, 3)
# Where a stream of a rank goes: bit 1 = file, bit 2 = the launcher's own stream.
TO_CONSOLE = 0  # straight through, nobody in between
TO_FILE = 1
TO_BOTH = 3
# Holds the path of the file about the newest round, in the environments of the ranks.
CYCLE_INFO_VARIABLE = "NVRX_CURRENT_CYCLE_INFO"
# Holds a `Script`, in the environments of the launchers that `undaunted srun` starts.
SCRIPT_VARIABLE = "UNDAUNTED_SCRIPT"
SCRIPT_MAY_BE_LOST = b"S"  # says the agent to the front at its end
# Seconds from SIGTERM to SIGKILL where the scheduler ends a job: `undaunted srun` has asked it.
GRACE_VARIABLE = "UNDAUNTED_GRACE_S"


class RunSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Options that the launcher uses as they were given; `RunOptions` has all others.

    How to add an option: docs/design/settings.md.
    """

    max_restarts: Annotated[
        Count, Opt("How often the job may be restarted after a crash or hang", WORKERS)
    ] = 0
    restart_intensity: Annotated[
        tuple[int, float] | None,
        Kind(values.optional(values.intensity), "N/TIME"),
        Opt("Also at most N restarts within TIME, such as 3/10m, with growing pauses", rare=True),
    ] = None
    advice: Annotated[
        Literal["log", "act"],
        values.one_of("WHAT", "log", "act"),
        Opt(
            "When a node, or the program in the same way, fails again and again: log = say so; "
            "act = leave out the node, or end the job with 93"
        ),
    ] = "log"
    slow_ranks: Annotated[
        Literal["log", "exclude", "stop"],
        values.one_of("WHAT", "log", "exclude", "stop"),
        Opt(
            "When a slow rank costs 10 % or more for long: log = say so; exclude = leave out its "
            "node if it can be spared; stop = end the job with 93"
        ),
    ] = "log"
    slow_ranks_after_s: Annotated[
        Seconds,
        Opt(
            "How long a rank must be slow before --slow-ranks does something",
            name="slow-ranks-after",
            rare=True,
        ),
    ] = 300.0
    suspect_steps: Annotated[
        Count,
        Opt(
            "Two rounds that fail alike within so many steps after loading a checkpoint make ranks "
            "load an older one",
            rare=True,
        ),
    ] = 20
    no_checkpoint_fallback: Annotated[
        Flag,
        Opt("Load the newest checkpoint, whatever it has led to", rare=True),
    ] = False
    worker_start: Annotated[
        Literal["warm", "fresh"],
        values.one_of("HOW", "warm", "fresh"),
        Opt(
            "warm: fork workers from a process that has imported torch; fresh: a new interpreter "
            "each"
        ),
    ] = "warm"
    preload: Annotated[
        list[str],
        Kind(values.modules, "MODULES", repeat=True),
        Opt("More modules that warm workers have imported, separated by commas"),
    ] = []
    learn_imports: Annotated[
        str,
        values.one_of("WORD", "on", "off"),
        Opt(
            "Import for the workers of restarts the modules that those before have imported, of "
            "well-known packages, while training goes on: on, off",
            rare=True,
        ),
    ] = "on"
    role: Annotated[
        Text, Opt("Name of the workers in prefixes and ROLE_NAME", metavar="NAME", rare=True)
    ] = "default"
    virtual_local_rank: Annotated[
        Flag,
        Opt("LOCAL_RANK is 0 in all workers; each sees one GPU by CUDA_VISIBLE_DEVICES", rare=True),
    ] = False
    flight_recorder: Annotated[
        str,
        values.one_of("WORD", "on", "off"),
        Opt(
            "Have torch record the last 2000 operations of each rank, to tell who hangs: on, off",
            rare=True,
        ),
    ] = "on"
    restart_lost_ranks: Annotated[
        Flag,
        Opt(
            "With min-healthy: the other ranks go on without a lost rank, also on one node; the "
            "lost rank is started again, and joins the next in-process restart",
            NODES,
            name="ft-restart-lost-ranks",
            rare=True,
        ),
    ] = False
    master_port: Annotated[
        Port,
        Opt(
            "MASTER_PORT of the workers; 0 = a free port, a new one for each restart. With several "
            "nodes and without --rdzv-endpoint: the port where launchers meet instead",
            rare=True,
        ),
    ] = 0
    signals: Annotated[
        tuple[int, ...],
        Kind(values.signals, "SIGNALS", choices=values.PASSED_ON),
        Opt(
            "Signals to the launcher that stop the job and are passed on to the workers",
            STOPPING,
            shown="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            name="signals-to-handle",
            rare=True,
        ),
    ] = STOP_SIGNALS
    term_timeout_s: Annotated[
        Seconds,
        Opt(
            "After a signal to the launcher: from SIGTERM of the workers to SIGKILL",
            name="term-timeout",
        ),
    ] = 1800.0
    stop_timeout_s: Annotated[
        OptionalSeconds,
        Opt(
            "Before a restart: from SIGTERM of the workers to SIGKILL",
            shown="by the cause of the restart",
            name="workers-stop-timeout",
            aliases=("shutdown-timeout",),
            variables=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
        ),
    ] = None
    exit_codes: Annotated[
        Literal["all", "simple"],
        values.one_of("WHICH", "all", "simple"),
        Opt(
            "all = a code for each kind of end; simple = 0 for a job that was finished or "
            "preempted, 1 for all others, for schedulers that know no other codes",
            STOPPING,
            rare=True,
        ),
    ] = "all"
    log_format: Annotated[
        Literal["text", "plain", "json"],
        values.one_of("HOW", "text", "plain", "json"),
        Opt(
            "The form of the launcher's lines on standard error: text; plain = no colours, folded "
            "lines and progress on a terminal; json = an object per line",
            OUTPUT,
            rare=True,
        ),
    ] = "text"
    log_max_bytes: Annotated[
        int,
        Kind(values.size_from(1 << 20), "SIZE"),
        Opt(
            "Keep no more than the newest SIZE, such as 64M, of each file of --redirects and --tee",
            shown="everything",
            rare=True,
        ),
    ] = 0
    log_line_prefix_template: Annotated[
        Text,
        Opt(
            "Prefix of lines that --tee shows, with ${role_name}, ${rank}, ${local_rank} and "
            "${hostname}",
            variables=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
            rare=True,
        ),
    ] = "[${role_name}${rank}]:"
    node_health_socket: Annotated[
        str,
        Kind(values.optional(values.unix_socket, ""), "SOCKET"),
        Opt(
            "Unix socket of a health service, /PATH or unix:///PATH, asked before every round",
            HEALTH,
            name="ft-node-health-check-endpoint",
            rare=True,
        ),
    ] = ""
    checks: Annotated[
        list[str],
        Kind(values.texts, "NAMES", repeat=True),
        Opt(
            "Check the node for more: xid, ecc, ethernet, clock:TIME (how wrong it may be), "
            "disk:SIZE[:/PATH] (room)",
            HEALTH,
            name="health-checks",
            rare=True,
        ),
    ] = []
    strike_file: Annotated[
        str,
        Kind(values.optional(values.absolute_path, ""), "FILE"),
        Opt("File of this node, /PATH: remember failed checks there, from job to job", rare=True),
    ] = ""
    strike_limit: Annotated[
        tuple[int, float],
        Kind(values.intensity, "N/TIME"),
        Opt(
            "With --strike-file: so many failed checks within TIME, and the node is unhealthy",
            shown="3/7d",
            rare=True,
        ),
    ] = (3, 604800.0)
    check_commands: Annotated[
        list[str],
        Kind(values.one_more, "COMMAND", repeat=True),
        Opt(
            "A program with its arguments that checks the node: 0 = healthy, or JSON",
            name="health-command",
            rare=True,
        ),
    ] = []
    ft: Annotated[FaultToleranceConfig, Part("ft")] = msgspec.field(
        default_factory=FaultToleranceConfig
    )


class CycleInfoPlace(msgspec.Struct, kw_only=True, frozen=True):
    """The place of the files about the rounds of the job, and their names.

    Attributes:
        directory: absolute path.
        job_id: of the job, the same on all its nodes.
        attempt: how often the scheduler has started the job again.
        log_prefix: of the logs per round, "" = there are none.
    """

    directory: str
    job_id: str
    attempt: int = 0
    log_prefix: str = ""

    @property
    def current(self) -> str:
        """Path of the link to the file about the newest round."""
        return self._path("current")

    def path(self, number: int) -> str:
        """Path of the file about a round."""
        return self._path(f"{self.attempt}.{number}")

    def _path(self, what: str) -> str:
        return str(Path(self.directory, f"cycle_info.{file_name(self.job_id)}.{what}"))


class Script(msgspec.Struct, frozen=True):
    """The batch script of Slurm that waits for the launchers of its job.

    Attributes:
        job: Slurm's number of the job.
        node: where it runs.
        requeues: how often the job goes back to the queue at most.
        output: file of its output, "" = none.
    """

    job: str
    node: str
    requeues: int
    output: str = ""


class RunConfig(RunSettings, kw_only=True, frozen=True):
    """One `undaunted run` on one node.

    What is worked out of settings in ``ft`` goes before them: ``limits``, ``attribution_service``,
    ``attribution_may_end_job``, ``cycle_info``, ``health_checks``.

    Attributes:
        run_id: name of the run; also the name of its default directory.
        node: name of this node in messages.
        nodes: the other nodes of the job; None = there are none.
        nproc_per_node: number of local ranks.
        kind, target, args: the user's program, as in WorkerSpec.
        cwd: working directory of the workers.
        run_dir: directory of journal, stacks and default logs, absolute; exists, mode 0700.
        log_dir: directory of redirected output, absolute.
        stdout, stderr: TO_CONSOLE, TO_FILE or TO_BOTH per local rank.
        console_ranks: local ranks whose output reaches the console; None = all.
        limits: timeouts.
        min_healthy: a rank that is lost while others go on with the function that they have called
            together is no failure of this node, if there are other nodes or it comes back.
        gpu_failures: before which rounds (cycle, infrastructure rank) the check of a node fails on
            purpose.
        infra_rank: infrastructure rank of this node, 0 where there is one node.
        faults: fault plan for `undaunted.faults`, "" = none.
        master_addr: address workers use to meet.
        python: interpreter of the workers.
        applog_prefix: absolute path of the logs per round, "" = none: the output of all local ranks
            goes to ``PREFIX_cycleN.EXT``, N being the round.
        health_checks: what makes this node unhealthy; the devices and the socket are filled in.
        launcher_log: absolute path of a file for the launcher's own lines, "" = none.
        gpus_per_numa: GPUs per NUMA node, to bind ranks to nodes; 0 = ranks are not bound.
        attribution_service: URL of the service that is asked about the log of each round, "" =
            none; ``applog_prefix`` is set as well.
        attribution_may_end_job: its advice to stop ends the job.
        cycle_info: where files about each round go; None = there are none.
        log_server: log server of several nodes, which writes the logs per round and the launchers'
            lines; None = every launcher writes itself.
        metrics: where metrics go; None = nowhere.
        liveness_port: where probes are answered; None = nowhere.
        script: the script that waits for the launchers of several nodes; None = there is none.
        slurm: whether this launcher is in a job of Slurm.
        slurm_task: whether srun has started it.
        grace_s: how long Slurm waits from SIGTERM to SIGKILL, 0 = not known.
    """

    run_id: str
    node: str
    nodes: Nodes | None = None
    nproc_per_node: int
    kind: Literal["script", "module", "run_path", "program"]
    target: str
    args: list[str]
    cwd: str
    run_dir: str
    log_dir: str
    stdout: list[int]
    stderr: list[int]
    console_ranks: list[int] | None = None
    limits: Limits = Limits()
    min_healthy: bool = False
    gpu_failures: tuple[tuple[int, int], ...] = ()
    infra_rank: int = 0
    faults: str = ""
    master_addr: str = "127.0.0.1"
    python: str = ""
    applog_prefix: str = ""
    launcher_log: str = ""
    gpus_per_numa: int = 0
    attribution_service: str = ""
    attribution_may_end_job: bool = False
    health_checks: Settings = Settings()
    cycle_info: CycleInfoPlace | None = None
    log_server: LogServerConfig | None = None
    metrics: MetricsConfig | None = None
    liveness_port: int | None = None
    script: Script | None = None
    slurm: bool = False
    slurm_task: bool = False
    grace_s: float = 0.0

    @property
    def lines(self) -> LineFormat:
        """Return how the launcher's own lines look on standard error."""
        return LineFormat(self.log_format, self.node)
