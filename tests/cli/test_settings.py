import os
from pathlib import Path

import pytest

from nvidia_resiliency_ext.shared_utils._messages.files import FILE_NAME
from undaunted.cli import run, settings
from undaunted.cli.messages import UsageError
from undaunted.cli.options import RUN
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.run_config import TO_BOTH, TO_FILE, CycleInfoPlace
from undaunted.health.check import Settings

HEARTBEAT = "ft-rank-heartbeat-timeout"


@pytest.fixture
def read(tmp_path):
    """Read a command line with a file of settings."""

    def read(text, *argv, **environ):
        (tmp_path / "ft.yaml").write_text(text)
        words = ["--ft-cfg-path", "ft.yaml", *argv, "train.py"]
        return settings.with_file(RUN.parse(words, environ), str(tmp_path))

    return read


def test_without_a_file_nothing_changes():
    parsed = RUN.parse(["train.py"], {})
    assert settings.with_file(parsed, "/nowhere") == (parsed, "")


def test_defaults_below_file_below_variables_below_options(read):
    text = """
    fault_tolerance:
      rank_heartbeat_timeout: 1
      initial_rank_heartbeat_timeout: 1
      rank_out_of_section_timeout: 1
      max_no_progress_cycles: 7  # NVRx 0.6 has its own default here
    """
    environ = {"PET_FT_RANK_HEARTBEAT_TIMEOUT": "2", "PET_FT_INITIAL_RANK_HEARTBEAT_TIMEOUT": "2"}
    parsed, notice = read(text, "--ft-rank-heartbeat-timeout=3", **environ)
    assert notice == ""
    assert parsed.options.ft.rank_heartbeat_timeout == 3
    assert parsed.options.ft.initial_rank_heartbeat_timeout == 2
    assert parsed.options.ft.rank_out_of_section_timeout == 1
    assert parsed.options.ft.max_no_progress_cycles == 7
    assert parsed.options.ft.min_progress_iterations == 1
    limits, _ = settings.limits(parsed, {})
    assert limits.settings == {"max_no_progress_cycles": 7}
    assert limits.sources == {
        "heartbeat": "--ft-rank-heartbeat-timeout",
        "initial_heartbeat": "PET_FT_INITIAL_RANK_HEARTBEAT_TIMEOUT",
        "out_of_section": "rank_out_of_section_timeout in ft.yaml",
    }


def test_none_in_the_file_turns_a_test_off(read):
    parsed, _ = read("fault_tolerance: {rank_heartbeat_timeout: null}")
    assert parsed.options.ft.rank_heartbeat_timeout is None
    assert parsed.sources[HEARTBEAT] == "rank_heartbeat_timeout in ft.yaml"


def test_a_file_with_all_defaults_is_accepted(tmp_path):
    path = tmp_path / "all.yaml"
    FaultToleranceConfig().to_yaml_file(path)
    parsed = RUN.parse(["--ft-cfg-path", str(path), "train.py"], {})
    merged, notice = settings.with_file(parsed, "/")
    assert notice == ""
    assert merged.options == parsed.options


def test_unknown_names_may_be_passed_over(read):
    text = "fault_tolerance: {rank_heartbeat: 1, rank_heartbeat_timeout: 9}"
    parsed, _ = read(text, "--ft-ignore-unknown-settings")
    assert parsed.options.ft.rank_heartbeat_timeout == 9


@pytest.mark.parametrize("text", ["", "model: 1"])
def test_options_beside_a_file_without_settings_are_enough(read, text):
    parsed, notice = read(text, f"--{HEARTBEAT}=9")
    assert notice
    assert parsed.options.ft.rank_heartbeat_timeout == 9
    with pytest.raises(UsageError):
        read(text, "--max-restarts=3")


