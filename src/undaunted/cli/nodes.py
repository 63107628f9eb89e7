"""Options about the nodes of a job: how many there are, where they meet, who this one is."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from undaunted.base.deadline import within
from undaunted.base.durations import parse_seconds
from undaunted.base.ids import node_name
from undaunted.cli.messages import UsageError
from undaunted.coordinator.etcd.store import Store, access, parse_store
from undaunted.coordinator.wire.address import (
    LOOK_UP_S,
    first_own_address,
    is_here,
    may_be_host,
)
from undaunted.coordinator.wire.credentials import TokenError, find_token
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.fault_tolerance.output.server.config import LogServerConfig
from undaunted.fault_tolerance.topology import infrastructure_rank, nvlink_domain, replacement_group
from undaunted.services.slurm.allocation import is_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.cli.options import RunParsed

DEFAULT_PORT = 29400
# Accepted because scripts for torchrun and NVRx set them; nothing here depends on them.
_NOT_USED = {
    "close_timeout",
    "read_timeout",
    "store_connect_wait_seconds",
    "use_libuv",
    "segment_check_interval",
    "upscaling_enabled",
    "keep_alive_interval",
    "keep_alive_max_attempt",
}
_TIMES = {
    "timeout": "first_round_timeout_s",
    "join_timeout": "join_timeout_s",
    "last_call_timeout": "last_call_s",
    "lease": "lease_s",
    "away_timeout": "away_timeout_s",
}
CONF_KEYS = {*_TIMES, *_NOT_USED, "is_host", "takeover", "replacement_group_size"}
_SLURM_JOBS = ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID")
_TASKS = "SLURM_TASKS_PER_NODE"
_ALLOW_SEVERAL = "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE"


def nodes(parsed: RunParsed, environ: Mapping[str, str], node: str) -> Nodes:
    """Return what the launcher knows of the other nodes.

    Raises:
        UsageError: an option cannot be meant, or something is missing to find the others.
    """
    fewest, most = parsed.options.nnodes
    conf = _conf(parsed)
    store = _store(parsed, environ)
    endpoints = endpoints_of(parsed) if store is None or parsed.options.rdzv_endpoint else []
    is_host = conf.pop("is_host", None)
    here = is_here(endpoints[0].rpartition(":")[0]) if endpoints else False
    if is_host is None:
        is_host = here
    segment = parsed.options.ft.segment or 0
    if segment and fewest % segment:
        raise UsageError(
            f"{parsed.source('ft-segment')} {segment}: {fewest} nodes cannot be divided "
            f"into segments of {segment}; change one of them"
        )
    found = Nodes(
        min_nodes=fewest,
        max_nodes=most,
        elastic=parsed.options.elastic,
        restart_policy=parsed.options.ft_restart_policy,
        endpoints=endpoints,
        is_host=is_host,
        beside_host=bool(here) and not is_host,
        named=parsed.is_given("node-name"),
        address=_own_address(parsed, endpoints[:1] if store is None else list(store.endpoints)),
        store=parsed.options.coordinator_store,
        infra_rank=_infra_rank(parsed, environ),
        domain=_domain(environ, node) if segment else "",
        group=replacement_group(environ),
        segment=segment,
        token_file=parsed.options.coordinator_token_file,
        tls_ca=parsed.options.coordinator_tls_ca,
        tls_cert=parsed.options.coordinator_tls_cert,
        tls_key=parsed.options.coordinator_tls_key,
        **conf,
    )
    _check_secrets(found, parsed, environ)
    return found


def launcher_name(environ: Mapping[str, str]) -> str:
    """Name this launcher: by its node, and among several of one Slurm job on a node by its task.

    Raises:
        UsageError: Slurm starts several on a node, and nobody has said that this is meant.
    """
    name = node_name(environ)
    tasks = environ.get(_TASKS, "")
    if not is_task(environ):  # the tasks of a job: Slurm has started none of them here
        return name
    if all(part.partition("(")[0].strip() in {"", "1"} for part in tasks.split(",")):
        return name
    if environ.get(_ALLOW_SEVERAL, "").strip().lower() in {"", "0", "false", "no"}:
        raise UsageError(
            f"{_TASKS} is {tasks}: Slurm starts several launchers on a node, but one is enough, "
            "which starts all ranks there; use `undaunted srun`, give srun "
            f"--ntasks={environ.get('SLURM_STEP_NUM_NODES', 'NODES')} --ntasks-per-node=1, or set "
            f"{_ALLOW_SEVERAL}=1 if several are meant"
        )
    local = environ.get("SLURM_LOCALID", "")
    return f"{name}-{local}" if local else name


def _store(parsed: RunParsed, environ: Mapping[str, str]) -> Store | None:
    """Where it is decided who serves the coordinator; None = here, by --rdzv-endpoint."""
    text = parsed.options.coordinator_store
    if not text:
        return None
    source = parsed.source("coordinator-store")
    try:
        access(environ)
        store = parse_store(text)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    if find_spec("grpc") is None:
        raise UsageError(f"{source} needs the package grpcio: pip install 'undaunted[etcd]'")
    named = parsed.options.rdzv_id not in {"", "none"}
    if not named and not any(environ.get(each) for each in _SLURM_JOBS):
        raise UsageError(
            f"{source}: other jobs may use this etcd, too: give --rdzv-id, a name of this job, the "
            "same on all nodes"
        )
    if parsed.options.ft_enable_log_server and not parsed.options.rdzv_endpoint:
        raise UsageError(
            f"{parsed.source('ft-enable-log-server')}: with {source} no node is its host: "
            "give --rdzv-endpoint HOST:PORT as well, or leave it out"
        )
    return store


def endpoints_of(parsed: RunParsed) -> list[str]:
    """Return where the nodes meet, as HOST:PORT.

    Raises:
        UsageError: nobody has said it, or it cannot be meant.
    """
    given = parsed.options.rdzv_endpoint
    if not given:
        address = parsed.options.master_addr
        if not address:
            raise UsageError(
                "several nodes need a place to meet: give --rdzv-endpoint HOST:PORT, the same on "
                "all of them; HOST is the node that serves the coordinator"
            )
        given = f"{address}:{parsed.options.master_port or DEFAULT_PORT}"
    return [_endpoint(parsed, part.strip()) for part in given.split(",")]


def _endpoint(parsed: RunParsed, text: str) -> str:
    source = parsed.sources.get("rdzv-endpoint", "--master-addr")
    host, colon, port = text.rpartition(":")
    if not colon or host.endswith(":") or (":" in host and not host.startswith("[")):
        host, port = text, str(DEFAULT_PORT)  # no port, or an IPv6 address without brackets
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"{source} {text}: give HOST:PORT, with a port from 1 to 65535")
    if not may_be_host(host.strip("[]")):
        raise UsageError(f"{source} {text}: {host} cannot be the name of a machine; correct it")
    return f"{host}:{port}"


def _own_address(parsed: RunParsed, endpoints: list[str]) -> str:
    """How the others reach this host: what was given, or from where it reaches the first of these.

    Nobody is asked, so that it does not matter whether somebody listens there. "" = the name is not
    known yet, as that of a machine that is still to come, or there is no route yet; the launcher
    waits for it.
    """
    given = parsed.options.local_addr.strip("[]")
    if given:
        if problem := within(LOOK_UP_S, lambda: _look_up(given), "it was not looked up in time"):
            raise UsageError(
                f"{parsed.source('local-addr')} {given}: {problem}; give an address of this node, "
                "or a name of it, that the others can look up as well"
            )
        return given
    source = _source_of_endpoint(parsed)
    try:
        return first_own_address(endpoints)
    except OSError as error:
        raise UsageError(
            f"{source} {endpoints[0]}: {error.strerror or error}; correct the host, or give "
            "--local-addr with the address of this node"
        ) from None


def _look_up(host: str) -> str:
    """Why there is no such host, "" = there is."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error.strerror or str(error)
    except UnicodeError:
        return "that cannot be the name of a machine"
    return ""


