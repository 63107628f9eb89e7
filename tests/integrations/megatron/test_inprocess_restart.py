"""What becomes of each setting; real restarts are in tests/e2e/test_megatron.py."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from undaunted.inprocess.rank_assignment import LayerFlag  # noqa: E402
from undaunted.integrations.megatron import (  # noqa: E402
    fault_tolerance,
    inprocess_restart,
    rerun,
    straggler,
)
from undaunted.integrations.megatron.config import (  # noqa: E402
    InProcessRestartConfig,
    NVRxStragglerDetectionConfig,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"RANK": 0, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4, "MASTER_PORT": 29500}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "error")


def config(**values: Any) -> InProcessRestartConfig:
    return InProcessRestartConfig(**{"enabled": True, **values})


def parameters(**values: Any) -> Any:
    return inprocess_restart._wrapper(config(**values), None, 29502)


def function() -> str:
    return "done"


def test_what_is_not_enabled_is_left_as_it_is() -> None:
    wrapped = inprocess_restart.maybe_wrap_for_inprocess_restart(
        function, InProcessRestartConfig(), None
    )
    assert wrapped == (function, None)
    assert inprocess_restart.maybe_wrap_for_inprocess_restart(function, None) == (function, None)


@pytest.mark.parametrize(
    "name",
    [
        "monitor_thread_interval",
        "monitor_process_interval",
        "progress_watchdog_interval",
        "heartbeat_interval",
        "soft_timeout",
        "hard_timeout",
        "heartbeat_timeout",
        "barrier_timeout",
        "completion_timeout",
        "last_call_wait",
        "termination_grace_time",
    ],
)
def test_every_duration_arrives(name: str) -> None:
    """Megatron Bridge loses ``progress_watchdog_interval``."""
    seconds = getattr(config(), name) + 0.5
    assert getattr(parameters(**{name: seconds}), name) == timedelta(seconds=seconds)


def test_the_number_of_iterations_arrives() -> None:
    """Megatron Bridge loses it."""
    retry, said = parameters(max_iterations=3, active_world_size=6).initialize.instances
    assert (retry.max_iterations, retry.min_world_size) == (3, 6)
    assert said.stage == ""


def test_faults_of_a_rank_are_counted_if_limited() -> None:
    assert len(parameters().health_check.instances) == 1
    assert parameters(max_rank_faults=2).health_check.instances[1].max_rank_faults == 2


def test_device_memory_is_freed_if_wanted() -> None:
    assert len(parameters().finalize.instances) == 2
    assert len(parameters(empty_cuda_cache=False).finalize.instances) == 1


def test_nodes_or_ranks_are_left_out() -> None:
    (job, node) = parameters(active_world_size=4).rank_assignment.layers
    assert (job.min_ranks, job.max_ranks, job.flag) == (4, 4, LayerFlag.RESERVE)
    assert (node.min_ranks, node.max_ranks, node.flag) == (4, 4, LayerFlag.RESERVE)
    assert len(parameters(granularity="rank").rank_assignment.layers) == 1


def test_nodes_on_one_host_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_RANK", "0")
    first = inprocess_restart._node()
    monkeypatch.setenv("GROUP_RANK", "1")
    assert inprocess_restart._node() != first


def test_the_log_of_the_guard_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("JOB_ID", "17"), ("PROCID", "2"), ("LOCALID", "1")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename="node1"))
    path = parameters(monitor_process_logdir="/logs").monitor_process_logfile
    assert path == "/logs/monitor_17_node1_2_1.log"
    assert parameters().monitor_process_logfile is None
    monkeypatch.setenv("RANK", "1")
    assert parameters(monitor_process_logdir="/logs").monitor_process_logfile is None


def test_what_contradicts_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="active_world_size is 9: there are only 8 ranks"):
        parameters(active_world_size=9)
    with pytest.raises(ValueError, match="soft_timeout"):
        parameters(soft_timeout=100)
    monkeypatch.setenv("MASTER_PORT", "65535")
    with pytest.raises(ValueError, match="MASTER_PORT is '65535'"):
        inprocess_restart.maybe_wrap_for_inprocess_restart(function, config())


def test_a_process_group_must_not_be_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=group))
    with pytest.raises(ValueError, match="initialized already"):
        inprocess_restart.maybe_wrap_for_inprocess_restart(function, config())


def test_warnings_of_torch_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "INFO")
    wrapped, store = inprocess_restart.maybe_wrap_for_inprocess_restart(function, config())
    assert "TORCH_CPP_LOG_LEVEL=error" in caplog.text
    assert wrapped.__name__ == "function"
    assert store is not None


def test_a_fault_resets_the_state_and_ends_monitoring(tmp_path: Path) -> None:
    calls: list[str] = []
    state = SimpleNamespace(
        rank_monitor_client=None,
        fault_tolerance_state=None,
        reset_for_restart=lambda: calls.append("reset"),
    )
    configured = SimpleNamespace(
        ft=SimpleNamespace(enable_ft_package=True), checkpoint=SimpleNamespace(save=tmp_path)
    )
    fault_tolerance.setup(configured, state)
    client = state.rank_monitor_client
    inprocess_restart._reset(state)
    assert not client.is_initialized
    assert calls == ["reset"]
    inprocess_restart._reset(None)


def test_after_a_fault_the_function_makes_again_what_there_is_once() -> None:
    rerun.initialize_rerun_state_machine(mode="validate_results")
    manager = straggler.NVRxStragglerDetectionManager(NVRxStragglerDetectionConfig(enabled=True))
    manager.initialize()
    inprocess_restart._reset(None)
    try:
        rerun.initialize_rerun_state_machine()
        again = straggler.NVRxStragglerDetectionManager(manager.config)
        again.initialize()
        again.shutdown()
    finally:
        rerun.destroy_rerun_state_machine()
