"""`undaunted coordinator`: a coordinator on a separate host. Options are those of `run`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from undaunted.cli.command import Command
from undaunted.cli.directories import make_run_dir
from undaunted.cli.messages import UsageError
from undaunted.cli.nodes import log_server, nodes
from undaunted.cli.options import GROUPS, RUN, RunOptions
from undaunted.cli.run import directory_of_run, name_of_run
from undaunted.cli.settings import cycle_info, with_file
from undaunted.fault_tolerance.coordinator_alone import AloneConfig, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.cli.options import RunParsed

COORDINATOR = Command(
    "coordinator",
    RunOptions,
    "--nnodes N --rdzv-endpoint HOST:PORT [OPTIONS]",
    """\
Serves the coordination of one job on a host that trains nothing, so that the
job survives the loss of any of its nodes, and of this process: start it again
with the same command, and the ranks never notice.

Launchers are started as without it, with the same --nnodes, --rdzv-endpoint and
--rdzv-id; what concerns the whole job is taken from here. nvrx-control is
another name for this command.

Example:
  undaunted coordinator --nnodes 4:6 --rdzv-endpoint host0:29400 \\
      --rdzv-id job7 --max-restarts 10
  undaunted run --nnodes 4:6 --rdzv-endpoint host0:29400 --rdzv-id job7 train.py
""",
    "It ends with the exit code of the job, or by a signal; then the job goes on for away_timeout "
    "(--rdzv-conf, 60 s). It takes all options and variables of undaunted run; those that are not "
    "listed here are for launchers.",
    groups=GROUPS,
    shown=(
        "nnodes",
        "elastic",
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "max-restarts",
        "restart-intensity",
        "advice",
        "slow-ranks",
        "slow-ranks-after",
        "ft-restart-policy",
        "ft-segment",
        "ft-max-no-progress-cycles",
        "ft-min-progress-iterations",
        "workers-stop-timeout",
        "term-timeout",
        "ft-cfg-path",
        "run-dir",
        "coordinator-token-file",
        "coordinator-tls-ca",
        "coordinator-tls-cert",
        "coordinator-tls-key",
        "ft-cycle-info-dir",
        "ft-cycle-info-job-id",
        "ft-per-cycle-applog-prefix",
        "ft-enable-log-server",
        "ft-log-server-port",
        "ft-log-server-log-prefix",
        "ft-log-server-graceful-shutdown-timeout",
    ),
    operand="SCRIPT",
    is_program=True,
    has_variables=True,
    accepted=RUN.accepted,
    refused=RUN.refused,
)


def main(argv: Sequence[str]) -> int:
    """Serve a job; return the exit code."""
    return COORDINATOR.run(argv, _run)


def _run(parsed: RunParsed) -> int:
    return run(build_config(parsed, os.environ, os.getcwd()))  # noqa: PTH109 - as in run


def build_config(parsed: RunParsed, environ: Mapping[str, str], cwd: str) -> AloneConfig:
    """Check everything and make the run directory.

    Raises:
        UsageError: something cannot work; the message names the value and the remedy.
    """
    if parsed.target:
        raise UsageError(f"{parsed.target}: a coordinator runs no program; see undaunted run")
    parsed, _ = with_file(parsed, cwd)
    options = parsed.options
    name = name_of_run(parsed, environ, alone=False)
    if options.coordinator_store:
        source = parsed.source("coordinator-store")
        raise UsageError(f"{source}: launchers serve the job themselves then, start those only")
    job = nodes(parsed, environ, "")
    server = log_server(parsed, job, "")
    run_dir, _ = make_run_dir(options.run_dir, directory_of_run(name, job), cwd)
    return AloneConfig(
        run_id=name,
        run_dir=str(run_dir),
        nodes=job,
        max_restarts=options.max_restarts,
        restart_intensity=options.restart_intensity,
        ft=options.ft,
        stop_timeout_s=options.stop_timeout_s,
        term_timeout_s=options.term_timeout_s,
        advice=options.advice,
        slow_ranks=options.slow_ranks,
        slow_ranks_after_s=options.slow_ranks_after_s,
        log_server=server,
        cycle_info=cycle_info(parsed, environ, cwd, name, options.ft_per_cycle_applog_prefix),
    )
