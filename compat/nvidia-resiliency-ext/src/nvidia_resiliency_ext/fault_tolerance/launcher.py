"""``python -m nvidia_resiliency_ext.fault_tolerance.launcher``, and jobs from Python."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from nvidia_resiliency_ext.fault_tolerance.config import FaultToleranceConfig
from undaunted.base import values
from undaunted.base.options import as_text
from undaunted.cli.argument_parser import argument_parser
from undaunted.cli.devices import worker_count
from undaunted.cli.main import main as undaunted_main
from undaunted.cli.nodes import DEFAULT_PORT
from undaunted.cli.options import RUN
from undaunted.fault_tolerance.launch import LaunchError, elastic_launch
from undaunted.fault_tolerance.launch_config import LaunchConfig as UndauntedLaunchConfig

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from nvidia_resiliency_ext.shared_utils.health_check import NodeHealthCheck
    from undaunted.base.options import Option
    from undaunted.fault_tolerance.config import FaultToleranceConfig as UndauntedConfig

# Options that stand in a field of `LaunchConfig` of another name.
_FIELDS = {
    "rdzv_id": "run_id",
    "rdzv_conf": "rdzv_configs",
    "ft_restart_policy": "restart_policy",
}
_KEPT = ("rdzv_conf", "redirects", "tee", "local_ranks_filter", "preload")  # as they are
_ALWAYS = ("max_restarts", "role", "term_timeout")  # LaunchConfig has other defaults
_ELSEWHERE = (
    *("nnodes", "nproc_per_node", "module", "no_python", "run_path"),
    *("ft_cfg_path", "ft_ignore_missing_cfg"),
)

_SIGNALS = ("signals-to-handle",)

_node_health_check: NodeHealthCheck | None = None


class LaunchConfig(UndauntedLaunchConfig):
    """See `undaunted.fault_tolerance.LaunchConfig`; here the fault tolerance comes fourth."""

    def __init__(
        self,
        min_nodes: int,
        max_nodes: int,
        nproc_per_node: int | str,
        fault_tol_cfg: UndauntedConfig | None = None,
        logs_specs: Any = None,
        **others: Any,
    ) -> None:
        """Keep what to start.

        Args:
            min_nodes: how many nodes take part.
            max_nodes: how many there are, with their spares.
            nproc_per_node: number of ranks; also ``auto``, ``gpu`` or ``cpu``.
            fault_tol_cfg: timeouts, progress and the other settings, None = the defaults.
            logs_specs: torch's ``DefaultLogsSpecs``.
            others: the other fields.

        Raises:
            ValueError: a value makes no sense.
        """
        super().__init__(
            min_nodes, max_nodes, nproc_per_node, logs_specs, fault_tol_cfg=fault_tol_cfg, **others
        )


_FIELD_NAMES = {field.name for field in fields(UndauntedLaunchConfig)}


def get_args_parser() -> argparse.ArgumentParser:
    """Make a parser of the options of ``ft_launcher``, for `FaultToleranceConfig.from_args`.

    ``ft_FIELD`` is None where a setting is not given; the program is ``training_script`` with
    ``training_script_args``.

    Raises:
        ValueError: a variable ``PET_...`` makes no sense.
    """
    return argument_parser(RUN, os.environ)


def parse_args(args: Sequence[str] | None) -> argparse.Namespace:
    """Read a command line by `get_args_parser`; None = that of this process.

    Raises:
        SystemExit: it makes no sense; the exit code is 2.
    """
    return get_args_parser().parse_args(args)


def parse_min_max_nnodes(nnodes: str | tuple[int, int]) -> tuple[int, int]:
    """Return the least and the greatest number of nodes, of ``N`` or ``MIN:MAX``.

    Raises:
        ValueError: it is neither.
    """
    return nnodes if isinstance(nnodes, tuple) else values.nodes(str(nnodes))


def determine_local_world_size(nproc_per_node: str | int) -> int:
    """Return the number of ranks of this node, of ``N``, ``auto``, ``gpu`` or ``cpu``.

    Raises:
        ValueError: it is none of these, or there is no GPU.
    """
    return worker_count(values.nproc(str(nproc_per_node)), os.environ)


def get_rdzv_endpoint(args: argparse.Namespace) -> str:
    """Return where the nodes meet, ``HOST:PORT``; "" = nothing says it.

    Without ``rdzv_endpoint`` they meet at ``master_addr``, whatever the backend is.
    """
    host = getattr(args, "master_addr", "")
    meeting = f"{host}:{DEFAULT_PORT}" if host else ""
    return str(getattr(args, "rdzv_endpoint", "") or meeting)


def get_use_env(args: argparse.Namespace) -> bool:
    """Return whether ranks learn their place by variables alone, not by ``--node-rank``."""
    return bool(getattr(args, "use_env", True))


def config_from_args(
    args: argparse.Namespace,
    launcher_pipe_read_fd: int | None = None,  # noqa: ARG001 - the launcher's lines need no pipe
    launcher_log_file: str | None = None,
) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """Return what `elastic_launch` needs for a command line: it, the program, and its arguments.

    Args:
        args: of `parse_args`; what it lacks is at its default.
        launcher_pipe_read_fd: changes nothing.
        launcher_log_file: as ``--ft-nvrx-logfile``.

    Raises:
        OSError, ValueError: the file with settings cannot be read, or a value makes no sense.
    """
    least, most = parse_min_max_nnodes(getattr(args, "nnodes", (1, 1)))
    own: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in _given(args):
        field = _FIELDS.get(name, name)
        (own if field in _FIELD_NAMES else others)[field] = value
    if launcher_log_file:
        others["ft_nvrx_logfile"] = launcher_log_file
    own["rdzv_endpoint"] = get_rdzv_endpoint(args)
    nproc = determine_local_world_size(getattr(args, "nproc_per_node", 1))
    config = FaultToleranceConfig.from_args(args)
    return LaunchConfig(least, most, nproc, config, options=others, **own), *_program(args)


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Run a script in this interpreter, as its main program.

    Args:
        training_script: path of it.
        training_script_args: its arguments.
    """
    sys.argv = [training_script, *training_script_args]
    runpy.run_path(training_script, run_name="__main__")


