"""``python -m nvidia_resiliency_ext.fault_tolerance.launcher``, and jobs from Python."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from undaunted.cli.argument_parser import argument_parser
from undaunted.cli.main import main as undaunted_main
from undaunted.cli.options import RUN
from undaunted.fault_tolerance.launch import LaunchError, elastic_launch
from undaunted.fault_tolerance.launch_config import LaunchConfig as UndauntedLaunchConfig

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from undaunted.fault_tolerance.config import FaultToleranceConfig


class LaunchConfig(UndauntedLaunchConfig):
    """See `undaunted.fault_tolerance.LaunchConfig`; here the fault tolerance comes fourth."""

    def __init__(
        self,
        min_nodes: int,
        max_nodes: int,
        nproc_per_node: int | str,
        fault_tol_cfg: FaultToleranceConfig | None = None,
        logs_specs: Any = None,
        **others: Any,
    ) -> None:
        """Keep what to start.

        Args:
            min_nodes: how many nodes take part.
            max_nodes: how many there are, with their spares.
            nproc_per_node: number of ranks; also ``auto``, ``gpu`` or ``cpu``.
            fault_tol_cfg: timeouts, progress and the other settings, None = the defaults.
            logs_specs: torch's ``DefaultLogsSpecs`` or an installed plug-in.
            others: the other fields.

        Raises:
            ValueError: a value makes no sense.
        """
        super().__init__(
            min_nodes, max_nodes, nproc_per_node, logs_specs, fault_tol_cfg=fault_tol_cfg, **others
        )


def get_args_parser() -> argparse.ArgumentParser:
    """Make a parser of the options of ``ft_launcher``, for `FaultToleranceConfig.from_args`.

    ``ft_FIELD`` is None where a setting is not given; the program is ``training_script`` with
    ``training_script_args``.

    Raises:
        ValueError: a variable ``PET_...`` makes no sense.
    """
    return argument_parser(RUN, os.environ)


def main(args: Sequence[str] | None = None) -> None:
    """Run the arguments of ``ft_launcher``, this process's by default.

    Raises:
        SystemExit: the job did not finish; the exit code is that of `undaunted run`.
    """
    if code := undaunted_main(["run", *(sys.argv[1:] if args is None else args)]):
        raise SystemExit(code)


__all__ = ["LaunchConfig", "LaunchError", "elastic_launch", "get_args_parser", "main"]

if __name__ == "__main__":
    main()
