"""The names of NVRx's callbacks, with their parameters, are here and in their old places.

These are facts about NVRx 0.4 to 0.6. Lightning is not needed.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from undaunted.integrations import lightning

MISSING = inspect.Parameter.empty
HEARTBEATS = {
    "autoresume": MISSING,
    "calculate_timeouts": MISSING,
    "simulated_fault_params": None,
    "exp_dir": None,
    "logger_name": "nemo_logger.FaultToleranceCallback",
}
IO = {"local_ckpt_manager": MISSING, "get_global_ckpt_iteration_fn": MISSING, "async_save": False}
PARAMETERS: dict[str, dict[str, Any]] = {
    "FaultToleranceCallback": HEARTBEATS,
    "FaultToleranceSectionsCallback": {**HEARTBEATS, "exc_handling_policy": None},
    "StragglerDetectionCallback": {
        "report_time_interval": MISSING,
        "calc_relative_gpu_perf": MISSING,
        "calc_individual_gpu_perf": MISSING,
        "num_gpu_perf_scores_to_print": MISSING,
        "gpu_relative_perf_threshold": MISSING,
        "gpu_individual_perf_threshold": MISSING,
        "stop_if_detected": MISSING,
        "enable_ptl_logging": MISSING,
        "profiling_interval": 1,
        "logger_name": "nemo_logger.StragglerDetectionCallback",
    },
    "SimulatedFaultParams": {
        "fault_type": MISSING,
        "base_delay": MISSING,
        "rand_delay": 0.0,
        "rank_to_fail": None,
    },
    "LocalCheckpointCallback": {"every_n_train_steps": None, "train_time_interval": None},
    "HierarchicalCheckpointIO": {"wrapped_checkpoint_io": MISSING, **IO},
}
METHODS = {
    "save_checkpoint": {"checkpoint": MISSING, "path": MISSING, "storage_options": None},
    "get_partial_wrapper_constructor": IO,
    "to_tensor_aware_state_dict": {"checkpoint": MISSING},
}
PLACES = {
    "": [
        "FaultToleranceCallback",
        "FaultToleranceSectionsCallback",
        "SimulatedFaultParams",
        "StragglerDetectionCallback",
    ],
    ".fault_tolerance_callback": ["FaultToleranceCallback", "SimulatedFaultParams"],
    ".fault_tolerance_sections_callback": ["FaultToleranceSectionsCallback"],
    ".straggler_det_callback": ["StragglerDetectionCallback"],
    ".local_checkpoint_callback": [
        "HierarchicalCheckpointIO",
        "LOCAL_CKPT_OPTS_KEY",
        "LocalCheckpointCallback",
    ],
    "._utils": ["SimulatedFaultParams"],
}


def parameters_of(function: Any) -> dict[str, Any]:
    found = inspect.signature(function).parameters.items()
    return {name: one.default for name, one in found if name != "self"}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_defaults(name: str) -> None:
    found = parameters_of(getattr(lightning, name).__init__)
    assert [*found.items()] == [*PARAMETERS[name].items()]


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_the_io(name: str) -> None:
    assert parameters_of(getattr(lightning.HierarchicalCheckpointIO, name)) == METHODS[name]


@pytest.mark.parametrize("place", PLACES)
def test_old_places(place: str) -> None:
    module = importlib.import_module(f"nvidia_resiliency_ext.ptl_resiliency{place}")
    for name in PLACES[place]:
        assert getattr(module, name) is getattr(lightning, name)


def test_the_key_of_options() -> None:
    assert lightning.LOCAL_CKPT_OPTS_KEY == "local_checkpoint_options"
    assert set(PARAMETERS) | {"LOCAL_CKPT_OPTS_KEY"} <= set(lightning.__all__)
