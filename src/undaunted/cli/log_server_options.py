"""Options of the log server of a job of several nodes, and what they say together."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from undaunted.base.durations import parse_seconds
from undaunted.cli import values
from undaunted.cli.option import Option
from undaunted.fault_tolerance.config_schema import OUTPUT
from undaunted.fault_tolerance.config_values import absolute_path, boolean, optional, whole
from undaunted.fault_tolerance.funnel.config import FunnelConfig, leaf_count, queue_bytes

if TYPE_CHECKING:
    from undaunted.cli.parse import Parsed
    from undaunted.fault_tolerance.nodes_config import Nodes

_ON = "ft-enable-log-server"
_PORT = "ft-log-server-port"
_LEAVES = "ft-log-aggregator-count"
_CHUNKS = "ft-log-leaf-max-queue-chunks"
_PREFIX = "ft-log-server-log-prefix"
_GRACE = "ft-log-server-graceful-shutdown-timeout"

LOG_SERVER_OPTIONS: tuple[Option, ...] = (
    Option(
        _ON,
        OUTPUT,
        "Several nodes: logs per round and launchers' lines are written on the coordinator's host",
        boolean,
        "true|false",
        "switch",
        default="false",
    ),
    Option(_PORT, OUTPUT, "Port of the log server", values.port, "PORT", default="50051"),
    Option(
        _LEAVES,
        OUTPUT,
        "Servers between the launchers and the one that writes; 0 = one per 1536 nodes",
        values.count,
        "N",
        default="0",
    ),
    Option(
        _CHUNKS,
        OUTPUT,
        "Chunks of 64 KiB that may wait in a log server; -1 = 4096",
        whole(-1),
        "N",
        default="-1",
    ),
    Option(
        _PREFIX,
        OUTPUT,
        "Beginning of the names of files with the log servers' own lines",
        optional(absolute_path),
        "FILE",
        default="",
        default_text="standard error",
    ),
    Option(
        _GRACE,
        OUTPUT,
        "How long the end of the job waits for logs that are on their way",
        parse_seconds,
        "TIME",
        default="60",
    ),
)


def log_server(
    parsed: Parsed, nodes: Nodes | None, applog_prefix: str, launcher_log: str
) -> FunnelConfig | None:
    """Return what is chosen for the log server, None = every launcher writes itself.

    Args:
        parsed: the command line.
        nodes: of the job, None = one.
        applog_prefix: of the logs per round, "" = none.
        launcher_log: file of the launcher's lines, "" = none.

    Raises:
        ValueError: something is missing or contradicts itself; the message names the remedy.
    """
    given = parsed.values
    if not given[_ON] or nodes is None:
        return None
    source = parsed.sources[_ON]
    if not applog_prefix:
        raise ValueError(
            f"{source} writes the logs per round: name them with --ft-per-cycle-applog-prefix"
        )
    root = PurePosixPath(applog_prefix).parent
    if launcher_log and root not in PurePosixPath(launcher_log).parents:
        raise ValueError(
            f"{source} writes below {root}, where --ft-per-cycle-applog-prefix is; "
            f"{launcher_log} must be there as well"
        )
    leaves = leaf_count(given[_LEAVES], nodes.max_nodes)
    if given[_PORT] + leaves > 65535 or not given[_PORT]:
        raise ValueError(f"--{_PORT} {given[_PORT]}: give a port from 1 to {65535 - leaves}")
    return FunnelConfig(
        root=str(root),
        port=given[_PORT],
        leaves=leaves,
        queue_bytes=queue_bytes(given[_CHUNKS]),
        log_prefix=given[_PREFIX] or "",
        grace_s=given[_GRACE],
    )
