import ast
import copy
import dataclasses
import signal
import stat
import typing
from argparse import Namespace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import undaunted.fault_tolerance
from undaunted.fault_tolerance import config as config_module
from undaunted.fault_tolerance.config import FaultToleranceConfig, known_settings, settings
from undaunted.fault_tolerance.config_file import MissingSectionError
from undaunted.fault_tolerance.run_config import RunSettings

# The settings of all versions of NVRx, and their defaults here.
DEFAULTS = {
    "workload_check_interval": 5.0,
    "initial_rank_heartbeat_timeout": 3600.0,
    "rank_heartbeat_timeout": 2700.0,
    "rank_section_timeouts": {},
    "rank_out_of_section_timeout": None,
    "node_health_check_interval": 5.0,
    "safety_factor": 5.0,
    "rank_termination_signal": signal.SIGKILL,
    "log_level": 20,
    "restart_check_interval": 60.0,
    "enable_nic_monitor": False,
    "pci_topo_file": None,
    "link_down_path_template": None,
    "skip_section_response": True,
    "use_infra_group_rank": True,
    "enable_nic_healthcheck": True,
    "link_state_path_template": None,
    "enable_dist_storage_healthcheck": False,
    "storage_healthcheck_path": None,
    "segment_health_check_dir": None,
    "segment": None,
    "numa_bind_strict": True,
    "last_copies_mb_per_s": 200.0,
    "gpu_memory_reclaim_timeout": 50.0,
    "gpu_memory_tolerance_mb": 512.0,
    "gpu_memory_poll_interval": 2.0,
    "check_remaining_processes": False,
    "max_no_progress_cycles": 3,
    "min_progress_iterations": 1,
    "checkpoint_iteration_file": None,
    "install_exception_hook": True,
    "num_warmup_iterations": 5,
    "attribution_endpoint": None,
    "attrsvc_host": None,
    "attrsvc_port": None,
    "cycle_info_dir": None,
    "attribution_stop_action": None,
    "attribution_export_url": None,
    # undaunted's own
    "learn_timeouts": True,
    "min_measured_timeout": 60.0,
    "attribution_token_file": None,
}


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "ft.yaml"
        path.write_text(text)
        return path

    return write


def test_fields_and_defaults():
    assert dataclasses.asdict(FaultToleranceConfig()) == DEFAULTS
    assert undaunted.fault_tolerance.FaultToleranceConfig is FaultToleranceConfig


def test_defaults_have_the_types_of_their_fields():
    types = typing.get_type_hints(FaultToleranceConfig)
    for name, value in DEFAULTS.items():
        allowed = typing.get_args(types[name]) or (types[name],)
        if types[name] == dict[str, float | None]:
            allowed = (dict,)
        assert type(value) in allowed, name


def test_two_objects_share_nothing():
    FaultToleranceConfig().rank_section_timeouts["step"] = 1.0
    assert FaultToleranceConfig().rank_section_timeouts == {}


def test_values_are_converted_however_they_are_given():
    config = FaultToleranceConfig(
        rank_heartbeat_timeout="15m",
        rank_section_timeouts="setup:600,step:none",
        rank_termination_signal="sigterm",
        log_level="debug",
    )
    assert config.rank_heartbeat_timeout == 900
    assert config.rank_section_timeouts == {"setup": 600, "step": None}
    assert config.rank_termination_signal is signal.SIGTERM
    assert config.log_level == 10


def test_bad_values_name_the_field():
    with pytest.raises(ValueError, match=r"safety_factor: 0 is not a number from 0\.01"):
        FaultToleranceConfig(safety_factor=0)


@pytest.mark.parametrize(("cycles", "enabled"), [(3, True), (1, True), (0, False), (-1, False)])
def test_progress_tracking(cycles, enabled):
    config = FaultToleranceConfig(max_no_progress_cycles=cycles)
    assert config.is_progress_tracking_enabled is enabled


def test_values_that_are_set_later_are_checked_as_well():
    config = FaultToleranceConfig()
    config.rank_heartbeat_timeout = "15m"
    assert config.rank_heartbeat_timeout == 900.0
    with pytest.raises(ValueError, match="rank_heartbeat_timeout: 'soon' is not a duration"):
        config.rank_heartbeat_timeout = "soon"
    with pytest.raises(AttributeError, match="'max_no_progress'; did you mean 'max_no_progress_c"):
        config.max_no_progress = 3
    assert copy.deepcopy(config) == config


