"""The options of `undaunted run`: one table for the parser, the help and the documentation."""

from __future__ import annotations

from undaunted.base.durations import parse_optional_seconds, parse_seconds
from undaunted.cli import values
from undaunted.cli.ft_options import ft_options
from undaunted.cli.option import PROGRAM, SETTINGS, STOPPING, TESTING, WORKERS, Option
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
    whole,
)

# Groups in the order of the help, each with its heading.
GROUPS = (
    WORKERS,
    PROGRAM,
    TIMEOUTS,
    PROGRESS,
    STOPPING,
    OUTPUT,
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
        "any-failed or min-healthy; on one node both restart all ranks when one fails",
        choice("any-failed", "min-healthy"),
        "POLICY",
        default="any-failed",
    ),
    Option(
        "ft-rdzv-impl",
        NODES,
        "barrier or legacy; not used on one node",
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
        "Number of nodes: 1 (more are not built yet)",
        values.one_node,
        "N",
        default="1",
    ),
    _flag("standalone", NODES, "One node; --rdzv-* are ignored"),
    Option(
        "rdzv-id",
        NODES,
        "Name of the run (RUN_ID)",
        str,
        "ID",
        default="none",
        default_text="start time",
    ),
    Option(
        "rdzv-backend",
        NODES,
        "c10d or static; not used on one node",
        choice("c10d", "static"),
        "NAME",
        default="c10d",
    ),
    Option("rdzv-endpoint", NODES, "Not used on one node", str, "HOST:PORT", default=""),
    Option("rdzv-conf", NODES, "Not used on one node", values.settings, "K=V,...", default=""),
    Option("node-rank", NODES, "0 on one node", values.count, "N", default="0"),
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
    Option(
        "monitor-interval",
        UNUSED,
        "Nothing is polled: an exit is seen at once",
        parse_seconds,
        "TIME",
    ),
    Option(
        "event-log-handler",
        UNUSED,
        "Only null: the journal has all events",
        values.event_log_handler,
        "NAME",
        default="null",
    ),
    Option(
        "start-method",
        UNUSED,
        "See --worker-start",
        choice("spawn", "fork", "forkserver"),
        "METHOD",
    ),
    Option(
        "ft-enable-log-server",
        UNUSED,
        "Send the logs per round of all nodes to one server",
        boolean,
        "true|false",
        "switch",
        default="false",
        not_built="the log server",
    ),
    *(
        Option(name, UNUSED, f"For the log server: {text}", convert, metavar, default=default)
        for name, text, convert, metavar, default in (
            ("ft-log-server-port", "its port", values.port, "PORT", "50051"),
            ("ft-log-aggregator-count", "servers below it", values.count, "N", "0"),
            ("ft-log-leaf-max-queue-chunks", "their queues", whole(-1), "N", "-1"),
            ("ft-log-server-log-prefix", "its own log", str, "FILE", ""),
            ("ft-log-server-graceful-shutdown-timeout", "its end", parse_seconds, "TIME", "60"),
        )
    ),
)

# All options, those of a group in the order of the help.
OPTIONS: tuple[Option, ...] = (*_OWN, *ft_options())
