"""`undaunted run`: from the command line and the environment to a checked RunConfig."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.base import values
from undaunted.base.cgroups import cpu_quota
from undaunted.base.ids import NO_NAME, file_name, new_run_id, node_name
from undaunted.base.options import variable_of
from undaunted.cli.directories import make_log_dir, make_run_dir
from undaunted.cli.messages import UsageError
from undaunted.cli.options import RUN
from undaunted.cli.program import (
    check_interpreter,
    check_program,
    current_directory,
    program_kind,
)
from undaunted.cli.settings import (
    attribution_service,
    check_settings,
    cycle_info,
    gpus_per_numa,
    health_checks,
    launcher_messages,
    limits,
    message_directory,
    metrics,
    with_file,
)
from undaunted.fault_tolerance.run_config import (
    GRACE_VARIABLE,
    SCRIPT_VARIABLE,
    TO_BOTH,
    TO_CONSOLE,
    TO_FILE,
    RunConfig,
    RunSettings,
    Script,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from undaunted.cli.options import RunParsed
    from undaunted.fault_tolerance.nodes_config import Nodes
    from undaunted.fault_tolerance.output.server.config import LogServerConfig
    from undaunted.fault_tolerance.simulated_faults import GpuFailure
    from undaunted.health.check import Settings

_SIMPLE = {75: 0, 16: 1, 17: 1, 18: 1, 19: 1, 93: 1}  # exit codes of jobs as others have them
_STDOUT = 1  # bits of --redirects and --tee
_STDERR = 2
_OLD_LOG_LEVEL = "FT_LAUNCHER_LOGLEVEL"


def main(argv: Sequence[str]) -> int:
    """Run a program under supervision; return the exit code of the launcher."""
    return RUN.run(argv, _run)


def _run(parsed: RunParsed) -> int:
    from undaunted.base import system_calls  # not for a help text

    if objection := system_calls.objection():
        raise UsageError(objection)
    config, notice = build_config(parsed, os.environ, current_directory(), check_interpreter)
    if config.nodes is not None:
        _have_token(config.nodes)
    for line in notice.splitlines():
        config.lines.show(line)
    from undaunted.fault_tolerance.front import run

    code = run(config, _end_for_script)
    return code if config.exit_codes == "all" else _SIMPLE.get(code, code)


def _end_for_script(config: RunConfig) -> None:
    from undaunted.cli.script_lost import end_for_script

    end_for_script(config)


def _have_token(others: Nodes) -> None:
    """Make the token of this user, if none was given: later the job would have begun."""
    from undaunted.coordinator.wire.credentials import TokenError
    from undaunted.fault_tolerance.job_access import token

    try:
        token(others)
    except TokenError as error:
        raise UsageError(str(error)) from None


def build_config(
    parsed: RunParsed,
    environ: Mapping[str, str],
    cwd: str,
    ask: Callable[[str], None] | None = None,
) -> tuple[RunConfig, str]:
    """Check everything and make the directories, in this order; nothing is started.

    Args:
        parsed: the command line.
        environ: of this process.
        cwd: where it is.
        ask: whether ranks can run in an interpreter; raises UsageError if not.

    Returns:
        The configuration, and lines for the user ("" if there is nothing to say).

    Raises:
        UsageError: something cannot work; the message names the value and the remedy.
    """
    parsed, file_notice = with_file(parsed, cwd)
    options = parsed.options
    kind, python = program_kind(parsed, RUN), _interpreter(parsed, environ, cwd, ask)
    check_contradictions(parsed)
    check_settings(parsed, environ)
    nproc = _resolve_nproc(parsed, environ)
    _check_devices(parsed, environ, nproc)
    output = _output(parsed, nproc)
    several = not options.standalone and options.nnodes != (1, 1)
    faults = _fault_plan(options.inject_fault, None if several else nproc)
    gpu_failures = _gpu_failures(environ)
    metrics_config = metrics(parsed, environ, cwd)
    rank_limits, limits_notice = limits(parsed, environ)
    checks, per_numa = health_checks(parsed, environ, cwd), gpus_per_numa(environ)
    liveness_port = _liveness_port(environ)
    place = _place(parsed, environ, cwd, output, several=several)
    others, applog_prefix = place.others, output.applog_prefix
    if output.is_for_service:
        applog_prefix = str(place.log_dir / "ranks.log")
    as_given = {name: getattr(options, name) for name in RunSettings.__struct_fields__}
    if others is not None and others.endpoints and not options.rdzv_endpoint:
        as_given["master_port"] = 0  # that of --master-port is where the nodes meet
    config = RunConfig(
        **as_given,
        run_id=place.run_id,
        node=place.node,
        nodes=others,
        nproc_per_node=nproc,
        kind=kind,
        target=parsed.target,
        args=list(parsed.args),
        cwd=cwd,
        run_dir=str(place.run_dir),
        log_dir=str(place.log_dir),
        stdout=output.stdout,
        stderr=output.stderr,
        console_ranks=output.console_ranks,
        limits=rank_limits,
        min_healthy=options.ft_restart_policy == "min-healthy",
        gpu_failures=gpu_failures,
        infra_rank=_infra_rank(environ) if gpu_failures else 0,
        faults=faults,
        master_addr=_master_addr(parsed),
        python=python,
        gpus_per_numa=per_numa,
        applog_prefix=applog_prefix,
        attribution_service=output.service,
        attribution_may_end_job=options.ft.attribution_stop_action == "no-restart",
        log_server=_log_server(parsed, others),
        cycle_info=cycle_info(parsed, environ, cwd, place.run_id, applog_prefix),
        metrics=metrics_config,
        liveness_port=liveness_port,
        slurm="SLURM_JOB_ID" in environ,
        slurm_task=_is_task(environ),
        grace_s=_grace_s(environ),
        health_checks=_with_own_places(checks, place.run_dir, place.log_dir),
        launcher_log=options.ft_nvrx_logfile
        or launcher_messages(message_directory(environ, cwd))
        or place.launcher_log,
        script=place.script,
    )
    notices = (
        _old_variable(parsed),
        RUN.unknown_variables(environ),
        _unknown_keys(parsed, others),
        *_absent_ranks(parsed, nproc),
        *_slips_in_slurm(environ, others, nproc),
        _ranks_by_quota(parsed, nproc),
        file_notice,
        limits_notice,
        place.notice,
    )
    return config, "\n".join(filter(None, notices))


def _interpreter(
    parsed: RunParsed, environ: Mapping[str, str], cwd: str, ask: Callable[[str], None] | None
) -> str:
    """Return the interpreter of the ranks, if it and the program are there; see `build_config`."""
    kind, given = program_kind(parsed, RUN), environ.get("PYTHON_EXEC", "")
    python = given or sys.executable
    check_program(kind, parsed.target, cwd, python, environ)
    if ask is not None and given and kind != "program":
        ask(given)
    return python


class _Output(NamedTuple):
    """The ways of what ranks print.

    Attributes:
        stdout, stderr: of each rank, see `RunConfig`.
        console_ranks: likewise.
        service: attribution's, likewise.
        applog_prefix: likewise, as it was given.
        is_for_service: logs are kept for the service alone.
    """

    stdout: list[int]
    stderr: list[int]
    console_ranks: list[int] | None
    service: str
    applog_prefix: str
    is_for_service: bool

    @property
    def is_kept(self) -> bool:
        """Whether there will be files."""
        return any([*self.stdout, *self.stderr]) or bool(self.applog_prefix)


def _output(parsed: RunParsed, nproc: int) -> _Output:
    options, console_ranks = parsed.options, _console_ranks(parsed, nproc)
    stdout, stderr = (
        _destinations(options.redirects, options.tee, stream, nproc, console_ranks)
        for stream in (_STDOUT, _STDERR)
    )
    if options.log_max_bytes and {*stdout, *stderr} == {TO_CONSOLE}:
        raise UsageError(
            f"{parsed.source('log-max-bytes')} is about files of --redirects and --tee, and there "
            "are none; add --redirects 3, or --tee 3 to see the output as well"
        )
    service, applog_prefix = attribution_service(parsed), options.ft_per_cycle_applog_prefix
    is_for_service = bool(service) and not applog_prefix
    if is_for_service:
        # It gets a log: keep one, and show the lines all the same.
        stdout = [where or TO_BOTH for where in stdout]
        stderr = [where or TO_BOTH for where in stderr]
    return _Output(stdout, stderr, console_ranks, service, applog_prefix, is_for_service)


class _Place(NamedTuple):
    """The run, this node in it, and its directories.

    Attributes:
        node, others, run_id, script: see `RunConfig`.
        run_dir, log_dir: likewise; they are there.
        launcher_log: likewise, where nothing else is chosen.
        notice: a line for the user, "" = there is none.
    """

    node: str
    others: Nodes | None
    run_id: str
    script: Script | None
    run_dir: Path
    log_dir: Path
    launcher_log: str
    notice: str


def _place(
    parsed: RunParsed, environ: Mapping[str, str], cwd: str, output: _Output, *, several: bool
) -> _Place:
    options = parsed.options
    node = options.node_name or _node_name(environ, several=several)
    others = _other_nodes(parsed, environ, node, several=several)
    run_id = name_of_run(parsed, environ, alone=others is None)
    default = directory_of_run(run_id, others)
    run_dir, notice = make_run_dir(options.run_dir, default, cwd)
    log_dir = run_dir / ("logs" if others is None else f"logs-{file_name(node)}")
    script = _script(environ) if others is not None else None
    if output.is_kept or (script is not None and options.log_dir is not None):
        log_dir = make_log_dir(options.log_dir, default, run_dir, cwd)
    launcher_log = "" if script is None else str(run_dir / f"launcher-{file_name(node)}.log")
    return _Place(node, others, run_id, script, run_dir, log_dir, launcher_log, notice)


def _script(environ: Mapping[str, str]) -> Script | None:
    """Return the script that `undaunted srun` runs in, where it has started this launcher."""
    text = environ.get(SCRIPT_VARIABLE, "")
    try:
        script = msgspec.json.decode(text, type=Script) if text else None
    except msgspec.DecodeError:
        return None
    same = script is not None and script.job == environ.get("SLURM_JOB_ID")
    return script if same else None  # else it is that of a job in which this one was submitted


def _slips_in_slurm(environ: Mapping[str, str], others: Nodes | None, nproc: int) -> Iterator[str]:
    """Yield a line about each way in which a job of Slurm has started this launcher by mistake."""
    if "SLURM_JOB_ID" not in environ:
        return
    from undaunted.services.slurm.allocation import slips

    endpoints = others.endpoints if others is not None else []
    yield from slips(
        environ,
        several=others is not None,
        endpoint=endpoints[0].rpartition(":")[0].strip("[]") if endpoints else "",
        ranks=nproc,
        cpus=len(os.sched_getaffinity(0)),
    )


def _is_task(environ: Mapping[str, str]) -> bool:
    if "SLURM_STEP_ID" not in environ:
        return False
    from undaunted.services.slurm.allocation import is_task

    return is_task(environ)


def _grace_s(environ: Mapping[str, str]) -> float:
    text = environ.get(GRACE_VARIABLE, "")
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) else 0.0


def _log_server(parsed: RunParsed, others: Nodes | None) -> LogServerConfig | None:
    if others is None:
        return None
    from undaunted.cli.nodes import log_server

    return log_server(parsed, others, parsed.options.ft_nvrx_logfile)


def _old_variable(parsed: RunParsed) -> str:
    name = _OLD_LOG_LEVEL
    if parsed.sources.get("ft-log-level") != name:
        return ""
    return f"{name} is deprecated: use --ft-log-level or {variable_of('ft-log-level')}"


def check_contradictions(parsed: RunParsed) -> None:
    """Refuse options that exclude one another.

    Raises:
        UsageError: two of them do; says which.
    """
    options = parsed.options
    if options.preload and options.worker_start == "fresh":
        raise UsageError(
            "--preload imports modules for warm workers, but --worker-start is fresh; "
            "leave one of them out"
        )
    if options.log_max_bytes and options.ft_per_cycle_applog_prefix:
        raise UsageError(
            f"{parsed.source('log-max-bytes')} is about files of --redirects and --tee, not about "
            f"those of {parsed.source('ft-per-cycle-applog-prefix')}; leave one of them out"
        )
    if parsed.is_given("strike-limit") and not options.strike_file:
        raise UsageError(
            f"{parsed.source('strike-limit')} is about failed checks that are remembered, and none "
            "are: give --strike-file FILE as well"
        )
    if options.restart_intensity is not None and not options.max_restarts:
        raise UsageError(
            f"{parsed.source('restart-intensity')} needs --max-restarts, which is 0: "
            "give both, such as --max-restarts 1000"
        )
    if options.restart_lost_ranks and options.ft_restart_policy != "min-healthy":
        raise UsageError(
            f"{parsed.source('ft-restart-lost-ranks')}: without --ft-restart-policy min-healthy a "
            "rank that is lost ends the round; give both"
        )


def _resolve_nproc(parsed: RunParsed, environ: Mapping[str, str]) -> int:
    wanted = parsed.options.nproc_per_node
    if isinstance(wanted, int):
        return wanted
    from undaunted.cli.devices import worker_count

    try:
        return worker_count(wanted, environ)
    except ValueError as error:
        raise UsageError(f"{parsed.source('nproc-per-node')} {error}") from None


def _ranks_by_quota(parsed: RunParsed, nproc: int) -> str:
    """Say that the number of ranks is a limit of CPU time, if it is."""
    wanted, cpus = parsed.options.nproc_per_node, len(os.sched_getaffinity(0))
    if isinstance(wanted, int) or nproc >= cpus or nproc != cpu_quota():
        return ""
    return (
        f"{parsed.source('nproc-per-node')} {wanted}: {nproc}, as the control group of this "
        f"process limits its CPU time (the machine lets it use {cpus} CPUs)"
    )


def _check_devices(parsed: RunParsed, environ: Mapping[str, str], nproc: int) -> None:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if parsed.options.virtual_local_rank and visible is not None:
        devices = len(visible.split(","))
        if devices < nproc:
            raise UsageError(
                f"{parsed.source('virtual-local-rank')} gives each of {nproc} workers its "
                f"own GPU, but CUDA_VISIBLE_DEVICES={visible} has {devices}; lower --nproc-per-node"
            )


def _console_ranks(parsed: RunParsed, nproc: int) -> list[int] | None:
    wanted = parsed.options.local_ranks_filter
    if not wanted:
        return None
    shown = [rank for rank in wanted if rank < nproc]
    if not shown:
        raise UsageError(
            f"{parsed.source('local-ranks-filter')} {','.join(map(str, wanted))} shows none of "
            f"the local ranks 0 to {nproc - 1}; name at least one of them"
        )
    return shown


def _absent_ranks(parsed: RunParsed, nproc: int) -> Iterator[str]:
    """Yield a line about each option that names local ranks beyond ``nproc``: it may be a slip.

    They are not refused: torchrun ignores them as well, and nodes may differ in their ranks.
    """
    options = parsed.options
    for name, given in (
        ("redirects", options.redirects),
        ("tee", options.tee),
        ("local-ranks-filter", options.local_ranks_filter),
    ):
        ranks = [] if isinstance(given, int) else sorted(rank for rank in given if rank >= nproc)
        if ranks:
            there = "0" if nproc == 1 else f"0 to {nproc - 1}"
            yield (
                f"{parsed.source(name)} names local rank{'s' * (len(ranks) > 1)} "
                f"{', '.join(map(str, ranks))}, which this node does not have (it has {there}): "
                "ignored; correct it, or --nproc-per-node"
            )


def _unknown_keys(parsed: RunParsed, others: Nodes | None) -> str:
    given = parsed.options.rdzv_conf
    if not given or others is not None or parsed.options.standalone:
        return ""  # `nodes` has looked at them; or all are ignored
    from undaunted.cli.nodes import CONF_KEYS

    if not (unknown := sorted(set(given) - CONF_KEYS)):
        return ""
    return (
        f"{parsed.source('rdzv-conf')}: {', '.join(unknown)} mean"
        f"{'s' * (len(unknown) == 1)} nothing here; known are {', '.join(sorted(CONF_KEYS))}"
    )


def _destinations(
    redirects: int | dict[int, int],
    tee: int | dict[int, int],
    stream: int,
    nproc: int,
    console_ranks: list[int] | None,
) -> list[int]:
    """Say for each local rank where one of its streams goes.

    Output that is not to be shown is kept in a file, not thrown away.
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