@pytest.mark.parametrize(
    "flag", ["--ft-ignore-missing-cfg", "--ignore-missing-fault-tol-cfg", "--ft_ignore_missing_cfg"]
)
def test_missing_settings_may_be_ignored(read, flag):
    parsed, notice = read("model: 1", flag)
    assert notice
    assert parsed.options.ft.rank_heartbeat_timeout == 2700
    _, notice = settings.with_file(RUN.parse([flag, "--ft-cfg-path=gone.yaml", "x"], {}), "/")
    assert notice


def test_warm_up_is_a_section(read):
    text = "fault_tolerance: {rank_section_timeouts: {warmup: 900, step: 60}}"
    parsed, _ = read(text, "--ft-num-warmup-iterations", "2")
    limits, notice = settings.limits(parsed, {})
    assert notice == ""
    assert (limits.warmup_s, limits.warmup_iterations) == (900, 2)
    assert limits.sections == {"warmup": 900, "step": 60}
    assert limits.sources["warmup"] == "rank_section_timeouts in ft.yaml"


def test_how_limits_are_measured():
    default, _ = settings.limits(RUN.parse(["train.py"], {}), {})
    assert (default.learn, default.floor_s, default.confirm) == (True, 60.0, False)
    options = (
        "--ft-learn-timeouts=false",
        "--ft-min-measured-timeout=5",
        "--ft-skip-section-response=no",
    )
    given, _ = settings.limits(RUN.parse([*options, "train.py"], {}), {})
    assert (given.learn, given.floor_s, given.confirm) == (False, 5.0, True)


def test_monitoring_may_be_off():
    parsed = RUN.parse(["--ft-rank-section-timeouts=step:60", "train.py"], {})
    limits, notice = settings.limits(parsed, {"NVRX_DISABLE_RANK_MONITORS": "1"})
    assert (limits.heartbeat_s, limits.initial_heartbeat_s, limits.sections) == (None, None, {})
    assert not limits.learn
    assert notice
    assert settings.limits(parsed, {"NVRX_DISABLE_RANK_MONITORS": "0"})[1] == ""


def test_gpus_per_numa():
    assert settings.gpus_per_numa({}) == settings.gpus_per_numa({"NVRX_GPUS_PER_NUMA": ""}) == 0
    assert settings.gpus_per_numa({"NVRX_GPUS_PER_NUMA": "4"}) == 4


# --- attribution service ---


def service(*argv: str) -> str:
    return settings.attribution_service(RUN.parse([*argv, "train.py"], {}))


def test_two_ways_to_name_a_service() -> None:
    assert service() == ""
    assert service("--ft-attribution-endpoint=http://host:8000/") == "http://host:8000"
    assert service("--ft-attribution-endpoint=https://host:8000/") == "https://host:8000"
    assert service("--ft-attribution-endpoint=unix:///run/a") == "unix:///run/a"
    parts = ("--ft-attrsvc-host=host", "--ft-attrsvc-port=8000")
    assert service(*parts) == "http://host:8000"
    assert service("--ft-attrsvc-host=::1", "--ft-attrsvc-port=80") == "http://[::1]:80"
    assert service(*parts, "--ft-attribution-endpoint=http://host:8000") == "http://host:8000"


