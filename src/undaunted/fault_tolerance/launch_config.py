"""`LaunchConfig`: what a job from Python is to be, and the command line that says the same."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from undaunted.base.ids import node_name
from undaunted.fault_tolerance.config import REFUSED, FaultToleranceConfig
from undaunted.fault_tolerance.config_file import OF_A_CALL

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DEFAULT_TERM_S = 30
_OPTION = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
# Fields that are refused, and the options of torchrun that say the same.
_REFUSED_FIELDS = {
    "numa_options": "numa-binding",
    "duplicate_stdout_filters": "duplicate-stdout-filters",
    "duplicate_stderr_filters": "duplicate-stderr-filters",
}
# Fields that say the same as the options of their names.
_AS_OPTIONS = (
    "node_name",
    "log_line_prefix_template",
    "coordinator_store",
    "coordinator_token_file",
    "coordinator_tls_ca",
    "coordinator_tls_cert",
    "coordinator_tls_key",
    "metrics_port",
    "metrics_address",
    "metrics_token_file",
    "metrics_tls_cert",
    "metrics_tls_key",
    "otlp_endpoint",
)


@dataclasses.dataclass
class LaunchConfig:
    """The program to start, and how; names and defaults of torch's and NVRx's.

    Attributes:
        min_nodes, max_nodes: number of nodes that take part, and with their spares. Of several
            nodes, each calls `elastic_launch` with the same ``run_id`` and ``rdzv_endpoint``.
        nproc_per_node: number of ranks; also ``auto``, ``gpu`` or ``cpu``.
        logs_specs: torch's ``DefaultLogsSpecs``; says the same as ``log_dir``, ``redirects``,
            ``tee`` and ``local_ranks_filter``, which are left out then.
        run_id: name of the run; "" = a new one by date and time, on one node.
        role: name of the workers in prefixes and ROLE_NAME.
        max_restarts: how often the job may be restarted.
        rdzv_endpoint: ``HOST:PORT`` where several nodes meet.
        rdzv_backend: ``c10d`` or ``static``, which mean the same.
        rdzv_configs: as ``--rdzv-conf``; ``rank`` = place of this node among the nodes.
        rdzv_timeout: seconds; > 0 = ``timeout`` in ``rdzv_configs``.
        elastic: up to ``max_nodes`` take part.
        node_name: name of this node, different from those of the others; None = Slurm's, else the
            host's.
        coordinator_store, coordinator_token_file: as the options of these names.
        coordinator_tls_ca, coordinator_tls_cert, coordinator_tls_key: as the options of these
            names.
        metrics_port, metrics_address, otlp_endpoint: where metrics go, as the options of these
            names; None = nowhere.
        metrics_token_file, metrics_tls_cert, metrics_tls_key: as the options of these names.
        local_addr: MASTER_ADDR of the ranks, None = 127.0.0.1; of several nodes: address of this
            one, None = the one by which it reaches ``rdzv_endpoint``.
        local_ranks_filter: local ranks shown on the console, None = all.
        log_line_prefix_template: prefix of lines that ``tee`` shows, None = torch's.
        shutdown_timeout: seconds from SIGTERM to SIGKILL when ranks are stopped; None = by cause
            before a restart, 30 when the caller is interrupted.
        workers_stop_timeout, term_timeout: the same for a restart, and for an interrupted caller;
            None = ``shutdown_timeout``.
        restart_policy: ``any-failed`` or ``min-healthy``, the same on one node.
        signals_to_handle: names of signals to the launcher that are passed on to the ranks.
        virtual_local_rank: LOCAL_RANK is 0 in every rank, and it sees one GPU.
        event_log_handler: ``null``; the journal has all events.
        numa_options, duplicate_stdout_filters, duplicate_stderr_filters: None; others are refused
            with the remedy.
        monitor_interval, start_method, metrics_cfg: accepted, not used: nothing is polled. Nor are
            ``rdzv_...`` on one node, which needs no meeting point.
        fault_tol_cfg: timeouts, progress and the other settings, None = the defaults.
        run_dir: directory of journal and stacks, None = ``undaunted-runs/RUN_ID``.
        log_dir: directory of redirected output, None = ``logs`` in the run directory.
        redirects: streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both; or by rank,
            ``{0: 3}``.
        tee: streams that go to files and the console, in the same way.
        worker_start: ``warm`` or ``fresh``.
        preload: modules to import once for warm workers.
        inject_fault: fault plan, "" = none.
        options: further options of ``undaunted run`` by their names, ``{"advice": "act"}``; True
            for one without a value, a list for one that is given several times.

    Raises:
        ValueError: a value makes no sense.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int | str
    logs_specs: Any = None
    _: dataclasses.KW_ONLY
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "c10d"
    rdzv_configs: dict[str, Any] = dataclasses.field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = dataclasses.field(default_factory=dict)
    local_addr: str | None = None
    local_ranks_filter: Sequence[int] | None = None
    event_log_handler: str = "null"
    numa_options: None = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: None = None
    duplicate_stderr_filters: None = None
    virtual_local_rank: bool = False
    shutdown_timeout: float | None = None
    workers_stop_timeout: float | None = None
    term_timeout: float | None = None
    restart_policy: str = "any-failed"
    fault_tol_cfg: FaultToleranceConfig | None = None
    run_dir: str | os.PathLike[str] | None = None
    log_dir: str | os.PathLike[str] | None = None
    redirects: int | Mapping[int, int] = 0
    tee: int | Mapping[int, int] = 0
    worker_start: str = "warm"
    preload: Sequence[str] = ()
    inject_fault: str = ""
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    elastic: bool = False
    node_name: str | None = None
    coordinator_store: str | None = None
    coordinator_token_file: str | os.PathLike[str] | None = None
    coordinator_tls_ca: str | os.PathLike[str] | None = None
    coordinator_tls_cert: str | os.PathLike[str] | None = None
    coordinator_tls_key: str | os.PathLike[str] | None = None
    metrics_port: int | None = None
    metrics_address: str | None = None
    metrics_token_file: str | os.PathLike[str] | None = None
    metrics_tls_cert: str | os.PathLike[str] | None = None
    metrics_tls_key: str | os.PathLike[str] | None = None
    otlp_endpoint: str | None = None

    def __post_init__(self) -> None:
        self._check_nodes()
        for name in ("shutdown_timeout", "workers_stop_timeout", "term_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and seconds < 0:
                raise ValueError(f"{name} {seconds}: give 0 or more seconds")
        if not isinstance(self.fault_tol_cfg, FaultToleranceConfig | None):
            raise ValueError(  # noqa: TRY004 - as for all fields
                f"fault_tol_cfg {self.fault_tol_cfg!r}: give a FaultToleranceConfig(...)"
            )
        self._check_options()
        for field, option in _REFUSED_FIELDS.items():
            if getattr(self, field):
                raise ValueError(f"{field} {REFUSED[option]}")
        if self.logs_specs is not None:
            kind = type(self.logs_specs).__name__
            if kind != "DefaultLogsSpecs":
                raise ValueError(f"logs_specs {kind} {REFUSED['logs-specs']}")
            own = ("log_dir", "redirects", "tee", "local_ranks_filter")
            if twice := [name for name in own if getattr(self, name)]:
                raise ValueError(f"logs_specs says what {twice[0]} says; leave one of them out")

    def _check_nodes(self) -> None:
        counts = f"min_nodes {self.min_nodes}, max_nodes {self.max_nodes}"
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(f"{counts}: give 1 or more, min_nodes not above max_nodes")
        if not self.of_several_nodes:
            return
        if not (self.rdzv_endpoint or self.coordinator_store):
            raise ValueError(
                f"{counts}: several nodes need a place to meet: give rdzv_endpoint, HOST:PORT, the "
                "same on all of them; HOST is the node that serves the coordinator"
            )
        if not self.run_id:
            raise ValueError(f"{counts}: give run_id, a name of this job, the same on all nodes")

    def _check_options(self) -> None:
        for name in self.options:
            if not (isinstance(name, str) and _OPTION.fullmatch(name)):
                raise ValueError(f"options {name!r}: give the name of an option, without dashes")
            if reason := REFUSED.get(name.replace("_", "-")):
                raise ValueError(f"options {name!r} {reason}")
            if name.replace("-", "_") in vars(self):
                raise ValueError(f"options {name!r}: LaunchConfig has a field of that name")

    @property
    def of_several_nodes(self) -> bool:
        """Return whether there may be more nodes than this one."""
        return (self.min_nodes, self.max_nodes) != (1, 1)

    @property
    def node(self) -> str:
        """Name of this node."""
        return self.node_name or node_name(os.environ)


def environment() -> dict[str, str]:
    """Return this process's environment without what would change the configuration."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PET_")}


def options(config: LaunchConfig, run_id: str) -> list[str]:
    """Return the options of `undaunted run`."""
    stop = config.shutdown_timeout
    term = _DEFAULT_TERM_S if stop is None else stop
    given: dict[str, object] = {
        "nproc-per-node": config.nproc_per_node,
        "max-restarts": config.max_restarts,
        "rdzv-id": run_id,
        "role": config.role,
        "worker-start": config.worker_start,
        "term-timeout": term if config.term_timeout is None else config.term_timeout,
        "workers-stop-timeout": (
            stop if config.workers_stop_timeout is None else config.workers_stop_timeout
        ),
        "ft-restart-policy": config.restart_policy,
        "signals-to-handle": config.signals_to_handle,
        "event-log-handler": config.event_log_handler,
        "local-addr": config.local_addr,
        "local-ranks-filter": ",".join(map(str, config.local_ranks_filter or ())) or None,
        "run-dir": config.run_dir,
        "log-dir": config.log_dir,
        "redirects": _streams(config.redirects),
        "tee": _streams(config.tee),
        "preload": ",".join(config.preload) or None,
        "inject-fault": config.inject_fault or None,
    }
    given |= {name.replace("_", "-"): getattr(config, name) for name in _AS_OPTIONS}
    given |= _nodes(config)
    if config.logs_specs is not None:
        given |= _of_torch(config.logs_specs)
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    flags = {"virtual-local-rank": config.virtual_local_rank, "elastic": config.elastic}
    words += [f"--{name}" for name, is_given in flags.items() if is_given]
    return [*words, *_further(config.options)]


def _of_torch(specs: Any) -> dict[str, object]:
    """Return the options that say what torch's ``DefaultLogsSpecs`` does."""
    ranks = getattr(specs, "_local_ranks_filter", None) or ()
    return {
        "log-dir": getattr(specs, "_root_log_dir", None) or None,
        "redirects": _streams(getattr(specs, "_redirects", 0)),
        "tee": _streams(getattr(specs, "_tee", 0)),
        "local-ranks-filter": ",".join(map(str, sorted(ranks))) or None,
    }


def _further(given: Mapping[str, object]) -> list[str]:
    """Return options by their names; True = it has no value, False or None = it is not given."""
    words = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is True:
                words.append(option)
            elif each is not None and each is not False:
                words.append(f"{option}={each}")
    return words


def _nodes(config: LaunchConfig) -> dict[str, object]:
    """Return the options by which several nodes meet."""
    if not config.of_several_nodes:
        return {}
    conf = dict(config.rdzv_configs)
    rank = conf.pop("rank", None)
    if config.rdzv_timeout > 0:
        conf["timeout"] = config.rdzv_timeout
    return {
        "nnodes": f"{config.min_nodes}:{config.max_nodes}",
        "rdzv-endpoint": config.rdzv_endpoint or None,
        "rdzv-backend": config.rdzv_backend,
        "rdzv-conf": ",".join(f"{name}={value}" for name, value in conf.items()) or None,
        "node-rank": rank,
        "node-name": config.node,
    }


def _streams(value: int | Mapping[int, int]) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{rank}:{int(streams)}" for rank, streams in value.items()) or "0"
    return str(int(value))


def settings(config: LaunchConfig, directory: Path) -> list[str]:
    """Write ``fault_tol_cfg`` into ``directory``, and return the option that names the file.

    Raises:
        OSError: it cannot be written.
    """
    if config.fault_tol_cfg is None:
        return []
    path = directory / OF_A_CALL
    config.fault_tol_cfg.to_yaml_file(path)
    return [f"--ft-cfg-path={path}"]
