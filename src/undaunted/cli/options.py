"""The options of `undaunted run`: one table for the parser, the help and the documentation."""

from __future__ import annotations

from undaunted.base.durations import parse_optional_seconds, parse_seconds
from undaunted.cli import values
from undaunted.cli.ft_options import ft_options
from undaunted.cli.log_server_options import LOG_SERVER_OPTIONS
from undaunted.cli.metrics_options import METRICS_OPTIONS
from undaunted.cli.option import METRICS, PROGRAM, SETTINGS, STOPPING, TESTING, WORKERS, Option
from undaunted.cli.unused_options import UNUSED_OPTIONS
from undaunted.fault_tolerance.config_schema import (
    ATTRIBUTION,
    DEVICES,
    HEALTH,
    NODES,
    OUTPUT,
    PROGRESS,
    TIMEOUTS,
    UNUSED,
)
from undaunted.fault_tolerance.config_values import (
    absolute_path,
    boolean,
    choice,
    optional,
    unix_socket,
)

# Groups in the order of the help, each with its heading.
GROUPS = (
    WORKERS,
    PROGRAM,
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
    NODES,
    UNUSED,
)


def _flag(
    name: str, group: str, help_text: str, *, short: str = "", aliases: tuple[str, ...] = ()
) -> Option:
    return Option(
        name,
        group,
        help_text,
        boolean,
        kind="flag",
        default="0",
        short=short,
        aliases=aliases,
    )