def test_a_service_that_the_launcher_starts_needs_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert service("--ft-attribution-endpoint=localhost") == "localhost"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs the package fastapi: pip install .undaunted\["):
        service("--ft-attribution-endpoint=localhost")


def test_a_log_is_kept_for_the_service_where_none_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = ["--ft-attribution-endpoint=http://h", "--nproc-per-node=2", "-r", "1:1", "train.py"]
    config, _ = run.build_config(RUN.parse(words, {}), {}, str(tmp_path))
    assert config.applog_prefix == f"{config.log_dir}/ranks.log"
    assert config.stdout == [TO_BOTH, TO_FILE]
    assert config.stderr == [TO_BOTH, TO_BOTH]
    assert (tmp_path / "undaunted-runs" / config.run_id / "logs").is_dir()
    own = ["--ft-per-cycle-applog-prefix=/own.log", *words]
    config, _ = run.build_config(RUN.parse(own, {}), {}, str(tmp_path))
    assert config.applog_prefix == "/own.log"
    assert config.stderr == [0, 0]


# --- health checks ---


def asked(*options: str, **environ: str) -> Settings:
    return settings.health_checks(RUN.parse([*options, "train.py"], {}), environ, "/work")


def test_by_default_only_links_of_nics_and_gpus() -> None:
    assert asked() == Settings()


def test_all_health_checks() -> None:
    checks = asked(
        "--ft-enable-nic-healthcheck=false",
        "--ft-link-state-path-template=/s/{nic}",
        "--ft-enable-nic-monitor",
        "--ft-pci-topo-file=topo.xml",
        "--ft-link-down-path-template=/d/{dev_name}",
        "--ft-enable-dist-storage-healthcheck",
        "--ft_storage_health_check_path=/a, /b",
    )
    assert checks == Settings(
        nic_link=False,
        link_state_path="/s/{nic}",
        nic_monitor=True,
        pci_topology="/work/topo.xml",
        link_down_path="/d/{dev_name}",
        mounts=True,
        storage_paths=("/a", "/b"),
    )


@pytest.mark.parametrize(
    ("environ", "file"),
    [
        ({"SLURM_JOB_ID": "12"}, "/d/segment_health_check.12.12"),
        (
            {"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "0"},
            "/d/segment_health_check.12.0",
        ),
        ({}, "/d"),  # nothing that could exclude it
    ],
)
def test_the_file_of_a_segment_is_that_of_the_task(environ: dict[str, str], file: str) -> None:
    assert asked("--ft-segment-health-check-dir=/d", **environ) == Settings(segment_file=file)


# --- files about rounds, messages ---


def place(line: str, **environ: str) -> CycleInfoPlace | None:
    parsed = RUN.parse([*line.split(), "train.py"], environ)
    return settings.cycle_info(parsed, environ, "/work", "run 1", "/l/p.log")


def test_no_files_about_rounds_unless_asked_for():
    assert place("") is None


def test_names_of_files_about_rounds():
    here = place("--ft-cycle-info-dir info")
    assert here == CycleInfoPlace(directory="/work/info", job_id="run 1", log_prefix="/l/p.log")
    assert here.current == "/work/info/cycle_info.run_1.current"
    assert here.path(3) == "/work/info/cycle_info.run_1.0.3"


def test_slurms_names():
    slurm = {"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "2"}
    here = place("--ft-cycle-info-dir /i", **slurm)
    assert here is not None
    assert here.path(0) == "/i/cycle_info.8.2.0"
    here = place("--ft-cycle-info-dir /i", **slurm, SLURM_ARRAY_JOB_ID="7")
    assert here is not None
    assert here.path(0) == "/i/cycle_info.7.2.0"  # the same for all nodes of an array
    here = place("--ft-cycle-info-dir /i --ft-cycle-info-job-id x", **slurm)
    assert here is not None
    assert here.job_id == "x"
    here = place("--ft-cycle-info-dir /i", SLURM_RESTART_COUNT="many")
    assert here is not None
    assert here.attempt == 0


def test_directory_of_messages():
    assert settings.message_directory({}, "/work") == ""
    assert settings.message_directory({"NVRX_NODE_LOCAL_TMPDIR": " "}, "/work") == ""
    assert settings.message_directory({"NVRX_NODE_LOCAL_TMPDIR": "m/"}, "/work") == "/work/m"
    assert settings.message_directory({"NVRX_NODE_LOCAL_TMPDIR": "/tmp/m"}, "/work") == "/tmp/m"


def test_file_of_the_launcher_is_one_that_is_aggregated():
    assert settings.launcher_messages("") == ""
    directory, name = os.path.split(settings.launcher_messages("/tmp/m"))
    assert directory == "/tmp/m"
    assert FILE_NAME.fullmatch(name)
