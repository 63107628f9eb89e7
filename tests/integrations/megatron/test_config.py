"""Bad values are named, with what to give. Fields and defaults are in test_names.py."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from undaunted.integrations.megatron import config


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("FaultToleranceConfig", {"simulated_fault_type": "boom"}, "'boom': give one of rank_hung"),
        ("FaultToleranceConfig", {"simulated_fault_rank": -1}, "from 0 or None"),
        ("FaultToleranceConfig", {"simulated_fault_rank": True}, "from 0 or None"),
        ("FaultToleranceConfig", {"simulated_fault_base_delay": float("nan")}, "from 0"),
        ("FaultToleranceConfig", {"enable_ft_package": "yes"}, "'yes': give True or False"),
        ("InProcessRestartConfig", {"granularity": "rack"}, "'rack': give one of node, rank"),
        ("InProcessRestartConfig", {"max_iterations": 0}, "from 1 or None"),
        ("InProcessRestartConfig", {"soft_timeout": 0}, "0: give a number of seconds above 0"),
        ("RerunStateMachineConfig", {"rerun_mode": "on"}, "report_determinism_stats"),
        ("RerunStateMachineConfig", {"spiky_loss_factor": 0}, "a number above 0"),
        ("RerunStateMachineConfig", {"error_injection_rate": 0.5}, "a whole number from 0"),
        ("RerunStateMachineConfig", {"error_injection_type": "x"}, "one of transient_error"),
        ("TrainingConfig", {"exit_signal": signal.SIGKILL}, "can be handled"),
        ("TrainingConfig", {"exit_signal": 1000}, "can be handled"),
        ("TrainingConfig", {"exit_interval": 0}, "from 1 or None"),
    ],
)
def test_bad_values(name: str, values: dict[str, Any], says: str) -> None:
    (field,) = values
    with pytest.raises(ValueError, match=f"^{field} is .*{says}"):
        getattr(config, name)(**values)


def test_both_names_of_the_statistics_mode() -> None:
    for mode in ("report_stats", "report_determinism_stats"):
        assert config.RerunStateMachineConfig(rerun_mode=mode).rerun_mode == mode


def test_values_that_are_set_later_are_checked_by_finalize() -> None:
    training = config.TrainingConfig(exit_signal=signal.SIGUSR1)
    training.exit_signal = 0
    with pytest.raises(ValueError, match="exit_signal is 0"):
        training.finalize()