def _check_secrets(found: Nodes, parsed: RunParsed, environ: Mapping[str, str]) -> None:
    """Look at what was given; a token that is made when it is needed comes later."""
    try:
        find_token(environ, Path(found.token_file) if found.token_file else None)
    except TokenError as error:
        source = parsed.sources.get("coordinator-token-file")
        raise UsageError(f"{source}: {error}" if source else str(error)) from None
    if found.tls_ca:
        from undaunted.coordinator.wire.credentials import TlsError
        from undaunted.fault_tolerance.job_access import contexts

        try:
            contexts(found)
        except TlsError as error:
            raise UsageError(f"{parsed.source('coordinator-tls-ca')}: {error}") from None


def _source_of_endpoint(parsed: RunParsed) -> str:
    for name in ("coordinator-store", "rdzv-endpoint"):
        if name in parsed.sources:
            return parsed.sources[name]
    return "--master-addr"


def _infra_rank(parsed: RunParsed, environ: Mapping[str, str]) -> int | None:
    if parsed.is_given("node-rank") and not _of_batch_script(parsed.options.node_rank, environ):
        return parsed.options.node_rank
    try:
        return infrastructure_rank(environ)
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error)) from None


def _of_batch_script(node_rank: int, environ: Mapping[str, str]) -> bool:
    """Return whether ``srun ... --node-rank $SLURM_NODEID`` got a variable from outside of srun."""
    return node_rank == 0 and environ.get("SLURM_NODEID", "") not in ("", "0")


