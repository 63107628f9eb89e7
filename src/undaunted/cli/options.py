"""The options of `undaunted run`: one table for the parser, the help and the documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from undaunted.base.durations import parse_limit, parse_optional_seconds, parse_seconds
from undaunted.cli import values

if TYPE_CHECKING:
    from collections.abc import Callable

# Groups in the order of the help, each with its heading.
WORKERS = "Workers"
PROGRAM = "Program"
TIMEOUTS = "Hang detection (seconds or 500ms, 15m, 2h; none = off)"
STOPPING = "Stopping"
OUTPUT = "Output"
TESTING = "Testing"
NODES = "Meeting point (torchrun's; one node needs none of them)"
UNUSED = "Accepted so that command lines keep working, but not needed"
GROUPS = (WORKERS, PROGRAM, TIMEOUTS, STOPPING, OUTPUT, TESTING, NODES, UNUSED)


class Option(NamedTuple):
    """One option.

    Attributes:
        name: long spelling without dashes; also gives the name of the variable.
        group: heading it stands under.
        help: what it does, a sentence without its full stop.
        convert: text to value; ValueError says what is wrong and what to do.
        metavar: what stands for the value in the help; "" for flags.
        kind: ``value``; ``flag`` (no value); ``switch`` (``true`` or ``false`` may follow).
        default: as it would be given; None = the value is None.
        default_text: shown as the default where the text itself would not say it.
        short: one-letter spelling without its dash.
        aliases: other long spellings.
        repeat: may be given several times; the value is a list.
    """

    name: str
    group: str
    help: str
    convert: Callable[[str], Any] = str
    metavar: str = ""
    kind: Literal["value", "flag", "switch"] = "value"
    default: str | None = None
    default_text: str = ""
    short: str = ""
    aliases: tuple[str, ...] = ()
    repeat: bool = False

    @property
    def variable(self) -> str:
        """Environment variable that gives the default."""
        return variable_of(self.name)


def variable_of(name: str) -> str:
    """Environment variable of an option, named as torchrun does."""
    return "PET_" + name.upper().replace("-", "_")


def _flag(name: str, group: str, help_text: str, *, short: str = "") -> Option:
    return Option(name, group, help_text, values.boolean, kind="flag", default="0", short=short)


OPTIONS: tuple[Option, ...] = (
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
        values.choice("warm", "fresh"),
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
    _flag("module", PROGRAM, "SCRIPT is the name of a module, as in python -m", short="m"),
    _flag("no-python", PROGRAM, "SCRIPT is an executable, not a Python script"),
    _flag("run-path", PROGRAM, "Run SCRIPT by runpy.run_path; stronger than --no-python"),
    Option(
        "ft-rank-heartbeat-timeout",
        TIMEOUTS,
        "Longest time between two heartbeats of a rank",
        parse_limit,
        "TIME",
        default="2700",
    ),
    Option(
        "ft-initial-rank-heartbeat-timeout",
        TIMEOUTS,
        "Longest time until the first heartbeat",
        parse_limit,
        "TIME",
        default="3600",
    ),
    Option(
        "ft-rank-section-timeouts",
        TIMEOUTS,
        "Longest time in each section, as in step:60,checkpoint:10m",
        values.sections,
        "NAME:TIME,...",
        default="",
        default_text="none",
    ),
    Option(
        "ft-rank-out-of-section-timeout",
        TIMEOUTS,
        "Longest time outside all sections, once sections are used",
        parse_limit,
        "TIME",
        default="none",
    ),
    Option(
        "ft-rank-termination-signal",
        TIMEOUTS,
        "Signal that ends a hung rank",
        values.signal_number,
        "SIGNAL",
        default="SIGKILL",
    ),
    Option(
        "ft-install-exception-hook",
        TIMEOUTS,
        "Report unhandled exceptions of ranks before they exit",
        values.boolean,
        "true|false",
        kind="switch",
        default="true",
    ),
    Option(
        "ft-restart-policy",
        TIMEOUTS,
        "any-failed: one failed rank restarts all",
        values.restart_policy,
        "POLICY",
        default="any-failed",
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
        values.choice("c10d", "static"),
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
        "monitor-interval",
        UNUSED,
        "Nothing is polled: an exit is seen at once",
        parse_seconds,
        "TIME",
    ),
    Option(
        "ft-workload-check-interval",
        UNUSED,
        "Nothing is polled: a timer waits for the next limit",
        parse_seconds,
        "TIME",
    ),
    Option(
        "start-method",
        UNUSED,
        "See --worker-start",
        values.choice("spawn", "fork", "forkserver"),
        "METHOD",
    ),
)
