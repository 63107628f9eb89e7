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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, cast

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


_of_process = SimpleNamespace(rank_monitor_client=None, fault_tolerance_state=None)


class _Client(RankMonitorClient):
    """A client with what was seen so far, and the limits that are kept.

    Args:
        warmup_iters: for how many iterations ``step`` is not opened.
    """

    state: FaultToleranceState
    kept: KeptLimits

    def __init__(self, warmup_iters: int) -> None:
        super().__init__()
        self._warmup_iters = warmup_iters

    def open(self, section: str) -> None:
        """Open a section anew: an exception may have left it open."""
        self.close(section)
        if self.is_initialized:
            self.start_section(section)

    def close(self, section: str) -> None:
        """Close a section, if it is open."""
        if self.is_initialized and section in self._measured.open_sections:
            self.end_section(section)

    def begin_step(self, iterations: int) -> None:
        """An iteration begins, after so many."""
        self.end_setup()
        if iterations >= self._warmup_iters:
            self.open(STEP)

    def end_setup(self) -> None:
        """Close ``setup``, once."""
        if self.state.is_setup_section_open:
            self.close(SETUP)
            self.state.is_setup_section_open = False


def _client(global_state: GlobalState | None) -> _Client | None:
    here = _of_process if global_state is None else global_state
    return cast("_Client | None", here.rank_monitor_client)


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
    bridge = hasattr(config, "checkpoint")
    ft, saving = (getattr(config, "ft", None), config.checkpoint) if bridge else (config, config)
    if not getattr(ft, "enable_ft_package", not bridge):
        return
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
    say("FT: initializing...")
    if (before := _client(global_state)) is not None:  # the function was restarted in the process
        before.shutdown_workload_monitoring()
    client = _Client(warmup)
    client.init_workload_monitoring(warmup if global_state is None else given)
    client.kept = kept = KeptLimits(os.fspath(saving.save), _job(client, config), _warn)
    client.state = FaultToleranceState(
        ft_state_path=kept.path,
        is_async_chkpt_enabled=bool(getattr(saving, "async_save", False)),
        is_calculating_timeouts=bool(getattr(ft, "calc_ft_timeouts", False)),
        is_setup_section_open=True,
    )
    here = _of_process if global_state is None else global_state
    here.rank_monitor_client, here.fault_tolerance_state = client, client.state
    client.open(SETUP)  # before what may take its time
    if (step := choose_checkpoint(config)) is not None:
        say(f"FT: iteration {step} is loaded: newer checkpoints have led to failures")
    if place()[0] == 0:
        kept.make_folder()
    _load(client, kept)
    say(f"FT: initialized. Timeouts={client.section_timeouts}")


def shutdown(global_state: GlobalState | None = None) -> None:
    """Calculate limits for the last time, and end monitoring. All ranks call it together."""
    if client := _client(global_state):
        say("FT: closing...")
        client.end_setup()
        _update_timeouts(client, is_closing_ft=True)
        abort(global_state)
        say("FT: closed.")


def abort(global_state: GlobalState | None = None) -> None:
    """End monitoring after an exception: this rank alone, without calculating anything."""
    if client := _client(global_state):
        client.shutdown_workload_monitoring()
        (_of_process if global_state is None else global_state).rank_monitor_client = None


def get_rank_monitor_client(global_state: GlobalState | None = None) -> RankMonitorClient | None:
    """Return the client, None before `setup` and after `shutdown`."""
    return _client(global_state)


# --- what the loop does ---------------------------------------------------------------------------


def on_training_step_start(global_state: GlobalState | None = None) -> None:
    """An iteration of training begins."""
    if client := _client(global_state):
        client.begin_step(client.state.seen_tr_iters_cnt)
        client.state.curr_eval_iter_idx = 0


def on_training_step_end(global_state: GlobalState | None = None) -> None:
    """An iteration of training is over."""
    if client := _client(global_state):
        client.close(STEP)
        client.state.seen_tr_iters_cnt += 1


def on_eval_step_start(global_state: GlobalState | None = None) -> None:
    """An iteration of an evaluation begins; the first ones of each evaluation are warm-up."""
    if client := _client(global_state):
        client.begin_step(client.state.curr_eval_iter_idx)


def on_eval_step_end(global_state: GlobalState | None = None) -> None:
    """An iteration of an evaluation is over."""
    if client := _client(global_state):
        client.close(STEP)
        client.state.curr_eval_iter_idx += 1


def on_checkpointing_start(global_state: GlobalState | None = None) -> None:
    """A checkpoint is about to be saved, or one that is written in the background looked after."""
    if client := _client(global_state):
        client.open(CHECKPOINTING)


def on_checkpointing_end(
    is_async_finalization: bool, global_state: GlobalState | None = None
) -> None:
    """That is done.

    Args:
        is_async_finalization: one that is written in the background was looked after; otherwise all
            ranks come here together, and limits are calculated.
        global_state: see `setup`.
    """
    if client := _client(global_state):
        client.close(CHECKPOINTING)
        if not is_async_finalization:
            client.state.seen_checkpoints_cnt += 1
            _update_timeouts(client, is_closing_ft=False)


def on_checkpoint_loaded(is_local_chkpt: bool, global_state: GlobalState | None = None) -> None:
    """A checkpoint was loaded.

    Args:
        is_local_chkpt: from memory or a local disk, which is faster than what ``setup`` has to
            be prepared for.
        global_state: see `setup`.
    """
    if client := _client(global_state):
        client.state.is_persistent_chkpt_loaded = not is_local_chkpt


# --- limits ---------------------------------------------------------------------------------------


def _update_timeouts(client: _Client, *, is_closing_ft: bool) -> None:
    if not client.state.is_calculating_timeouts:
        return
    update = possible_update(
        client.state, is_closing_ft=is_closing_ft, min_iters=_MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE
    )
    for line in update.why_not:
        say(f"FT: {line}")
    if not update.sections:
        return
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
    else:
        say(f"FT: loaded timeouts from {kept.path}. {client.section_timeouts}")


def _job(client: _Client, config: Any) -> Job:
    limits = client.cfg.rank_section_timeouts if client.cfg is not None else {}
    sections = {SETUP, STEP, CHECKPOINTING, *limits}
    return Job(place()[1], tuple(sorted(sections)), sizes_of(config))


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


def _warn(text: str) -> None:
    _LOG.warning("rank %d: %s", place()[0], text)


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
    given: Any = os.environ.get(DESCRIPTION_VARIABLE) if config is None else None
    if config is not None and config.simulate_fault:
        delay = float(config.simulated_fault_base_delay)
        given = SimulatedFaultParams(
            config.simulated_fault_type, delay, _RANDOM_DELAY * delay, config.simulated_fault_rank
        )
    params = parse_simulated_fault_params(given)
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
