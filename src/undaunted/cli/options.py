"""The options of `undaunted run`, which `undaunted coordinator` and `undaunted chaos` take as well.

Settings with NVRx's names are in `FaultToleranceConfig`, values that the launcher gets as they were
given in `RunSettings`. How to add an option: docs/design/settings.md.
"""

from typing import Annotated, Literal

from undaunted.base import values
from undaunted.base.durations import parse_seconds
from undaunted.base.options import Kind, Opt, Option, Part
from undaunted.base.values import Count, Flag, Port, Seconds, Switch, Text
from undaunted.cli.command import Command, Parsed
from undaunted.fault_tolerance.config import (
    ATTRIBUTION,
    DEVICES,
    HEALTH,
    NODES,
    OUTPUT,
    PROGRESS,
    REFUSED,
    TIMEOUTS,
    UNUSED,
)
from undaunted.fault_tolerance.metrics_config import METRICS, MetricsConfig
from undaunted.fault_tolerance.run_config import STOPPING, WORKERS, RunSettings

PROGRAM = "Program"
SETTINGS = "Settings from a file"
TESTING = "Testing"
GROUPS = (
    WORKERS,
    PROGRAM,
    NODES,
    TIMEOUTS,
    PROGRESS,
    STOPPING,
    OUTPUT,
    METRICS,
    DEVICES,
    HEALTH,
    ATTRIBUTION,
    SETTINGS,
    TESTING,
    UNUSED,
)

_AbsoluteFile = Annotated[str, Kind(values.optional(values.absolute_path, ""), "FILE")]
_Streams = Annotated[
    int | dict[int, int], Kind(values.streams, "STREAMS", choices=("0", "1", "2", "3"))
]