def launch_agent(
    config: UndauntedLaunchConfig,
    entrypoint: Callable[..., Any] | str | Sequence[str],
    args: Sequence[Any],
) -> dict[int, Any]:
    """Run a job as `elastic_launch` does, and return what each rank returned.

    Raises:
        LaunchError: the job did not finish.
    """
    return elastic_launch(config, entrypoint)(*args)


def run(args: argparse.Namespace) -> None:
    """Run the job of a command line.

    Args:
        args: of `parse_args`.

    Raises:
        LaunchError: the job did not finish.
        OSError, ValueError: see `config_from_args`.
    """
    config, entrypoint, program_args = config_from_args(args)
    launch_agent(config, entrypoint, program_args)


def init_node_health_check(endpoint: str | None) -> None:
    """Make the check that `get_node_health_check` returns.

    Args:
        endpoint: Unix socket of the service that is asked; None or "" = there is none.
    """
    from nvidia_resiliency_ext.shared_utils.health_check import NodeHealthCheck

    global _node_health_check  # noqa: PLW0603 - NVRx's interface
    _node_health_check = NodeHealthCheck(endpoint=endpoint) if endpoint else None


def get_node_health_check() -> NodeHealthCheck | None:
    """Return the check of `init_node_health_check`; None = there is none."""
    return _node_health_check


def main(args: Sequence[str] | None = None) -> None:
    """Run the arguments of ``ft_launcher``, this process's by default.

    Raises:
        SystemExit: the job did not finish; the exit code is that of `undaunted run`.
    """
    if code := undaunted_main(["run", *(sys.argv[1:] if args is None else args)]):
        raise SystemExit(code)


def _given(args: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield the options that are not at their defaults, by name, as LaunchConfig takes them."""
    parser = argument_parser(RUN)
    for option in RUN.options:
        name = option.name.replace("-", "_")
        if name in _ELSEWHERE or option.field.startswith("ft."):
            continue
        default = parser.get_default(name)
        value = getattr(args, name, default)
        if value is None or (value == default and name not in _ALWAYS):
            continue
        yield name, value if name in _KEPT else _text(option, value)


def _text(option: Option, value: Any) -> Any:
    """Return a value as `LaunchConfig` takes it: text, a number, True, or a list of them.

    Raises:
        ValueError: that cannot be done.
    """
    if value is False:
        return "false"
    if isinstance(value, str | int | float):
        return value
    if option.kind.repeat:
        return [as_text(one) for one in value]
    parts = [value]
    if isinstance(value, tuple | list):
        parts = [signal.Signals(one) if option.name in _SIGNALS else one for one in value]
    for mark in (",", "/", ":"):
        text = mark.join(map(as_text, parts))
        try:
            if option.kind.read(text) == value:
                return text
        except ValueError:
            continue
    raise ValueError(f"{option.name} {value!r}: give it as text")


def _program(args: argparse.Namespace) -> tuple[Callable[..., Any] | str, list[str]]:
    script = str(args.training_script)
    words = [str(one) for one in args.training_script_args]
    if getattr(args, "run_path", False):
        return run_script_path, [script, *words]
    if getattr(args, "no_python", False):
        return script, words
    module = ["-m"] if getattr(args, "module", False) else []
    return sys.executable, ["-u", *module, script, *words]


__all__ = [
    "LaunchConfig",
    "LaunchError",
    "config_from_args",
    "determine_local_world_size",
    "elastic_launch",
    "get_args_parser",
    "get_node_health_check",
    "get_rdzv_endpoint",
    "get_use_env",
    "init_node_health_check",
    "launch_agent",
    "main",
    "parse_args",
    "parse_min_max_nnodes",
    "run",
    "run_script_path",
]

if __name__ == "__main__":
    main()
