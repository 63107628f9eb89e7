"""`undaunted run`: from the command line and the environment to a checked RunConfig."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from undaunted.base.ids import file_name, new_run_id, node_name
from undaunted.cli import attribution
from undaunted.cli.cycle_info import cycle_info
from undaunted.cli.directories import make_log_dir, make_run_dir
from undaunted.cli.ft_options import option_name
from undaunted.cli.health import health_checks
from undaunted.cli.log_server_options import log_server
from undaunted.cli.messages import launcher_messages, message_directory
from undaunted.cli.metrics import metrics
from undaunted.cli.option import OTHER_VARIABLES, variable_of
from undaunted.cli.parse import Parsed, UsageError, parse
from undaunted.cli.program import check_program, program_kind
from undaunted.cli.settings import check_settings, gpus_per_numa, limits, with_file
from undaunted.cli.variables import unknown_variables
from undaunted.fault_tolerance.run_config import TO_BOTH, TO_CONSOLE, TO_FILE, RunConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.fault_tolerance.funnel.config import FunnelConfig
    from undaunted.fault_tolerance.nodes_config import Nodes
    from undaunted.fault_tolerance.simulated_faults import GpuFailure

USAGE_ERROR = 2  # exit code
_NO_NAME = "none"  # of several launchers: none knows when the others were started
_STDOUT = 1  # bits of --redirects and --tee
_STDERR = 2


def main(argv: Sequence[str]) -> int:
    """Run a program under supervision; return the exit code of the launcher."""
    try:
        parsed = parse(argv, os.environ)
        if parsed.wants_help:
            from undaunted.cli.help import run_help

            print(run_help(), end="")
            return 0
        config, notice = build_config(parsed, os.environ, _current_directory())
    except UsageError as error:
        print(f"undaunted run: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    for line in notice.splitlines():
        print(f"[undaunted] {line}", file=sys.stderr)
    from undaunted.fault_tolerance.front import run

    return run(config)


def build_config(parsed: Parsed, environ: Mapping[str, str], cwd: str) -> tuple[RunConfig, str]:
    """Check everything and make the directories, in this order; nothing is started.

    Returns:
        The configuration, and lines for the user ("" if there is nothing to say).

    Raises:
        UsageError: something cannot work; the message names the value and the remedy.
    """
    parsed, file_notice = with_file(parsed, cwd)
    values = parsed.values
    kind = program_kind(parsed)
    python = environ.get("PYTHON_EXEC") or sys.executable
    check_program(kind, parsed.target, cwd, python, environ)
    _check_contradictions(parsed)
    check_settings(parsed, environ)
    nproc = _resolve_nproc(parsed, environ)
    _check_devices(parsed, environ, nproc)
    console_ranks = _console_ranks(parsed, nproc)
    stdout = _destinations(values["redirects"], values["tee"], _STDOUT, nproc, console_ranks)
    stderr = _destinations(values["redirects"], values["tee"], _STDERR, nproc, console_ranks)
    service = attribution.service(parsed)
    applog_prefix: str = values["ft-per-cycle-applog-prefix"] or ""
    logs_for_service = bool(service) and not applog_prefix
    if logs_for_service:
        # It is told of a log: keep one, and show the lines all the same.
        stdout = [where or TO_BOTH for where in stdout]
        stderr = [where or TO_BOTH for where in stderr]
    several = not values["standalone"] and values["nnodes"] != (1, 1)
    faults = _fault_plan(values["inject-fault"], None if several else nproc)
    gpu_failures = _gpu_failures(environ)
    metrics_config = metrics(parsed, environ, cwd)
    rank_limits, limits_notice = limits(parsed, environ)

    message_dir = message_directory(environ, cwd)
    node = values["node-name"] or _node_name(environ, several=several)
    others = _other_nodes(parsed, environ, node, several=several)
    run_id = name_of_run(parsed, environ, alone=others is None)
    place = directory_of_run(run_id, others)
    run_dir, dir_notice = make_run_dir(values["run-dir"], place, cwd)
    log_dir = run_dir / "logs"
    if any([*stdout, *stderr]) or applog_prefix or values["logs-specs"]:
        log_dir = make_log_dir(values["log-dir"], place, run_dir, cwd)
    if logs_for_service:
        applog_prefix = str(log_dir / "ranks.log")
    config = RunConfig(
        run_id=run_id,
        node=node,
        nodes=others,
        nproc_per_node=nproc,
        max_restarts=values["max-restarts"],
        kind=kind,
        target=parsed.target,
        args=parsed.args,
        cwd=cwd,
        run_dir=str(run_dir),
        log_dir=str(log_dir),
        stdout=stdout,
        stderr=stderr,
        console_ranks=console_ranks,
        term_timeout_s=values["term-timeout"],
        stop_timeout_s=values["workers-stop-timeout"],
        worker_start=values["worker-start"],
        preload=[name for names in values["preload"] for name in names],
        limits=rank_limits,
        rank_termination_signal=int(values["ft-rank-termination-signal"]),
        exception_hook=values["ft-install-exception-hook"],
        min_healthy=values["ft-restart-policy"] == "min-healthy",
        restart_lost_ranks=values["ft-restart-lost-ranks"],
        gpu_failures=gpu_failures,
        infra_rank=_infra_rank(environ) if gpu_failures else 0,
        faults=faults,
        signals=tuple(values["signals-to-handle"]),
        virtual_local_rank=values["virtual-local-rank"],
        role=values["role"],
        master_addr=_master_addr(parsed),
        master_port=values["master-port"],
        python=python,
        local_prefix=environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
        or "[${role_name}${rank}]:",
        max_no_progress_cycles=values["ft-max-no-progress-cycles"],
        min_progress_iterations=values["ft-min-progress-iterations"],
        checkpoint_iteration_file=values["ft-checkpoint-iteration-file"] or "",
        last_copies_mb_per_s=values["ft-last-copies-mb-per-s"],
        gpu_memory_reclaim_timeout_s=values["ft-gpu-memory-reclaim-timeout"],
        gpu_memory_tolerance_mb=values["ft-gpu-memory-tolerance-mb"],
        gpu_memory_poll_interval_s=values["ft-gpu-memory-poll-interval"],
        check_remaining_processes=values["ft-check-remaining-processes"],
        gpus_per_numa=gpus_per_numa(environ),
        numa_bind_strict=values["ft-numa-bind-strict"],
        safety_factor=values["ft-safety-factor"],
        log_level=values["ft-log-level"],
        applog_prefix=applog_prefix,
        attribution_service=service,
        attribution_may_end_job=values["ft-attribution-stop-action"] == "no-restart",
        funnel=_funnel(parsed, others, values["ft-nvrx-logfile"] or ""),
        cycle_info=cycle_info(parsed, environ, cwd, run_id, applog_prefix),
        metrics=metrics_config,
        node_health_socket=values["ft-node-health-check-endpoint"] or "",
        health_checks=health_checks(parsed, cwd),
        health_check_interval_s=values["ft-node-health-check-interval"],
        launcher_log=values["ft-nvrx-logfile"] or launcher_messages(message_dir),
        logs_specs=values["logs-specs"],
        stdout_filters=values["duplicate-stdout-filters"],
        stderr_filters=values["duplicate-stderr-filters"],
    )
    variables = (_old_variable(parsed), unknown_variables(environ))
    notices = (*variables, file_notice, limits_notice, dir_notice)
    return config, "\n".join(filter(None, notices))


def _funnel(parsed: Parsed, others: Nodes | None, launcher_log: str) -> FunnelConfig | None:
    prefix: str = parsed.values["ft-per-cycle-applog-prefix"] or ""
    try:
        return log_server(parsed, others, prefix, launcher_log)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _old_variable(parsed: Parsed) -> str:
    name = OTHER_VARIABLES["ft-log-level"]
    if parsed.sources.get("ft-log-level") != name:
        return ""
    return f"{name} is deprecated: use --ft-log-level or {variable_of('ft-log-level')}"


def _current_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - pathlib gives the same, wrapped
    except FileNotFoundError:
        raise UsageError("the current directory no longer exists; cd to one that does") from None


def _check_contradictions(parsed: Parsed) -> None:
    values = parsed.values
    if values["preload"] and values["worker-start"] == "fresh":
        raise UsageError(
            "--preload imports modules for warm workers, but --worker-start is fresh; "
            "leave one of them out"
        )
    if values["ft-restart-lost-ranks"] and values["ft-restart-policy"] != "min-healthy":
        raise UsageError(
            f"{parsed.sources['ft-restart-lost-ranks']}: without --ft-restart-policy min-healthy a "
            "rank that is lost ends the round; give both"
        )


def _resolve_nproc(parsed: Parsed, environ: Mapping[str, str]) -> int:
    wanted = parsed.values["nproc-per-node"]
    if isinstance(wanted, int):
        return wanted
    from undaunted.cli.devices import cpu_count, gpu_count

    if wanted == "cpu":
        return cpu_count()
    gpus = gpu_count(environ)
    if gpus == 0 and wanted == "gpu":
        raise UsageError(
            f"{parsed.sources['nproc-per-node']} gpu: no NVIDIA or AMD GPU is visible here (see "
            "CUDA_VISIBLE_DEVICES); give the number of workers, or auto"
        )
    return gpus or cpu_count()


def _check_devices(parsed: Parsed, environ: Mapping[str, str], nproc: int) -> None:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if parsed.values["virtual-local-rank"] and visible is not None:
        devices = len(visible.split(","))
        if devices < nproc:
            raise UsageError(
                f"{parsed.sources['virtual-local-rank']} gives each of {nproc} workers a GPU of "
                f"its own, but CUDA_VISIBLE_DEVICES={visible} has {devices}; lower --nproc-per-node"
            )


def _console_ranks(parsed: Parsed, nproc: int) -> list[int] | None:
    wanted: list[int] = parsed.values["local-ranks-filter"]
    if not wanted:
        return None
    shown = [rank for rank in wanted if rank < nproc]
    if not shown:
        raise UsageError(
            f"{parsed.sources['local-ranks-filter']} {','.join(map(str, wanted))} shows none of "
            f"the local ranks 0 to {nproc - 1}; name at least one of them"
        )
    return shown


def _destinations(
    redirects: int | dict[int, int],
    tee: int | dict[int, int],
    stream: int,
    nproc: int,
    console_ranks: list[int] | None,
) -> list[int]:
    """Say for each local rank where one of its streams goes.

    Ranks beyond ``nproc`` in a map are ignored, as torchrun does. Output that is not to be shown is
    kept in a file, not thrown away.
    """
    destinations = []
    for rank in range(nproc):
        hidden = console_ranks is not None and rank not in console_ranks
        if _bits(tee, rank) & stream:
            destinations.append(TO_FILE if hidden else TO_BOTH)
        elif _bits(redirects, rank) & stream or hidden:
            destinations.append(TO_FILE)
        else:
            destinations.append(TO_CONSOLE)
    return destinations


def _bits(streams: int | dict[int, int], rank: int) -> int:
    return streams if isinstance(streams, int) else streams.get(rank, 0)


def _fault_plan(plans: list[str], ranks: int | None) -> str:
    """Join the plans and let their owner read them, so that a mistake is reported at once.

    How many ranks several nodes have together is not known yet: None.
    """
    if not plans:
        return ""
    from undaunted.faults.plan import FaultPlan

    joined = ";".join(plans)
    try:
        plan = FaultPlan.parse(joined)
        if ranks is not None:
            plan.check_ranks(ranks)
    except ValueError as error:
        raise UsageError(f"--inject-fault: {error}") from None
    return joined


def _gpu_failures(environ: Mapping[str, str]) -> tuple[GpuFailure, ...]:
    text = environ.get("NVRX_INJECT_GPU_FAILURE", "").strip()
    if not text:
        return ()
    from undaunted.fault_tolerance.simulated_faults import parse_gpu_failures

    try:
        return parse_gpu_failures(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _infra_rank(environ: Mapping[str, str]) -> int:
    from undaunted.coordinator.topology import infrastructure_rank

    try:
        return infrastructure_rank(environ) or 0
    except RuntimeError:
        return 0  # in a Slurm job, but not started by srun: the only node
    except ValueError as error:
        raise UsageError(str(error)) from None


def _node_name(environ: Mapping[str, str], *, several: bool) -> str:
    if not several:
        return node_name(environ)
    from undaunted.cli.nodes import launcher_name

    return launcher_name(environ)


def _other_nodes(
    parsed: Parsed, environ: Mapping[str, str], node: str, *, several: bool
) -> Nodes | None:
    if several:
        from undaunted.cli.nodes import nodes

        return nodes(parsed, environ, node)
    for name, alone in (
        ("node-rank", (0,)),
        (option_name("segment"), (None, 1)),
        ("coordinator-store", ("",)),
    ):
        value = parsed.values[name]
        if value not in alone:
            raise UsageError(
                f"{parsed.sources[name]} {value}: there is one node; leave it out, or give --nnodes"
            )
    return None


def name_of_run(parsed: Parsed, environ: Mapping[str, str], *, alone: bool) -> str:
    """Name the run: as told, or by its start; several launchers must find the same name."""
    given: str = parsed.values["rdzv-id"]
    if given not in {"", _NO_NAME} and not parsed.values["standalone"]:
        return given
    if alone:
        return new_run_id()
    job = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    return f"slurm-{job}" if job else _NO_NAME


def directory_of_run(run_id: str, others: Nodes | None) -> str:
    """Name the directories of a run: without a name of its own, by the place where it meets."""
    unnamed = run_id == _NO_NAME and others is not None and others.endpoints
    return file_name(others.endpoints[0] if unnamed and others is not None else run_id)


def _master_addr(parsed: Parsed) -> str:
    address: str = parsed.values["master-addr"] or parsed.values["local-addr"] or "127.0.0.1"
    return address[1:-1] if address.startswith("[") and address.endswith("]") else address