class RunOptions(RunSettings, kw_only=True, frozen=True):
    """The command line of `undaunted run`; `cli.run` makes a RunConfig of it."""

    nproc_per_node: Annotated[
        int | str,
        Kind(values.nproc, "N", choices=values.DEVICES),
        Opt("Number of workers: N, auto (one per GPU, else per CPU), cpu, gpu", WORKERS),
    ] = 1
    # --- program ---
    module: Annotated[
        Flag, Opt("SCRIPT is the name of a module, as in python -m", PROGRAM, short="m")
    ] = False
    no_python: Annotated[Flag, Opt("SCRIPT is an executable, not a Python script")] = False
    run_path: Annotated[
        Flag, Opt("Run SCRIPT by runpy.run_path; stronger than --no-python", rare=True)
    ] = False
    # --- several nodes ---
    nnodes: Annotated[
        tuple[int, int],
        Kind(values.nodes, "MIN:MAX"),
        Opt(
            "Nodes that take part; with MIN:MAX, MIN do, and up to MAX there are spares",
            NODES,
            shown="1",
        ),
    ] = (1, 1)
    elastic: Annotated[
        Flag, Opt("Up to MAX nodes take part; a restart takes in those that come later")
    ] = False
    rdzv_endpoint: Annotated[
        Text,
        Opt(
            "The place of the coordinator, the same on all nodes; the launcher on HOST serves it",
            metavar="HOST:PORT",
            shown="--master-addr, port 29400",
        ),
    ] = ""
    rdzv_id: Annotated[
        Text,
        Opt(
            "Name of the run (RUN_ID)",
            metavar="ID",
            shown="start time; of several nodes: the endpoint",
        ),
    ] = "none"
    rdzv_conf: Annotated[
        dict[str, str],
        Kind(values.pairs, "K=V,..."),
        Opt("join_timeout, last_call_timeout, lease, takeover and others", rare=True),
    ] = {}
    standalone: Annotated[Flag, Opt("One node; --rdzv-* are ignored", rare=True)] = False
    node_name: Annotated[
        str,
        Kind(values.node_name, "NAME"),
        Opt(
            "Name of this node, different from those of the others",
            shown="Slurm's, else the host's",
            rare=True,
        ),
    ] = ""
    node_rank: Annotated[
        Count,
        Opt("Place of this node among the nodes", shown="Slurm's, else by name", rare=True),
    ] = 0
    master_addr: Annotated[
        Text,
        Opt("MASTER_ADDR of the workers", metavar="HOST", shown="127.0.0.1", rare=True),
    ] = ""
    local_addr: Annotated[
        Text,
        Opt(
            "Address of this node for the others; MASTER_ADDR where --master-addr is not given",
            metavar="HOST",
            rare=True,
        ),
    ] = ""
    ft_restart_policy: Annotated[
        Literal["any-failed", "min-healthy"],
        values.one_of("POLICY", "any-failed", "min-healthy"),
        Opt(
            "any-failed: any failure restarts all ranks; min-healthy: only once fewer than MIN "
            "nodes have all their ranks"
        ),
    ] = "any-failed"
    coordinator_token_file: Annotated[
        Text,
        Opt(
            "File, mode 0600, with the token that all launchers of the job know",
            metavar="FILE",
            shown="UNDAUNTED_TOKEN, else ~/.config/undaunted/token",
        ),
    ] = ""
    coordinator_tls_ca: Annotated[
        Text, Opt("Authorities for TLS between launchers", metavar="FILE", rare=True)
    ] = ""
    coordinator_tls_cert: Annotated[
        Text, Opt("Certificate of this launcher", metavar="FILE", rare=True)
    ] = ""
    coordinator_tls_key: Annotated[
        Text, Opt("Key of that certificate", metavar="FILE", rare=True)
    ] = ""
    coordinator_store: Annotated[
        Text,
        Opt(
            "The coordinator's state is in etcd, which also decides which launcher serves it",
            metavar="etcd://HOST:PORT,...",
            shown="at --rdzv-endpoint",
            rare=True,
        ),
    ] = ""
    # --- output ---
    run_dir: Annotated[
        str | None,
        Kind(values.text, "DIR"),
        Opt("Directory of the journal, stacks and logs", OUTPUT, shown="./undaunted-runs/RUN_ID"),
    ] = None
    log_dir: Annotated[
        str | None,
        Kind(values.text, "DIR"),
        Opt(
            "Redirected output goes to DIR/RUN_ID/attempt_K/LOCAL_RANK/",
            shown="logs in the run directory",
        ),
    ] = None
    redirects: Annotated[
        _Streams,
        Opt(
            "Streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank: "
            "0:3,1:2",
            short="r",
        ),
    ] = 0
    tee: Annotated[
        _Streams,
        Opt("Streams that go to files and, with a prefix, to the console", short="t"),
    ] = 0
    local_ranks_filter: Annotated[
        list[int],
        Kind(values.ranks, "RANKS"),
        Opt(
            "Local ranks that are shown on the console; others go to files", shown="all", rare=True
        ),
    ] = []
    ft_per_cycle_applog_prefix: Annotated[
        _AbsoluteFile,
        Opt("Output of all ranks in one file per round: /DIR/NAME.EXT gives /DIR/NAME_cycleN.EXT"),
    ] = ""
    ft_nvrx_logfile: Annotated[
        _AbsoluteFile,
        Opt(
            "File for the launcher's own lines as well; needs --ft-per-cycle-applog-prefix",
            rare=True,
        ),
    ] = ""
    ft_cycle_info_job_id: Annotated[
        Text,
        Opt(
            "Name of the job in the files of --ft-cycle-info-dir",
            metavar="ID",
            shown="Slurm's, else RUN_ID",
            rare=True,
        ),
    ] = ""
    ft_enable_log_server: Annotated[
        Switch,
        Opt(
            "Several nodes: logs per round and launchers' lines are written on the coordinator's "
            "host",
            rare=True,
        ),
    ] = False
    ft_log_server_port: Annotated[Port, Opt("Port of the log server", rare=True)] = 50051
    ft_log_server_log_prefix: Annotated[
        _AbsoluteFile,
        Opt(
            "Beginning of the name of the file with the log server's own lines",
            shown="standard error",
            rare=True,
        ),
    ] = ""
    ft_log_server_graceful_shutdown_timeout: Annotated[
        Seconds,
        Opt("How long the end of the job waits for logs that are on their way", rare=True),
    ] = 60.0
    # --- settings from a file, testing ---
    config: Annotated[
        Text,
        Opt(
            "YAML file that gives any of these options, below variables and the command line",
            SETTINGS,
            metavar="FILE",
        ),
    ] = ""
    ft_cfg_path: Annotated[
        Text,
        Opt(
            "YAML file whose section fault_tolerance gives defaults, below all others",
            metavar="FILE",
            rare=True,
        ),
    ] = ""
    ft_ignore_missing_cfg: Annotated[
        Flag,
        Opt(
            "Go on with defaults if that file, or the section in it, is not there",
            aliases=("ignore-missing-fault-tol-cfg",),
            rare=True,
        ),
    ] = False
    ft_ignore_unknown_settings: Annotated[
        Flag, Opt("Pass over names in the file that are unknown", rare=True)
    ] = False
    inject_fault: Annotated[
        list[str],
        Kind(values.one_more, "PLAN", repeat=True),
        Opt("Make a rank fail on purpose, as in sigkill:rank=1,iteration=60", TESTING),
    ] = []
    metrics: Annotated[MetricsConfig, Part("metrics")] = MetricsConfig()


