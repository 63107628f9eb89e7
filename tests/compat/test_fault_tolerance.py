"""`fault_tolerance` under NVRx's names: configuration, limits, states, launcher."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys

import pytest

from nvidia_resiliency_ext.fault_tolerance import FaultToleranceConfig, launcher
from nvidia_resiliency_ext.fault_tolerance.data import (
    HeartbeatTimeouts,
    SectionAction,
    SectionTimeouts,
)
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_state_machine import (
    InvalidStateTransitionException,
    RankMonitorState,
    RankMonitorStateMachine,
)
from nvidia_resiliency_ext.fault_tolerance.timeouts_calc import TimeoutsCalc, TimeoutsCalcError
from undaunted.fault_tolerance import FaultToleranceConfig as UndauntedConfig

# --- configuration --------------------------------------------------------------------------------


def test_unknown_settings_are_left_out_with_a_warning(caplog, monkeypatch, tmp_path):
    monkeypatch.setattr(logging.getLogger("nvrx"), "propagate", True)
    made = FaultToleranceConfig.from_kwargs(rank_heartbeat_timeout=5, lr=0.1)
    assert made.rank_heartbeat_timeout == 5.0
    assert "unknown settings are left out: ['lr']" in caplog.text
    (tmp_path / "a.yaml").write_text("x: [{fault_tolerance: {safety_factor: 2, other: 1}}]")
    assert FaultToleranceConfig.from_yaml_file(tmp_path / "a.yaml").safety_factor == 2.0
    with pytest.raises(ValueError, match="unknown setting 'lr'"):
        FaultToleranceConfig.from_kwargs(ignore_not_recognized=False, lr=0.1)


def test_it_is_undaunteds_configuration(tmp_path):
    made = FaultToleranceConfig(rank_termination_signal="sigterm")
    assert isinstance(made, UndauntedConfig)
    made.to_yaml_file(tmp_path / "a.yaml")
    again = FaultToleranceConfig.from_yaml_file(tmp_path / "a.yaml")
    assert again == made
    assert again.rank_termination_signal.name == "SIGTERM"
    args = argparse.Namespace(ft_cfg_path=str(tmp_path / "a.yaml"), ft_safety_factor=7)
    assert FaultToleranceConfig.from_args(args).safety_factor == 7.0


# --- limits ---------------------------------------------------------------------------------------


def measured() -> TimeoutsCalc:
    calc = TimeoutsCalc(["a", "b"], start_time=0.0, safety_factor=2.0)
    for moment in (5.0, 6.0, 10.0):
        calc.update_on_heartbeat(moment)
    calc.update_on_section_event("a", SectionAction.OPEN, 3.0)
    calc.update_on_section_event("a", SectionAction.CLOSE, 7.0)
    return calc


def test_limits_of_heartbeats():
    calc = measured()
    assert calc.can_get_hb_timeouts()
    assert calc.get_hb_timeouts() == HeartbeatTimeouts(10.0, 8.0, True)
    assert calc.get_hb_timeouts(HeartbeatTimeouts(1.0, 2.0, True)) == HeartbeatTimeouts(
        5.5, 5.0, True
    )
    new = TimeoutsCalc()
    assert not new.can_get_hb_timeouts()
    with pytest.raises(TimeoutsCalcError, match="two heartbeats"):
        new.get_hb_timeouts()


def test_limits_of_sections():
    calc = measured()
    asked = [calc.can_get_section_timeouts(*how) for how in [(), (["a"],), (["a"], False)]]
    assert asked == [False, True, True]
    found = calc.get_section_timeouts(["a"])
    assert (found.section, found.out_of_section) == ({"a": 8.0, "b": None}, 6.0)
    assert found.calculated_sections == {"a"}
    with pytest.raises(TimeoutsCalcError, match="no rank has ended section 'b'"):
        calc.get_section_timeouts()
    before = SectionTimeouts({"a": 1.0, "b": 5.0}, 4.0, frozenset({"a"}), True)
    found = calc.get_section_timeouts(["a"], current=before)
    assert (found.section, found.out_of_section) == ({"a": 4.5, "b": 5.0}, 5.0)
    for names in ({}, [], ("a",), {"a"}, {"a": 1}.keys()):  # NVRx begins with {}
        merged = calc.get_section_timeouts(["a"], current=SectionTimeouts({}, 1.0, names))
        assert merged.calculated_sections == {"a"}
    calc.maybe_bump_oos_time(100.0)
    assert calc.get_section_timeouts(["a"]).out_of_section == 186.0


def test_wrong_use_of_sections():
    calc = measured()
    assert calc.is_out_of_section
    calc.update_on_section_event("b", SectionAction.OPEN)
    assert not calc.is_out_of_section
    for section, action, problem in [
        ("b", SectionAction.OPEN, "is open already"),
        ("a", SectionAction.CLOSE, "is not open"),
        ("z", SectionAction.OPEN, "none of those in the configuration"),
    ]:
        with pytest.raises(TimeoutsCalcError, match=problem):
            calc.update_on_section_event(section, action)
    calc.update_on_section_event(None, SectionAction.CLOSE_ALL)
    assert calc.is_out_of_section
    calc.reset_start_time()
    assert calc.start_time > 0


@pytest.mark.torch
def test_ranks_cannot_be_asked_without_a_group():
    pytest.importorskip("torch")
    with pytest.raises(TimeoutsCalcError, match="there is no process group"):
        measured().synchronize_all()


@pytest.mark.e2e
@pytest.mark.torch
def test_ranks_agree_on_the_longest(tmp_path):
    pytest.importorskip("torch")
    code = """
