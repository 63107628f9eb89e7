"""Restart inside the process, as in Megatron Bridge's ``training.inprocess_restart``."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.base import torch_ranks
from undaunted.integrations.megatron import fault_tolerance, rerun

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.rank_assignment import Layer

_STORE_TIMEOUT = timedelta(seconds=300)
_CHECK_TIMEOUT = timedelta(seconds=10)
_LOG = logging.getLogger("undaunted")


def maybe_wrap_for_inprocess_restart(
    fn: Callable[..., Any], cfg: Any, state: Any = None
) -> tuple[Callable[..., Any], Any]:
    """Make a function restartable in all ranks, if that is enabled. Every rank calls it.

    The function gets the `undaunted.inprocess.CallWrapper` where it has a parameter annotated so.
    In it a process group is made with ``PrefixStore(str(call.iteration), store)``.

    Args:
        fn: the function, which makes its process group itself.
        cfg: an `InProcessRestartConfig`, None = it is not enabled.
        state: is reset after a fault: by its ``reset_for_restart()``, if it has one; None = there
            is nothing to reset. Sections that its `fault_tolerance` has open are closed, and the
            function makes the machine of `rerun` and the `straggler` manager anew.

    Returns:
        The function as it is and None; or the wrapped one and a store for process groups, to be
        given to it as an argument, where that of the call takes its place. It is no TCPStore with a
        port, see `CallStore`. Without a launcher that brings ranks together, they meet at the
        second port after ``MASTER_PORT``.

    Raises:
        ValueError: a value makes no sense, or contradicts another one; a variable is missing; or
            there is a process group already.
    """
    if cfg is None or not cfg.enabled:
        return fn, None
    if torch_ranks.has_group():
        raise ValueError(
            "a process group was initialized already; let the function that is restarted do it, as "
            "it has to do it again each time"
        )
    _warn_of_logging()
    from undaunted.inprocess import CallWrapper
    from undaunted.inprocess.param_utils import substitute_param_value
    from undaunted.integrations.megatron.call_store import CallStore

    store = CallStore()

    def restarted(*args: Any, undaunted_call: Any, **kwargs: Any) -> Any:
        def own(value: Any) -> Any:  # threads of torch can use it without Python
            return undaunted_call.store if value is store else value

        store.call = undaunted_call
        try:
            args = tuple(own(value) for value in args)
            kwargs = {name: own(value) for name, value in kwargs.items()}
            args, kwargs = substitute_param_value(fn, args, kwargs, {CallWrapper: undaunted_call})
            return fn(*args, **kwargs)
        finally:
            store.call = None

    restarted.__annotations__["undaunted_call"] = CallWrapper
    wrapped = _wrapper(cfg, state, _master_port() + 2)(restarted)
    return functools.wraps(fn)(wrapped), store


def _wrapper(config: Any, state: Any, port: int) -> Any:
    from undaunted import inprocess
    from undaunted.inprocess import abort, finalize, health_check, initialize, rank_assignment
    from undaunted.inprocess import nested_restarter as nested

    rank, ranks = torch_ranks.place()
    active = ranks if config.active_world_size is None else config.active_world_size
    if active > ranks:
        raise ValueError(f"active_world_size is {active}: there are only {ranks} ranks")
    checks: list[Any] = [health_check.CudaHealthCheck(_CHECK_TIMEOUT)]
    if config.max_rank_faults is not None:
        checks.append(health_check.FaultCounter(config.max_rank_faults))
    durations: dict[str, Any] = {
        field.name: timedelta(seconds=getattr(config, field.name))
        for field in dataclasses.fields(inprocess.Wrapper)
        if isinstance(field.default, timedelta)
    }
    resets: list[Any] = [finalize.ThreadedFinalize(_CHECK_TIMEOUT, _reset, (state,))]
    if config.empty_cuda_cache:
        resets.append(finalize.ThreadedFinalize(_CHECK_TIMEOUT, _empty_cache))
    return inprocess.Wrapper(
        store_kwargs={"timeout": _STORE_TIMEOUT, "port": port},
        initialize=inprocess.Compose(
            initialize.RetryController(config.max_iterations, min_world_size=active),
            nested.NestedRestarterHandlingCompleted(),
        ),
        abort=inprocess.Compose(
            abort.AbortTransformerEngine(),
            abort.AbortTorchDistributed(),
            abort.AbortPersistentCheckpointProcesses(),
            nested.NestedRestarterHandlingStarting(),
        ),
        completion=nested.NestedRestarterFinalized(),
        terminate=nested.NestedRestarterAborted(),
        health_check=inprocess.Compose(*checks),
        rank_assignment=rank_assignment.Tree(_layers(config.granularity, active)),
        finalize=inprocess.Compose(*resets),
        monitor_process_logfile=_logfile(config.monitor_process_logdir) if rank == 0 else None,
        **durations,
    )


def _layers(granularity: str, active: int) -> list[Layer]:
    """The job, and if wanted its nodes: one that has lost a rank takes no part any more."""
    from undaunted.inprocess.rank_assignment import Layer, LayerFlag

    layers = [Layer(min_ranks=active, max_ranks=active, flag=LayerFlag.RESERVE)]
    if granularity == "node":
        ranks = torch_ranks.ranks_of_a_node()
        layers.append(
            Layer(
                min_ranks=ranks,
                max_ranks=ranks,
                key_or_fn=lambda _: _node(),
                flag=LayerFlag.RESERVE,
            )
        )
    return layers


def _node() -> str:
    return f"{os.uname().nodename}/{os.environ.get('GROUP_RANK', '')}"


def _reset(state: Any) -> None:
    """Runs after a fault, before the function is called again."""
    from undaunted.attribution.straggler import Detector

    fault_tolerance.abort(state if hasattr(state, "rank_monitor_client") else None)
    rerun.destroy_rerun_state_machine()
    Detector.shutdown()
    reset = getattr(state, "reset_for_restart", None)
    if reset is not None:
        reset()


def _empty_cache() -> None:
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _logfile(folder: str | None) -> str | None:
    """Return the log of the guard, None = without a folder."""
    if folder is None:
        return None
    names = ("SLURM_JOB_ID", "", "SLURM_PROCID", "SLURM_LOCALID")
    parts = [os.environ.get(name, "") if name else os.uname().nodename for name in names]
    return os.path.abspath(os.path.join(folder, f"monitor_{'_'.join(parts)}.log"))  # noqa: PTH100, PTH118


def _master_port() -> int:
    value = os.environ.get("MASTER_PORT", "")
    if not (value.isascii() and value.isdigit() and 0 < int(value) < 65534):
        raise ValueError(f"MASTER_PORT is {value!r}: set it to a port, as launchers do")
    return int(value)


def _warn_of_logging() -> None:
    level = os.environ.get("TORCH_CPP_LOG_LEVEL", "").lower()
    if torch_ranks.place()[0] == 0 and level not in ("error", "fatal"):
        _LOG.warning(
            "set TORCH_CPP_LOG_LEVEL=error before torch is imported: a restart waits in small "
            "steps, and torch would print a warning for each of them"
        )
