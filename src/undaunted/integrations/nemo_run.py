"""Adapter to NeMo-Run: the launcher `Undaunted`, and plug-ins with the names of Megatron Bridge.

    executor = run.SlurmExecutor(..., launcher=Undaunted(max_restarts=10), retries=3)

docs/nemo-run.md says more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable  # noqa: TC003 - NeMo-Run reads the types of fields
from dataclasses import dataclass
from typing import Any, NoReturn

__all__ = [
    "FaultTolerancePlugin",
    "FaultTolerancePluginScriptArgs",
    "PreemptionPlugin",
    "PreemptionPluginScriptArgs",
    "Undaunted",
]

_log = logging.getLogger(__name__)


class _Missing:
    """Stands for classes of NeMo-Run, so that this module can be imported without it."""

    def __new__(cls, *_: object, **__: object) -> NoReturn:
        raise ImportError(f"{cls.__name__} needs NeMo-Run: pip install undaunted[nemo-run]")


_Launcher: Any = _Missing
_Plugin: Any = _Missing
try:
    import nemo_run as run
except ImportError:
    pass
else:
    _Launcher, _Plugin = run.FaultTolerance, run.Plugin


@dataclass(kw_only=True)
class Undaunted(_Launcher):  # type: ignore[misc]
    """NeMo-Run starts `undaunted run`, under its name `ft_launcher`, on each node.

    The fields are those of `nemo_run.FaultTolerance`. Each other option of `undaunted run` is a
    variable of the executor, such as ``env_vars={"PET_ADVICE": "act"}``.

    Attributes:
        max_restarts: how often ranks may be restarted; ``retries`` of the executor says how often
            the scheduler starts the whole job again.
    """

    max_restarts: int | None = 3


@dataclass
class FaultTolerancePluginScriptArgs:
    """The argument of ``script_args_converter_fn`` of `FaultTolerancePlugin`."""

    enable_ft_package: bool
    calc_ft_timeouts: bool


@dataclass
class PreemptionPluginScriptArgs:
    """The argument of ``script_args_converter_fn`` of `PreemptionPlugin`."""

    enable_exit_handler: bool
    enable_exit_handler_for_data_loader: bool


@dataclass(kw_only=True)
class FaultTolerancePlugin(_Plugin):  # type: ignore[misc]
    """Has a task of Megatron Bridge run under `Undaunted`, with its own integration on.

    Attributes:
        enable_ft_package: the value of ``ft.enable_ft_package``.
        calc_ft_timeouts: the value of ``ft.calc_ft_timeouts``.
        num_in_job_restarts: how often ranks may be restarted.
        num_job_retries_on_failure: how often in a row the scheduler starts a failed job again.
        initial_rank_heartbeat_timeout: seconds until the first heartbeat of a rank.
        rank_heartbeat_timeout: seconds between two heartbeats.
        script_args_converter_fn: makes the arguments of a script that does not take overrides of
            Megatron Bridge; a function of a module, as NeMo-Run keeps its name.
    """

    enable_ft_package: bool = True
    calc_ft_timeouts: bool = True
    num_in_job_restarts: int = 3
    num_job_retries_on_failure: int = 2
    initial_rank_heartbeat_timeout: int = 1800
    rank_heartbeat_timeout: int = 300
    script_args_converter_fn: Callable[[FaultTolerancePluginScriptArgs], list[str]] | None = None

    def setup(self, task: Any, executor: Any) -> None:
        """Change a task and its executor; NeMo-Run calls it."""
        executor.launcher = Undaunted(
            max_restarts=self.num_in_job_restarts,
            initial_rank_heartbeat_timeout=self.initial_rank_heartbeat_timeout,
            rank_heartbeat_timeout=self.rank_heartbeat_timeout,
        )
        executor.retries = self.num_job_retries_on_failure
        # NeMo-Run counts what does not end with 0 as a failure; to be preempted is none.
        executor.env_vars.setdefault("PET_EXIT_CODES", "simple")
        values = FaultTolerancePluginScriptArgs(self.enable_ft_package, self.calc_ft_timeouts)
        if isinstance(task, run.Script):
            _extend(self, task, values, _fault_tolerance_overrides)
        elif (config := _config_of(self, task)) is not None:
            _fault_tolerance_config(config, values)


@dataclass(kw_only=True)
class PreemptionPlugin(_Plugin):  # type: ignore[misc]
    """Has a task of Megatron Bridge save and end when its time is nearly over.

    Attributes:
        preempt_time: seconds before the time limit at which Slurm sends SIGTERM.
        enable_exit_handler: the value of ``train.exit_signal_handler``.
        enable_exit_handler_for_data_loader: that of ``train.exit_signal_handler_for_dataloader``.
        script_args_converter_fn: as in `FaultTolerancePlugin`.
    """

    preempt_time: int = 60
    enable_exit_handler: bool = True
    enable_exit_handler_for_data_loader: bool = False
    script_args_converter_fn: Callable[[PreemptionPluginScriptArgs], list[str]] | None = None

    def setup(self, task: Any, executor: Any) -> None:
        """Change a task and its executor; NeMo-Run calls it."""
        if isinstance(executor, run.SlurmExecutor):
            # Other schedulers say by themselves that a job has to end.
            executor.signal = f"TERM@{self.preempt_time}"
        if not self.enable_exit_handler:
            return
        values = PreemptionPluginScriptArgs(
            self.enable_exit_handler, self.enable_exit_handler_for_data_loader
        )
        if isinstance(task, run.Script):
            _extend(self, task, values, _preemption_overrides)
        elif (config := _config_of(self, task)) is not None:
            config.train.exit_signal_handler = values.enable_exit_handler
            config.train.exit_signal_handler_for_dataloader = (
                values.enable_exit_handler_for_data_loader
            )


def _extend(plugin: Any, script: Any, values: Any, default: Callable[[Any], list[str]]) -> None:
    added = (plugin.script_args_converter_fn or default)(values)
    script.args.extend(added)
    if added:
        _log.info("%s added CLI overrides: %s", type(plugin).__name__, ", ".join(added))


def _fault_tolerance_overrides(values: FaultTolerancePluginScriptArgs) -> list[str]:
    return [
        f"ft.enable_ft_package={str(values.enable_ft_package).lower()}",
        f"ft.calc_ft_timeouts={str(values.calc_ft_timeouts).lower()}",
    ]


def _preemption_overrides(values: PreemptionPluginScriptArgs) -> list[str]:
    return [
        f"train.exit_signal_handler={values.enable_exit_handler}",
        f"train.exit_signal_handler_for_dataloader={values.enable_exit_handler_for_data_loader}",
    ]


def _config_of(plugin: Any, partial: Any) -> Any:
    """Return the container of settings that the task's function gets, None = it has none."""
    config = getattr(partial, "config", None)
    if config is None:
        _log.info("%s changed the executor only: no argument 'config'", type(plugin).__name__)
    return config


def _fault_tolerance_config(config: Any, values: FaultTolerancePluginScriptArgs) -> None:
    if getattr(config, "ft", None) is None:
        from undaunted.integrations.megatron.config import FaultToleranceConfig

        # Parts of a container that is still to be made are still to be made.
        is_recipe = isinstance(config, run.Config)
        config.ft = run.Config(FaultToleranceConfig) if is_recipe else FaultToleranceConfig()
    config.ft.enable_ft_package = values.enable_ft_package
    config.ft.calc_ft_timeouts = values.calc_ft_timeouts
    profiling: Any = getattr(config, "profiling", None)
    if getattr(profiling, "use_nsys_profiler", False):
        _log.warning("Nsys not supported with the FaultTolerancePlugin: it is turned off.")
        profiling.use_nsys_profiler = False
