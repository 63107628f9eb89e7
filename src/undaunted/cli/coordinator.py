"""`undaunted coordinator`: a coordinator on a host of its own. Options are those of `run`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from undaunted.cli.cycle_info import cycle_info
from undaunted.cli.directories import make_run_dir
from undaunted.cli.log_server_options import log_server
from undaunted.cli.nodes import nodes
from undaunted.cli.parse import Parsed, UsageError, parse
from undaunted.cli.run import directory_of_run, name_of_run
from undaunted.cli.settings import with_file
from undaunted.fault_tolerance.coordinator_alone import AloneConfig, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_USAGE_ERROR = 2
_HELP = """\
Usage: undaunted coordinator --nnodes MIN:MAX --rdzv-endpoint HOST:PORT [OPTIONS]

Serves the coordination of one job on a host that trains nothing, so that the
job survives the loss of any of its nodes, and of this process: start it again
with the same command, and the ranks never notice.

Launchers are started as without it, with the same --nnodes, --rdzv-endpoint and
--rdzv-id; what concerns the whole job is taken from here. nvrx-control is
another name for this command.

Example:
  undaunted coordinator --nnodes 4:6 --rdzv-endpoint host0:29400 --rdzv-id job7 \\
      --max-restarts 10
  undaunted run --nnodes 4:6 --rdzv-endpoint host0:29400 --rdzv-id job7 train.py

Options, as in undaunted run --help: --nnodes, --elastic, --rdzv-endpoint,
--rdzv-id, --rdzv-conf, --max-restarts, --ft-restart-policy, --ft-segment,
--ft-max-no-progress-cycles, --ft-min-progress-iterations,
--workers-stop-timeout, --term-timeout, --ft-cfg-path, --run-dir,
--coordinator-token-file, --coordinator-tls-ca, -cert and -key,
--ft-cycle-info-dir, --ft-cycle-info-job-id, --ft-per-cycle-applog-prefix (for
the files about rounds), --ft-enable-log-server, --ft-log-*.

It ends with the exit code of the job, or by a signal; then the job goes on for
away_timeout (--rdzv-conf, 60 s).
"""


def main(argv: Sequence[str]) -> int:
    """Serve a job; return the exit code."""
    try:
        parsed = parse(argv, os.environ)
        if parsed.wants_help:
            print(_HELP, end="")
            return 0
        config = build_config(parsed, os.environ, os.getcwd())  # noqa: PTH109 - as in run
    except UsageError as error:
        print(f"undaunted coordinator: error: {error}", file=sys.stderr)
        return _USAGE_ERROR
    return run(config)


def build_config(parsed: Parsed, environ: Mapping[str, str], cwd: str) -> AloneConfig:
    """Check everything and make the run directory.

    Raises:
        UsageError: something cannot work; the message names the value and the remedy.
    """
    if parsed.target:
        raise UsageError(f"{parsed.target}: a coordinator runs no program; see undaunted run")
    parsed, _ = with_file(parsed, cwd)
    values = parsed.values
    name = name_of_run(parsed, environ, alone=False)
    if values["coordinator-store"]:
        source = parsed.sources["coordinator-store"]
        raise UsageError(f"{source}: launchers serve the job themselves then, start those only")
    job = nodes(parsed, environ, "")
    try:
        funnel = log_server(parsed, job, values["ft-per-cycle-applog-prefix"] or "", "")
    except ValueError as error:
        raise UsageError(str(error)) from None
    run_dir, _ = make_run_dir(values["run-dir"], directory_of_run(name, job), cwd)
    return AloneConfig(
        run_id=name,
        run_dir=str(run_dir),
        nodes=job,
        max_restarts=values["max-restarts"],
        max_no_progress_cycles=values["ft-max-no-progress-cycles"],
        min_progress_iterations=values["ft-min-progress-iterations"],
        stop_timeout_s=values["workers-stop-timeout"],
        term_timeout_s=values["term-timeout"],
        funnel=funnel,
        cycle_info=cycle_info(
            parsed, environ, cwd, name, values["ft-per-cycle-applog-prefix"] or ""
        ),
    )
