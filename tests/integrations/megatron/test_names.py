"""Every public name of Megatron's resiliency, with its signature, is here or left out for a reason.

These are facts about Megatron Bridge, Megatron-LM and what is used with them, by the module here
that takes the place of theirs. Functions may have more parameters here, with defaults.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import signal
from typing import Any

import pytest

MISSING = inspect.Parameter.empty
STATE = {"global_state": None}

# Classes of settings: fields and defaults, in this order.
FIELDS: dict[tuple[str, str], dict[str, Any]] = {
    ("config", "FaultToleranceConfig"): {
        "enable_ft_package": False,
        "calc_ft_timeouts": False,
        "simulate_fault": False,
        "simulated_fault_type": "random",
        "simulated_fault_rank": None,
        "simulated_fault_base_delay": 0,
    },
    ("config", "NVRxStragglerDetectionConfig"): {
        "enabled": False,
        "report_time_interval": 300.0,
        "calc_relative_gpu_perf": True,
        "calc_individual_gpu_perf": True,
        "num_gpu_perf_scores_to_print": 5,
        "gpu_relative_perf_threshold": 0.7,
        "gpu_individual_perf_threshold": 0.7,
        "stop_if_detected": False,
        "enable_logging": True,
        "profiling_interval": 1,
        "logger_name": "megatron.bridge.NVRxStragglerDetection",
    },
    ("config", "TrainingConfig"): {
        "exit_signal_handler": False,
        "exit_signal": signal.SIGTERM,
        "exit_signal_handler_for_dataloader": False,
        "exit_interval": None,
        "exit_duration_in_mins": None,
    },
    ("config", "RerunStateMachineConfig"): {
        "rerun_mode": "disabled",
        "check_for_nan_in_loss": True,
        "check_for_spiky_loss": False,
        "spiky_loss_factor": 10.0,
        "error_injection_rate": 0,
        "error_injection_type": "transient_error",
    },
    ("config", "InProcessRestartConfig"): {
        "enabled": False,
        "max_iterations": None,
        "monitor_thread_interval": 1.0,
        "monitor_process_interval": 1.0,
        "progress_watchdog_interval": 1.0,
        "heartbeat_interval": 30.0,
        "soft_timeout": 60.0,
        "hard_timeout": 90.0,
        "heartbeat_timeout": 60.0,
        "barrier_timeout": 120.0,
        "completion_timeout": 120.0,
        "last_call_wait": 1.0,
        "termination_grace_time": 1.0,
        "granularity": "node",
        "active_world_size": None,
        "empty_cuda_cache": True,
        "max_rank_faults": None,
        "monitor_process_logdir": None,
    },
    ("fault_tolerance", "FaultToleranceState"): {
        "ft_state_path": None,
        "is_persistent_chkpt_loaded": False,
        "is_async_chkpt_enabled": False,
        "is_calculating_timeouts": False,
        "is_setup_section_open": False,
        "seen_checkpoints_cnt": 0,
        "seen_tr_iters_cnt": 0,
        "curr_eval_iter_idx": 0,
    },
}

# Functions and classes: parameters of a call, and their defaults.
SIGNATURES: dict[tuple[str, str], dict[str, Any]] = {
    ("fault_tolerance", "setup"): {"config": MISSING, **STATE},
    ("fault_tolerance", "on_training_step_start"): STATE,
    ("fault_tolerance", "on_training_step_end"): STATE,
    ("fault_tolerance", "on_eval_step_start"): STATE,
    ("fault_tolerance", "on_eval_step_end"): STATE,
    ("fault_tolerance", "on_checkpointing_start"): STATE,
    ("fault_tolerance", "on_checkpointing_end"): {"is_async_finalization": MISSING, **STATE},
    ("fault_tolerance", "on_checkpoint_loaded"): {"is_local_chkpt": MISSING, **STATE},
    ("fault_tolerance", "shutdown"): STATE,
    ("fault_tolerance", "abort"): STATE,
    ("fault_tolerance", "maybe_setup_simulated_fault"): {"config": None},
    ("fault_tolerance", "get_rank_monitor_client"): {},
    ("inprocess_restart", "maybe_wrap_for_inprocess_restart"): {"fn": MISSING, "cfg": MISSING},
    ("signals", "DistributedSignalHandler"): {"sig": signal.SIGTERM},
    ("signals", "DistributedSignalHandler.__enter__"): {},
    ("signals", "DistributedSignalHandler.signals_received"): {},
    ("signals", "DistributedSignalHandler.release"): {},
    ("straggler", "NVRxStragglerDetectionManager"): {"config": MISSING},
    ("straggler", "NVRxStragglerDetectionManager.initialize"): {},
    ("straggler", "NVRxStragglerDetectionManager.wrap_train_step_function"): {
        "train_step_func": MISSING
    },
    ("straggler", "NVRxStragglerDetectionManager.check_stragglers"): {"global_rank": MISSING},
    ("straggler", "NVRxStragglerDetectionManager.shutdown"): {},
    ("straggler", "NVRxStragglerDetectionConfig.finalize"): {},
    ("straggler", "check_nvrx_straggler_detection"): {"manager": MISSING},
    ("straggler", "safe_shutdown_nvrx_straggler_manager"): {
        "manager": MISSING,
        "logger_name": "nvrx_straggler",
    },
    ("rerun", "RerunStateMachine"): {
        "state_save_func": None,
        "state_restore_func": None,
        "mode": "disabled",
        "error_injector": None,
        "result_rejected_tracker_filename": None,
    },
    ("rerun", "RerunStateMachine.should_run_forward_backward"): {"data_iterator": None},
    ("rerun", "RerunStateMachine.should_checkpoint_and_exit"): {},
    ("rerun", "RerunStateMachine.validate_result"): {
        "result": MISSING,
        "rejection_func": MISSING,
        "message": "",
        "comparison_func": None,
        "tolerance": 0.0,
        "fatal": True,
    },
    ("rerun", "RerunStateMachine.is_unexpectedly_large"): {
        "result": MISSING,
        "threshold": MISSING,
        "context": MISSING,
        "num_samples": 100,
        "resample": False,
    },
    ("rerun", "RerunStateMachine.state_dict"): {
        "data_iterator": None,
        "ckpt_format": "torch_dist",
        "force": False,
    },
    ("rerun", "RerunStateMachine.validate_state_dict"): {"state_dict": MISSING},
    ("rerun", "RerunStateMachine.load_state_dict"): {"state_dict": MISSING},
    ("rerun", "RerunStateMachine.get_mode"): {},
    ("rerun", "RerunStateMachine.set_mode"): {"mode": MISSING},
    ("rerun", "RerunStateMachine.get_skipped_iterations_from_tracker_file"): {
        "tracker_file_name": MISSING
    },
    ("rerun", "RerunDataIterator"): {"iterable": MISSING},
    ("rerun", "RerunDataIterator.rewind"): {},
    ("rerun", "RerunDataIterator.advance"): {},
    ("rerun", "RerunDataIterator.state_dict"): {},
    ("rerun", "RerunDataIterator.load_state_dict"): {"state_dict": MISSING},
    ("rerun", "RerunErrorInjector"): {
        "error_injection_rate": 0,
        "error_injection_type": "transient_error",
    },
    ("rerun", "QuickStats"): {"max_size": 100_000},
    ("rerun", "QuickStats.record"): {"data": MISSING},
    ("rerun", "QuickStats.combine"): {"others": MISSING},
    ("rerun", "QuickStats.reset"): {},
    ("rerun", "QuickStats.print_stats"): {},
    ("rerun", "Caller"): {"message": MISSING, "rank": MISSING},
    ("rerun", "Call"): {"caller": MISSING, "sequence": MISSING},
    ("rerun", "get_rerun_state_machine"): {},
    ("rerun", "destroy_rerun_state_machine"): {},
    ("rerun", "get_skipped_iterations_from_tracker_file"): {"tracker_file_name": MISSING},
}

CONSTANTS: dict[tuple[str, str], Any] = {
    ("rerun", "EXIT_CODE_RESUME_TO_DISAMBIGUATE"): 16,
    ("rerun", "EXIT_CODE_FAILED_ON_RESULT_VALIDATION"): 17,
    ("rerun", "COMPARISON_MATCH"): 0.0,
    ("rerun", "COMPARISON_MISMATCH"): math.inf,
    ("rerun", "REPORTING_INTERVAL_ITERATIONS"): 2,
    ("fault_tolerance", "_NUM_WARMUP_ITERS"): 1,
    ("fault_tolerance", "_MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE"): 16,
}

LATER = "an adapter of its own, which is not there yet"
MEGATRON = "Megatron's own, which works as it is"
LEFT_OUT = {
    "ConfigContainer": MEGATRON,
    "GlobalState": MEGATRON,
    "StragglerDetectionConfig": "of Megatron's own detector, which excludes this one",
    "FaultInjectorConfig": "undaunted.shared_utils.inject_fault, and faults of `undaunted run`",
    "PreemptionPlugin": LATER,
    "PreemptionPluginScriptArgs": LATER,
    "FaultTolerancePlugin": LATER,
    "FaultTolerancePluginScriptArgs": LATER,
    "TrainerCallback (transformers)": LATER,
    "Trainer (torchtitan)": "undaunted.integrations.torchtitan",
    "CallbackManager": MEGATRON,
    "ft_ddp (TorchX)": LATER,
}


def found(place: tuple[str, str]) -> Any:
    module, name = place
    value: Any = importlib.import_module(f"undaunted.integrations.megatron.{module}")
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("place", FIELDS, ids=".".join)
def test_fields_and_defaults(place: tuple[str, str]) -> None:
    fields = {field.name: field.default for field in dataclasses.fields(found(place))}
    assert fields == FIELDS[place]
    assert [*fields] == [*FIELDS[place]]


@pytest.mark.parametrize("place", SIGNATURES, ids=".".join)
def test_signatures(place: tuple[str, str]) -> None:
    parameters = dict(inspect.signature(found(place)).parameters)
    parameters.pop("self", None)
    theirs = SIGNATURES[place]
    assert [*parameters][: len(theirs)] == [*theirs]
    for name, default in theirs.items():
        assert parameters[name].default == default, name
    for more in [*parameters.values()][len(theirs) :]:
        assert more.default is not MISSING or more.kind is more.VAR_KEYWORD, more.name


@pytest.mark.parametrize("place", CONSTANTS, ids=".".join)
def test_constants(place: tuple[str, str]) -> None:
    assert found(place) == CONSTANTS[place]


def test_settings_are_given_by_name() -> None:
    for place in FIELDS:
        if place[0] == "config":
            with pytest.raises(TypeError):
                found(place)(True)


def test_what_is_left_out_is_not_there() -> None:
    here = {name.partition(".")[0] for _, name in (*FIELDS, *SIGNATURES, *CONSTANTS)}
    assert here.isdisjoint(LEFT_OUT)
    assert all(LEFT_OUT.values())