_OWN = (
    Option(
        "nproc-per-node",
        WORKERS,
        "Number of workers: N, auto (one per GPU, else per CPU), cpu, gpu",
        values.nproc,
        "N",
        default="1",
    ),
    Option(
        "max-restarts",
        WORKERS,
        "How often the job may be restarted after a crash or hang",
        values.count,
        "N",
        default="0",
    ),
    Option(
        "worker-start",
        WORKERS,
        "warm: fork workers from a process that has imported torch; fresh: a new interpreter each",
        choice("warm", "fresh"),
        "HOW",
        default="warm",
    ),
    Option(
        "preload",
        WORKERS,
        "More modules to import once for warm workers, separated by commas",
        values.modules,
        "MODULES",
        repeat=True,
    ),
    Option(
        "role",
        WORKERS,
        "Name of the workers in prefixes and ROLE_NAME",
        str,
        "NAME",
        default="default",
    ),
    _flag(
        "virtual-local-rank",
        WORKERS,
        "LOCAL_RANK is 0 in all workers; each sees one GPU by CUDA_VISIBLE_DEVICES",
    ),
    _flag("module", PROGRAM, "SCRIPT is the name of a module, as in python -m", short="m"),
    _flag("no-python", PROGRAM, "SCRIPT is an executable, not a Python script"),
    _flag("run-path", PROGRAM, "Run SCRIPT by runpy.run_path; stronger than --no-python"),
    Option(
        "ft-restart-policy",
        NODES,
        "any-failed: a failure restarts all ranks; min-healthy: once fewer than MIN nodes have "
        "all their ranks; until then the others go on, also inside their processes",
        choice("any-failed", "min-healthy"),
        "POLICY",
        default="any-failed",
    ),
    _flag(
        "ft-restart-lost-ranks",
        NODES,
        "With min-healthy: the others go on without a lost rank, also on one node; it is started "
        "again, and joins the next in-process restart",
    ),
    Option(
        "ft-rdzv-impl",
        NODES,
        "barrier or legacy; both mean the coordinator",
        choice("barrier", "legacy"),
        "NAME",
        default="barrier",
    ),
    Option(
        "signals-to-handle",
        STOPPING,
        "Signals to the launcher that stop the job and are passed on to the workers",
        values.signals,
        "SIGNALS",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    ),
    Option(
        "term-timeout",
        STOPPING,
        "After a signal to the launcher: from SIGTERM of the workers to SIGKILL",
        parse_seconds,
        "TIME",
        default="1800",
    ),
    Option(
        "workers-stop-timeout",
        STOPPING,
        "Before a restart: from SIGTERM of the workers to SIGKILL",
        parse_optional_seconds,
        "TIME",
        default_text="by the cause of the restart",
        aliases=("shutdown-timeout",),
    ),
    Option(
        "run-dir",
        OUTPUT,
        "Directory of the journal, stacks and logs",
        str,
        "DIR",
        default_text="./undaunted-runs/RUN_ID",
    ),
    Option(
        "log-dir",
        OUTPUT,
        "Redirected output goes to DIR/RUN_ID/attempt_K/LOCAL_RANK/",
        str,
        "DIR",
        default_text="logs in the run directory",
    ),
    Option(
        "redirects",
        OUTPUT,
        "Streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,1:2",
        values.streams,
        "STREAMS",
        default="0",
        short="r",
    ),
    Option(
        "tee",
        OUTPUT,
        "Streams that go to files and, with a prefix, to the console",
        values.streams,
        "STREAMS",
        default="0",
        short="t",
    ),
    Option(
        "local-ranks-filter",
        OUTPUT,
        "Local ranks that are shown on the console; others go to files",
        values.ranks,
        "RANKS",
        default="",
        default_text="all",
    ),
    Option(
        "ft-per-cycle-applog-prefix",
        OUTPUT,
        "Output of all ranks in one file per round: /DIR/NAME.EXT gives /DIR/NAME_cycleN.EXT",
        optional(absolute_path),
        "FILE",
        default="",
        default_text="none",
    ),
    Option(
        "ft-nvrx-logfile",
        OUTPUT,
        "File for the launcher's own lines as well; needs --ft-per-cycle-applog-prefix",
        optional(absolute_path),
        "FILE",
        default="",
        default_text="none",
    ),
    Option(
        "ft-cycle-info-job-id",
        OUTPUT,
        "Name of the job in the files of --ft-cycle-info-dir",
        str,
        "ID",
        default="",
        default_text="Slurm's, else RUN_ID",
    ),
    Option(
        "logs-specs",
        OUTPUT,
        "Plug-in of torchrun (entry point group torchrun.logs_specs) that chooses the files",
        str,
        "NAME",
        default="",
        default_text="none",
    ),
    *(
        Option(
            f"duplicate-{stream}-filters",
            OUTPUT,
            f"Copy lines of {stream} that --tee shows and that contain one of these texts to "
            f"filtered_{stream}.log",
            values.texts,
            "TEXTS",
            default="",
            default_text="none",
        )
        for stream in ("stdout", "stderr")
    ),
    Option(
        "ft-cfg-path",
        SETTINGS,
        "YAML file whose section fault_tolerance gives defaults, below variables and options",
        str,
        "FILE",
        default="",
    ),
    _flag(
        "ft-ignore-missing-cfg",
        SETTINGS,
        "Go on with defaults if that file, or the section in it, is not there",
        aliases=("ignore-missing-fault-tol-cfg",),
    ),
    _flag("ft-ignore-unknown-settings", SETTINGS, "Pass over names in the file that are unknown"),
    Option(
        "inject-fault",
        TESTING,
        "Make a rank fail on purpose, as in sigkill:rank=1,iteration=60",
        str,
        "PLAN",
        repeat=True,
    ),
    Option(
        "nnodes",
        NODES,
        "Nodes that take part; with MIN:MAX, MIN do, and up to MAX there are spares",
        values.nodes,
        "MIN:MAX",
        default="1",
    ),
    _flag("elastic", NODES, "Up to MAX nodes take part; later ones are taken in by a restart"),
    Option(
        "node-name",
        NODES,
        "Name of this node, different from those of the others",
        values.name,
        "NAME",
        default="",
        default_text="Slurm's, else the host's",
    ),
    Option(
        "coordinator-token-file",
        NODES,
        "File, mode 0600, with the token that all launchers of the job know",
        str,
        "FILE",
        default_text="UNDAUNTED_TOKEN, else ~/.config/undaunted/token",
    ),
    Option("coordinator-tls-ca", NODES, "Authorities for TLS between launchers", str, "FILE"),
    Option("coordinator-tls-cert", NODES, "Certificate of this launcher", str, "FILE"),
    Option("coordinator-tls-key", NODES, "Its key", str, "FILE"),
    Option(
        "coordinator-store",
        NODES,
        "The coordinator's state is in etcd, which also decides which launcher serves it",
        str,
        "etcd://HOST:PORT,...",
        default="",
        default_text="at --rdzv-endpoint",
    ),
    _flag("standalone", NODES, "One node; --rdzv-* are ignored"),
    Option(
        "rdzv-id",
        NODES,
        "Name of the run (RUN_ID)",
        str,
        "ID",
        default="none",
        default_text="start time; of several nodes: the endpoint",
    ),
    Option(
        "rdzv-backend",
        NODES,
        "c10d or static; both mean the coordinator",
        choice("c10d", "static"),
        "NAME",
        default="c10d",
    ),
    Option(
        "rdzv-endpoint",
        NODES,
        "Where the coordinator is, the same on all nodes; the launcher on HOST serves it",
        str,
        "HOST:PORT",
        default="",
        default_text="--master-addr, port 29400",
    ),
    Option(
        "rdzv-conf",
        NODES,
        "join_timeout, last_call_timeout, lease, takeover and others",
        values.settings,
        "K=V,...",
        default="",
    ),
    Option(
        "node-rank",
        NODES,
        "Place of this node among the nodes",
        values.count,
        "N",
        default="0",
        default_text="Slurm's, else by name",
    ),
    Option(
        "master-addr", NODES, "MASTER_ADDR of the workers", str, "HOST", default_text="127.0.0.1"
    ),
    Option(
        "master-port",
        NODES,
        "MASTER_PORT of the workers; 0 = a free port, a new one for each restart",
        values.port,
        "PORT",
        default="0",
    ),
    Option("local-addr", NODES, "MASTER_ADDR when --master-addr is not given", str, "HOST"),
    Option(
        "ft-node-health-check-endpoint",
        HEALTH,
        "Unix socket of a health service, /PATH or unix:///PATH, asked before every round",
        optional(unix_socket),
        "SOCKET",
        default="",
        default_text="none",
    ),
    Option(
        "ft-no-restart-exit-code",
        STOPPING,
        "Exit code of a job that shall not be started again; only 93 is possible",
        values.no_restart_code,
        "CODE",
        default="93",
    ),
)

# All options, those of a group in the order of the help.
OPTIONS: tuple[Option, ...] = (
    *_OWN,
    *LOG_SERVER_OPTIONS,
    *METRICS_OPTIONS,
    *UNUSED_OPTIONS,
    *ft_options(),
)