# Options of torchrun and NVRx that have nothing to do here: name, values, reason.
ACCEPTED = """\
monitor-interval             TIME                nothing is polled: an exit is seen at once
event-log-handler            null                undaunted report has every event
start-method                 spawn|fork|forkserver see --worker-start
rdzv-backend                 c10d|static         all of them mean the coordinator
ft-rdzv-impl                 barrier|legacy      all of them mean the coordinator
ft-no-restart-exit-code      93                  ends a job that shall not be started again
ft-log-aggregator-count      N                   launchers send to the log server that writes
ft-log-leaf-max-queue-chunks N                   launchers send to the log server that writes
ft-attribution-startup-timeout TIME              nothing waits for the service to start
ft-attribution-compute-timeout TIME              what takes 5 minutes is given up
ft-attribution-analysis-backend lib|mcp          the service reads logs by rules
ft-attribution-llm-api-key-file TEXT             no language model is asked
ft-attribution-llm-base-url  TEXT                no language model is asked
ft-attribution-llm-model     TEXT                no language model is asked
ft-attribution-log-level     TEXT                the service says what is wrong, and nothing else
"""


def _accepted(line: str) -> Option:
    name, metavar, reason = line.split(maxsplit=2)
    choices = tuple(metavar.split("|"))

    def read(text: str) -> str:
        if text.strip() not in choices:
            raise ValueError(f"{text!r} is unknown; choose {' or '.join(choices)}: {reason}")
        return text

    readers = {"TIME": parse_seconds, "N": values.whole(-1), "TEXT": values.text}
    kind = Kind(readers.get(metavar, read), metavar)
    if metavar not in readers:
        kind = kind._replace(choices=choices)
    return Option(name, "", kind, Opt(reason[0].upper() + reason[1:], UNUSED, rare=True))


RUN = Command(
    "run",
    RunOptions,
    "[OPTIONS] SCRIPT [ARGUMENTS OF THE SCRIPT]",
    """\
Run SCRIPT as several workers and restart them when one crashes or hangs.

Examples:
  # 4 workers; after a crash or a hang the job goes on
  undaunted run --nproc-per-node 4 --max-restarts 3 train.py --lr 0.1
  # one worker per GPU; a rank that is silent for 2 minutes hangs
  undaunted run --nproc-per-node auto --ft-rank-heartbeat-timeout 2m train.py
  # a module; output in files and, with a prefix, on the console
  undaunted run --nproc-per-node 2 --tee 3 -m package.train
  # rehearse: kill rank 1 at iteration 60
  undaunted run --nproc-per-node 2 --max-restarts 1 \\
      --inject-fault sigkill:rank=1,iteration=60 train.py
""",
    "Everything after SCRIPT belongs to the script. Options are those of torchrun and of NVRx's "
    "ft_launcher; _ may stand for -, and --ft-param-X for --ft-X. Each has a variable for its "
    "default, as in PET_MAX_RESTARTS=3.",
    groups=GROUPS,
    operand="SCRIPT",
    is_program=True,
    has_variables=True,
    file="config",
    accepted=tuple(map(_accepted, ACCEPTED.splitlines())),
    refused=REFUSED,
)

RunParsed = Parsed[RunOptions]