def _fault_plan(plans: Sequence[str], ranks: int | None) -> str:
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


def _with_own_places(checks: Settings, *directories: Path) -> Settings:
    """Have room looked for where the launcher and the ranks write, unless places are named."""
    own = tuple(str(each) for each in directories if each.exists())
    return checks._replace(disk_paths=checks.disk_paths or own)


def _liveness_port(environ: Mapping[str, str]) -> int | None:
    name = "TORCHELASTIC_HEALTH_CHECK_PORT"
    if not (text := environ.get(name, "").strip()):
        return None
    try:
        return values.port(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _infra_rank(environ: Mapping[str, str]) -> int:
    from undaunted.fault_tolerance.topology import infrastructure_rank

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
    parsed: RunParsed, environ: Mapping[str, str], node: str, *, several: bool
) -> Nodes | None:
    if several:
        from undaunted.cli.nodes import nodes

        return nodes(parsed, environ, node)
    options = parsed.options
    for name, value, alone in (
        ("node-rank", options.node_rank, (0,)),
        ("ft-segment", options.ft.segment, (None, 1)),
        ("coordinator-store", options.coordinator_store, ("",)),
    ):
        if value not in alone:
            raise UsageError(
                f"{parsed.source(name)} {value}: there is one node; leave it out, or give --nnodes"
            )
    return None


def name_of_run(parsed: RunParsed, environ: Mapping[str, str], *, alone: bool) -> str:
    """Name the run: as told, or by its start; several launchers must find the same name."""
    given = parsed.options.rdzv_id
    if given not in {"", NO_NAME} and not parsed.options.standalone:
        return given
    if alone:
        return new_run_id()
    job = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    return f"slurm-{job}" if job else NO_NAME


def directory_of_run(run_id: str, others: Nodes | None) -> str:
    """Name the directories of a run: without a name, by the place where it meets."""
    unnamed = run_id == NO_NAME and others is not None and others.endpoints
    return file_name(others.endpoints[0] if unnamed and others is not None else run_id)


def _master_addr(parsed: RunParsed) -> str:
    address = parsed.options.master_addr or parsed.options.local_addr or "127.0.0.1"
    return address[1:-1] if address.startswith("[") and address.endswith("]") else address
