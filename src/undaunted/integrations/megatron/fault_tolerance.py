"""Sections and calculated limits, under the names of Megatron Bridge and of Megatron-LM.

Functions of Megatron Bridge (``training.fault_tolerance``) take a state, those of Megatron-LM
(``training.ft_integration``) keep one for the process; here ``global_state`` may be left out.
Before `setup`, and after `shutdown`, all others do nothing.

    setup(config)
    for batch in batches:
        on_training_step_start()
        train(batch)
        on_training_step_end()
    shutdown()

Nothing here raises because monitoring failed, because a disk is full, or because a section was left
open by an exception.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from undaunted.base.torch_ranks import place
from undaunted.fault_tolerance.kept_limits import Job, KeptLimits
from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClient
from undaunted.fault_tolerance.section_limits import (
    CHECKPOINTING,
    SETUP,
    STEP,
    FaultToleranceState,
    possible_update,
)
from undaunted.fault_tolerance.simulated_faults import (
    DESCRIPTION_VARIABLE,
    SimulatedFaultParams,
    parse_simulated_fault_params,
    setup_simulated_fault,
)
from undaunted.integrations.megatron.checkpoints import choose_checkpoint
from undaunted.integrations.megatron.ranks import say

if TYPE_CHECKING:
    from undaunted.faults.trigger import Trigger

_NUM_WARMUP_ITERS = 1  # of Megatron Bridge
_LM_NUM_WARMUP_ITERS = 5
_MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE = 16
_RANDOM_DELAY = 0.2  # of the base delay of a simulated fault
_LOG = logging.getLogger("undaunted")
_SIZES = (  # which decide how long a step takes
    "num_layers",
    "hidden_size",
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)


class GlobalState(Protocol):
    """The attributes that are used of Megatron Bridge's object of this name, or of any other one.

    Attributes:
        rank_monitor_client: None before `setup`, and after `shutdown`.
        fault_tolerance_state: what was seen so far.
    """

    rank_monitor_client: Any
    fault_tolerance_state: Any


@dataclass
class _OfProcess:
    """Stands for the state of those who do not give one."""

    rank_monitor_client: _Client | None = None
    fault_tolerance_state: FaultToleranceState | None = None


class _Client(RankMonitorClient):
    """A client that knows for how many iterations it does not open ``step``, and what is kept."""

    kept: KeptLimits

    def __init__(self, warmup_iters: int) -> None:
        super().__init__()
        self.warmup_iters = warmup_iters

    def open(self, section: str) -> None:
        """Open a section anew: an exception may have left it open."""
        self.close(section)
        if self.is_initialized:
            self.start_section(section)

    def close(self, section: str) -> None:
        """Close a section, if it is open."""
        if self.is_initialized and section in self._measured.open_sections:
            self.end_section(section)


class _Seen(NamedTuple):
    client: _Client
    state: FaultToleranceState


_of_process = _OfProcess()


# --- begin and end --------------------------------------------------------------------------------


def setup(config: Any, global_state: GlobalState | None = None) -> None:
    """Begin to be monitored, in section ``setup``.

    Args:
        config: of Megatron Bridge: ``ft`` is a `FaultToleranceConfig`; ``checkpoint`` has ``save``,
            the folder where calculated limits are kept, and ``async_save``. Or the arguments of
            Megatron-LM: ``save``, ``async_save``, ``calc_ft_timeouts``, ``ft_num_warmup_iters``.
            If it is not enabled, nothing is done. ``load`` and ``ckpt_step``: see
            `checkpoints.choose_checkpoint`.
        global_state: gets the client and what is seen; None = they are those of the process.

    Raises:
        ValueError: there is no folder, or a value of the configuration makes no sense.
    """
    settings = _settings(config, global_state)
    if settings is None:
        return
    say("FT: initializing...")
    here = _of_process if global_state is None else global_state
    if here.rank_monitor_client is not None:  # the function was restarted inside the process
        here.rank_monitor_client.shutdown_workload_monitoring()
    client = _Client(settings.warmup_iters)
    client.init_workload_monitoring(num_warmup_iters=settings.told_warmup_iters)
    client.kept = kept = KeptLimits(settings.folder, _job(client, config), _warn)
    state = FaultToleranceState(
        ft_state_path=kept.path,
        is_async_chkpt_enabled=settings.async_save,
        is_calculating_timeouts=settings.calculate,
        is_setup_section_open=True,
    )
    here.rank_monitor_client, here.fault_tolerance_state = client, state
    client.open(SETUP)  # before what may take its time
    if (step := choose_checkpoint(config)) is not None:
        say(f"FT: iteration {step} is loaded: newer checkpoints have led to failures")
    if place()[0] == 0:
        kept.make_folder()
    _load(client, kept)
    say(f"FT: initialized. Timeouts={client.section_timeouts}")


def shutdown(global_state: GlobalState | None = None) -> None:
    """Calculate limits for the last time, and end monitoring. All ranks call it together."""
    if (seen := _seen(global_state)) is None:
        return
    say("FT: closing...")
    _close_setup(seen)
    _update_timeouts(seen, is_closing_ft=True)
    _forget(seen.client, global_state)
    say("FT: closed.")


def abort(global_state: GlobalState | None = None) -> None:
    """End monitoring after an exception: this rank alone, without calculating anything."""
    if (seen := _seen(global_state)) is not None:
        _forget(seen.client, global_state)


def get_rank_monitor_client(global_state: GlobalState | None = None) -> RankMonitorClient | None:
    """Return the client, None before `setup` and after `shutdown`."""
    here = _of_process if global_state is None else global_state
    return cast("RankMonitorClient | None", here.rank_monitor_client)


# --- what the loop does ---------------------------------------------------------------------------


def on_training_step_start(global_state: GlobalState | None = None) -> None:
    """An iteration of training begins."""
    if (seen := _seen(global_state)) is None:
        return
    _close_setup(seen)
    if seen.state.seen_tr_iters_cnt >= seen.client.warmup_iters:
        seen.client.open(STEP)
    seen.state.curr_eval_iter_idx = 0


def on_training_step_end(global_state: GlobalState | None = None) -> None:
    """An iteration of training is over."""
    if (seen := _seen(global_state)) is None:
        return
    seen.client.close(STEP)
    seen.state.seen_tr_iters_cnt += 1


def on_eval_step_start(global_state: GlobalState | None = None) -> None:
    """An iteration of an evaluation begins; the first ones of each evaluation are warm-up."""
    if (seen := _seen(global_state)) is None:
        return
    _close_setup(seen)
    if seen.state.curr_eval_iter_idx >= seen.client.warmup_iters:
        seen.client.open(STEP)


def on_eval_step_end(global_state: GlobalState | None = None) -> None:
    """An iteration of an evaluation is over."""
    if (seen := _seen(global_state)) is None:
        return
    seen.client.close(STEP)
    seen.state.curr_eval_iter_idx += 1


def on_checkpointing_start(global_state: GlobalState | None = None) -> None:
    """A checkpoint is about to be saved, or one that is written in the background looked after."""
    if (seen := _seen(global_state)) is not None:
        seen.client.open(CHECKPOINTING)


def on_checkpointing_end(
    is_async_finalization: bool, global_state: GlobalState | None = None
) -> None:
    """That is done.

    Args:
        is_async_finalization: one that is written in the background was looked after; otherwise all
            ranks come here together, and limits are calculated.
        global_state: see `setup`.
    """
    if (seen := _seen(global_state)) is None:
        return
    seen.client.close(CHECKPOINTING)
    if not is_async_finalization:
        seen.state.seen_checkpoints_cnt += 1
        _update_timeouts(seen, is_closing_ft=False)


def on_checkpoint_loaded(is_local_chkpt: bool, global_state: GlobalState | None = None) -> None:
    """A checkpoint was loaded.

    Args:
        is_local_chkpt: from memory or a local disk, which is faster than what ``setup`` has to
            be prepared for.
        global_state: see `setup`.
    """
    if (seen := _seen(global_state)) is not None:
        seen.state.is_persistent_chkpt_loaded = not is_local_chkpt


# --- limits ---------------------------------------------------------------------------------------


def _update_timeouts(seen: _Seen, *, is_closing_ft: bool) -> None:
    if not seen.state.is_calculating_timeouts:
        return
    update = possible_update(
        seen.state, is_closing_ft=is_closing_ft, min_iters=_MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE
    )
    for line in update.why_not:
        say(f"FT: {line}")
    if not update.sections:
        return
    client = seen.client
    say(
        f"FT: updating timeouts for: {update.sections} update out-of-section: "
        f"{update.out_of_section} ..."
    )
    kept = client.kept
    if update.calculate(client) and place()[0] == 0 and kept.save(client.state_dict()):
        say(f"FT: updated timeouts saved to {kept.path}. {client.section_timeouts}")


def _load(client: _Client, kept: KeptLimits) -> None:
    if not kept.load_into(client):
        return
    if client.loaded_section_timeouts is None:
        _warn(f"{kept.path} is not used: it has no limits of sections")
        return
    say(f"FT: loaded timeouts from {kept.path}. {client.section_timeouts}")


def _job(client: _Client, config: Any) -> Job:
    sections = {SETUP, STEP, CHECKPOINTING}
    if client.cfg is not None:
        sections |= set(client.cfg.rank_section_timeouts)
    return Job(place()[1], tuple(sorted(sections)), sizes_of(config))


# --- configuration --------------------------------------------------------------------------------


class _Settings(NamedTuple):
    folder: str
    async_save: bool
    calculate: bool
    warmup_iters: int  # in which section ``step`` is not opened
    told_warmup_iters: int | None  # for the launcher


def _settings(config: Any, global_state: GlobalState | None) -> _Settings | None:
    """Read either kind of configuration; None = this is not enabled."""
    if hasattr(config, "checkpoint"):
        saving, ft = config.checkpoint, getattr(config, "ft", None)
        if ft is None or not ft.enable_ft_package:
            return None
    else:
        saving = ft = config
        if not getattr(config, "enable_ft_package", True):
            return None
    given = getattr(ft, "ft_num_warmup_iters", None)
    default = _LM_NUM_WARMUP_ITERS if global_state is None else _NUM_WARMUP_ITERS
    warmup = default if given is None else given
    if type(warmup) is not int or warmup < 0:
        raise ValueError(f"ft_num_warmup_iters is {warmup!r}: give a whole number from 0")
    if not getattr(saving, "save", None):
        raise ValueError(
            "the folder for checkpoints, which calculated limits are kept in, is not given: set "
            "checkpoint.save (Megatron-LM: --save)"
        )
    return _Settings(
        os.fspath(saving.save),
        bool(getattr(saving, "async_save", False)),
        bool(getattr(ft, "calc_ft_timeouts", False)),
        warmup,
        warmup if global_state is None else given,
    )


def sizes_of(config: object) -> dict[str, int]:
    """Return the sizes of a model and its batches that a configuration has.

    Args:
        config: of Megatron Bridge, which has them in ``model`` and ``train``, or the arguments of
            Megatron-LM.
    """
    parts = [config, getattr(config, "model", None), getattr(config, "train", None)]
    found = {}
    for name in _SIZES:
        values = [getattr(part, name, None) for part in parts]
        number = next((value for value in values if type(value) is int), None)
        if number is not None:
            found[name] = number
    return found


# --- simulated faults -----------------------------------------------------------------------------


def maybe_setup_simulated_fault(config: Any = None) -> Trigger | None:
    """Have a rank fail after a while, in every round anew, for tests. Every rank calls it.

    All ranks of a round choose the same one, without talking to each other.

    Args:
        config: a `FaultToleranceConfig` with ``simulate_fault``; None = as ``FT_SIM_FAULT_DESC``
            says, see `undaunted.fault_tolerance.simulated_faults`.

    Returns:
        In the rank that is to fail: what ``close`` disarms. None in others.

    Raises:
        ValueError: the fault cannot be read, or is for a rank that the job does not have.
    """
    params = _fault_params(config)
    if params is None:
        return None
    wanted = "random" if params.rank_to_fail is None else params.rank_to_fail
    say(
        f"FT: Initializing simulated fault: {params.fault_type},rank to fail: {wanted}, "
        f"base delay: {params.base_delay}"
    )
    rank, ranks = place()
    here = {"RANK": f"{rank}", "WORLD_SIZE": f"{ranks}"}
    return setup_simulated_fault(params, {**os.environ, **here})


def _fault_params(config: Any) -> SimulatedFaultParams | None:
    if config is None:
        return parse_simulated_fault_params(os.environ.get(DESCRIPTION_VARIABLE))
    if not config.simulate_fault:
        return None
    delay = float(config.simulated_fault_base_delay)
    return SimulatedFaultParams(
        config.simulated_fault_type, delay, _RANDOM_DELAY * delay, config.simulated_fault_rank
    )


# --- leaves ---------------------------------------------------------------------------------------


def _seen(global_state: GlobalState | None) -> _Seen | None:
    here = _of_process if global_state is None else global_state
    client = here.rank_monitor_client
    return None if client is None else _Seen(client, cast("Any", here.fault_tolerance_state))


def _close_setup(seen: _Seen) -> None:
    if seen.state.is_setup_section_open:
        seen.client.close(SETUP)
        seen.state.is_setup_section_open = False


def _forget(client: _Client, global_state: GlobalState | None) -> None:
    client.shutdown_workload_monitoring()
    here = _of_process if global_state is None else global_state
    here.rank_monitor_client = None


def _warn(text: str) -> None:
    _LOG.warning("rank %d: %s", place()[0], text)