import os
import torch.distributed as dist
from nvidia_resiliency_ext.fault_tolerance.timeouts_calc import TimeoutsCalc

dist.init_process_group("gloo")
rank = dist.get_rank()
calc = TimeoutsCalc(start_time=0.0, safety_factor=2.0)
calc.update_on_heartbeat(5.0 + rank)
calc.update_on_heartbeat(9.0 - rank)
calc.synchronize_all()
print(calc.get_hb_timeouts(), flush=True)
dist.destroy_process_group()
"""
    (tmp_path / "train.py").write_text(code)
    module = "nvidia_resiliency_ext.fault_tolerance.launcher"
    result = subprocess.run(
        [sys.executable, "-m", module, "--nproc-per-node=2", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("initial=12.0, subsequent=8.0") == 2


# --- states ---------------------------------------------------------------------------------------


class Logger:
    def __init__(self):
        self.lines = []

    def log_restarter_event(self, text):
        self.lines.append(text.removeprefix("[NestedRestarter] name=[InJob] state="))


def test_a_restart():
    logger = Logger()
    machine = RankMonitorStateMachine(logger)
    machine.handle_signal()
    machine.handle_ipc_connection_lost()
    machine.periodic_restart_check()
    assert machine.state is RankMonitorState.UNINITIALIZED
    machine.handle_heartbeat_msg()
    machine.handle_section_msg()
    machine.handle_ipc_connection_lost()
    assert machine.is_restarting()
    machine.periodic_restart_check()
    machine.periodic_restart_check()
    machine.handle_section_msg()
    assert machine.state is RankMonitorState.HANDLING_COMPLETED
    machine.handle_signal()
    assert logger.lines == [
        "initialize",
        "handling stage=starting",
        "handling stage=processing",
        "handling stage=processing",
        "handling stage=completed",
        "finalized",
    ]
    with pytest.raises(InvalidStateTransitionException, match="after the end"):
        machine.handle_heartbeat_msg()
    with pytest.raises(InvalidStateTransitionException) as refused:
        machine.transition_to(RankMonitorState.INITIALIZE)
    ends = (RankMonitorState.FINALIZED, RankMonitorState.INITIALIZE)
    assert str(refused.value) == "Invalid transition attempted from {} to {}".format(*ends)


def test_a_rank_that_dies_early_does_not_poison_the_next():
    machine = RankMonitorStateMachine(Logger())
    machine.handle_heartbeat_msg()
    machine.handle_ipc_connection_lost()
    machine.handle_ipc_connection_lost()
    assert machine.state is RankMonitorState.ABORTED
    machine.handle_heartbeat_msg()
    machine.handle_heartbeat_msg()
    machine.handle_ipc_connection_lost()
    machine.handle_signal()
    assert machine.state is RankMonitorState.ABORTED


# --- launcher -------------------------------------------------------------------------------------


def test_launch_config_takes_the_fault_tolerance_fourth():
    cfg = FaultToleranceConfig(safety_factor=3)
    made = launcher.LaunchConfig(1, 1, 2, cfg, max_restarts=1)
    assert (made.nproc_per_node, made.fault_tol_cfg, made.max_restarts) == (2, cfg, 1)
    several = launcher.LaunchConfig(
        2, 3, 8, cfg, run_id="job7", rdzv_backend="c10d", rdzv_endpoint="host0:29400"
    )
    assert several.of_several_nodes
    with pytest.raises(TypeError, match="no_such_field"):
        launcher.LaunchConfig(1, 1, 2, cfg, no_such_field=1)


def test_main_leaves_with_the_exit_code(capsys):
    launcher.main(["--help"])
    assert "--nproc-per-node" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        launcher.main(["--no-such-option"])
    assert left.value.code == 2


@pytest.mark.e2e
def test_the_module_is_a_program(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print('ran', sys.argv[1]); sys.exit(3)")
    module = "nvidia_resiliency_ext.fault_tolerance.launcher"
    result = subprocess.run(
        [sys.executable, "-m", module, "--nproc-per-node=1", str(script), "here"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1
    assert "ran here" in result.stdout