def _domain(environ: Mapping[str, str], node: str) -> str:
    try:
        return nvlink_domain(environ, node)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _conf(parsed: RunParsed) -> dict[str, Any]:
    """Read ``--rdzv-conf``."""
    given: dict[str, str] = parsed.options.rdzv_conf
    source = parsed.source("rdzv-conf")
    conf: dict[str, Any] = {}
    for name, text in given.items():
        if name not in CONF_KEYS:
            known = ", ".join(sorted(CONF_KEYS))
            raise UsageError(f"{source}: {name} is not known; known are {known}")
        try:
            if name in _TIMES:
                conf[_TIMES[name]] = _seconds(text)
            elif name == "replacement_group_size":
                conf[name] = int(text)
            elif name not in _NOT_USED:
                conf[name] = _yes(text)
        except ValueError:
            raise UsageError(f"{source}: {name}={text} cannot be read") from None
    return conf


def _seconds(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise ValueError(text)
    return seconds


def _yes(text: str) -> bool:
    if text.lower() not in {"0", "1", "true", "false", "yes", "no"}:
        raise ValueError(text)
    return text.lower() in {"1", "true", "yes"}


def log_server(parsed: RunParsed, job: Nodes | None, launcher_log: str) -> LogServerConfig | None:
    """Return what is chosen for the log server, None = every launcher writes itself.

    Args:
        parsed: the command line.
        job: its nodes, None = one.
        launcher_log: file of the launcher's lines, "" = none.

    Raises:
        UsageError: something is missing or contradicts itself; the message names the remedy.
    """
    options = parsed.options
    if not options.ft_enable_log_server or job is None:
        return None
    source = parsed.source("ft-enable-log-server")
    if not options.ft_per_cycle_applog_prefix:
        raise UsageError(
            f"{source} writes the logs per round: name them with --ft-per-cycle-applog-prefix"
        )
    root = PurePosixPath(options.ft_per_cycle_applog_prefix).parent
    if launcher_log and root not in PurePosixPath(launcher_log).parents:
        raise UsageError(
            f"{source} writes below {root}, where --ft-per-cycle-applog-prefix is; "
            f"{launcher_log} must be there as well"
        )
    port = options.ft_log_server_port
    if not port:
        raise UsageError(f"--ft-log-server-port {port}: give a port from 1 to 65535")
    return LogServerConfig(
        root=str(root),
        port=port,
        log_prefix=options.ft_log_server_log_prefix,
        grace_s=options.ft_log_server_graceful_shutdown_timeout,
    )