def test_unknown_names_are_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="unknown setting 'rank_heartbeat_timout'; did you mean "):
        FaultToleranceConfig.from_kwargs(rank_heartbeat_timout=3)
    with pytest.raises(ValueError, match=r"'zzz'; docs/configuration\.md lists all"):
        FaultToleranceConfig.from_kwargs(zzz=3)
    config = FaultToleranceConfig.from_kwargs(ignore_not_recognized=True, zzz=3, segment=2)
    assert config.segment == 2


def test_yaml_section_at_any_depth(write):
    path = write(
        """
        exp_manager:
          - other: 1
          - nested:
              fault_tolerance:
                rank_section_timeouts: {setup: 600, step: 180}
                rank_termination_signal: SIGTERM
                log_level: 10
        """
    )
    config = FaultToleranceConfig.from_yaml_file(path)
    assert config.rank_section_timeouts == {"setup": 600, "step": 180}
    assert config.rank_termination_signal is signal.SIGTERM
    assert config.log_level == 10
    assert config.rank_heartbeat_timeout == 2700


def test_yaml_typos_are_errors_unless_told_otherwise(write):
    """Spec 3.1 item 8: upstream ignores them, and the job runs without limits."""
    path = write("fault_tolerance: {rank_hearbeat_timeout: 3, segment: 1}")
    with pytest.raises(ValueError, match="did you mean 'rank_heartbeat_timeout'"):
        FaultToleranceConfig.from_yaml_file(path)
    assert FaultToleranceConfig.from_yaml_file(path, ignore_not_recognized=True).segment == 1


def test_round_trip(tmp_path):
    path = tmp_path / "out.yaml"
    config = FaultToleranceConfig(
        rank_section_timeouts="step:1,save:none", rank_termination_signal="INT", log_level="ERROR"
    )
    config.to_yaml_file(path)
    text = path.read_text()
    assert "rank_termination_signal: SIGINT" in text
    assert "log_level: 40" in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert FaultToleranceConfig.from_yaml_file(path) == config


def test_from_args_goes_before_the_file(write):
    path = write("fault_tolerance: {rank_heartbeat_timeout: 10, max_no_progress_cycles: 7}")
    args = Namespace(
        ft_cfg_path=str(path), ft_rank_heartbeat_timeout="20", ft_segment=None, other=1
    )
    config = FaultToleranceConfig.from_args(args)
    assert config.rank_heartbeat_timeout == 20
    assert config.max_no_progress_cycles == 7
    assert config.initial_rank_heartbeat_timeout == 3600
    assert FaultToleranceConfig.from_args(Namespace()) == FaultToleranceConfig()


def test_from_args_reports_a_missing_file_or_section(write, tmp_path):
    missing = Namespace(ft_cfg_path=str(tmp_path / "none.yaml"))
    with pytest.raises(FileNotFoundError):
        FaultToleranceConfig.from_args(missing)
    empty = Namespace(ft_cfg_path=str(write("model: 1")))
    with pytest.raises(MissingSectionError):
        FaultToleranceConfig.from_args(empty)
    for args in (missing, empty):
        args.ft_ignore_missing_cfg = True
        assert FaultToleranceConfig.from_args(args) == FaultToleranceConfig()


def test_every_setting_is_described():
    for name, setting in settings().items():
        assert setting.about.help, name
        assert not setting.about.help.endswith(".")
        assert setting.metavar, name
    assert set(settings()) == set(DEFAULTS)
    assert config_module.read_setting("segment", "3") == 3


def test_every_setting_is_read_by_the_launcher_or_said_to_have_no_effect():
    names = {*RunSettings.__struct_fields__, *settings()}
    nodes = chain.from_iterable(
        ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for path in Path(undaunted.fault_tolerance.__file__).parents[1].rglob("*.py")
    )
    read = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    without = {name for name, one in settings().items() if one.about.help.startswith("No effect:")}
    assert names - read == without


@given(st.dictionaries(st.sampled_from([*DEFAULTS, "zzz"]), st.none() | st.text() | st.integers()))
def test_any_values_are_taken_or_refused(values):
    try:
        known_settings(values)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - other exceptions fail the test
