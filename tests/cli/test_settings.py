import pytest

from undaunted.cli import settings
from undaunted.cli.options import OPTIONS
from undaunted.cli.parse import UsageError, parse
from undaunted.fault_tolerance.config import FaultToleranceConfig

HEARTBEAT = "ft-rank-heartbeat-timeout"


@pytest.fixture
def read(tmp_path):
    """Read a command line with a file of settings."""

    def read(text, *argv, **environ):
        (tmp_path / "ft.yaml").write_text(text)
        words = ["--ft-cfg-path", "ft.yaml", *argv, "train.py"]
        return settings.with_file(parse(words, environ), str(tmp_path))

    return read


def test_without_a_file_nothing_changes():
    parsed = parse(["train.py"], {})
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
    assert parsed.values[HEARTBEAT] == 3
    assert parsed.values["ft-initial-rank-heartbeat-timeout"] == 2
    assert parsed.values["ft-rank-out-of-section-timeout"] == 1
    assert parsed.values["ft-max-no-progress-cycles"] == 7
    assert parsed.values["ft-min-progress-iterations"] == 1
    limits, _ = settings.limits(parsed, {})
    assert limits.settings == {"max_no_progress_cycles": 7}
    assert limits.sources == {
        "heartbeat": "--ft-rank-heartbeat-timeout",
        "initial_heartbeat": "PET_FT_INITIAL_RANK_HEARTBEAT_TIMEOUT",
        "out_of_section": "rank_out_of_section_timeout in ft.yaml",
    }


def test_none_in_the_file_turns_a_test_off(read):
    parsed, _ = read("fault_tolerance: {rank_heartbeat_timeout: null}")
    assert parsed.values[HEARTBEAT] is None
    assert parsed.sources[HEARTBEAT] == "rank_heartbeat_timeout in ft.yaml"


def test_a_file_with_all_defaults_is_accepted(tmp_path):
    path = tmp_path / "all.yaml"
    FaultToleranceConfig().to_yaml_file(path)
    parsed = parse(["--ft-cfg-path", str(path), "train.py"], {})
    merged, notice = settings.with_file(parsed, "/")
    assert notice == ""
    assert merged.values == parsed.values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fault_tolerance: {rank_heartbeat: 1}", "ft.yaml: unknown setting 'rank_heartbeat'; did"),
        ("fault_tolerance: {segment: two}", "ft.yaml: segment: 'two' is not a whole number"),
        ("fault_tolerance: [", "--ft-cfg-path: .*ft.yaml is not YAML"),
        ("model: 1", "--ft-cfg-path: ft.yaml has no section fault_tolerance; correct it, or add"),
        (
            "fault_tolerance: {attribution_export_url: http}",
            "attribution_export_url in ft.yaml belongs to an attribution service .*: not built yet",
        ),
    ],
)
def test_what_is_wrong_with_a_file(read, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        read(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [("gone.yaml", "gone.yaml is not there; correct it"), ("/", "/: Is a directory")],
)
def test_files_that_cannot_be_read(tmp_path, path, message):
    with pytest.raises(UsageError, match=message):
        settings.with_file(parse(["--ft-cfg-path", path, "train.py"], {}), str(tmp_path))


def test_unknown_names_may_be_passed_over(read):
    text = "fault_tolerance: {rank_heartbeat: 1, rank_heartbeat_timeout: 9}"
    parsed, _ = read(text, "--ft-ignore-unknown-settings")
    assert parsed.values[HEARTBEAT] == 9


@pytest.mark.parametrize("text", ["", "model: 1"])
def test_options_beside_a_file_without_settings_are_enough(read, text):
    parsed, notice = read(text, f"--{HEARTBEAT}=9")
    assert notice == "ft.yaml has no section fault_tolerance: only options and variables count"
    assert parsed.values[HEARTBEAT] == 9
    with pytest.raises(UsageError, match="has no section"):
        read(text, "--max-restarts=3")


@pytest.mark.parametrize(
    "flag", ["--ft-ignore-missing-cfg", "--ignore-missing-fault-tol-cfg", "--ft_ignore_missing_cfg"]
)
def test_missing_settings_may_be_ignored(read, flag):
    parsed, notice = read("model: 1", flag)
    assert notice == "ft.yaml has no section fault_tolerance: the defaults apply"
    assert parsed.values[HEARTBEAT] == 2700
    _, notice = settings.with_file(parse([flag, "--ft-cfg-path=gone.yaml", "x"], {}), "/")
    assert notice == "gone.yaml is not there: the defaults apply"


def test_warm_up_is_a_section(read):
    text = "fault_tolerance: {rank_section_timeouts: {warmup: 900, step: 60}}"
    parsed, _ = read(text, "--ft-num-warmup-iterations", "2")
    limits, notice = settings.limits(parsed, {})
    assert notice == ""
    assert (limits.warmup_s, limits.warmup_iterations) == (900, 2)
    assert limits.sections == {"warmup": 900, "step": 60}
    assert limits.sources["warmup"] == "rank_section_timeouts in ft.yaml"


def test_how_limits_are_measured():
    default, _ = settings.limits(parse(["train.py"], {}), {})
    assert (default.learn, default.floor_s, default.confirm) == (True, 60.0, False)
    options = (
        "--ft-learn-timeouts=false",
        "--ft-min-measured-timeout=5",
        "--ft-skip-section-response=no",
    )
    given, _ = settings.limits(parse([*options, "train.py"], {}), {})
    assert (given.learn, given.floor_s, given.confirm) == (False, 5.0, True)


def test_no_limit_at_all_is_said():
    off = [f"--ft-{name}-timeout=none" for name in ("rank-heartbeat", "initial-rank-heartbeat")]
    _, notice = settings.limits(parse([*off, "train.py"], {}), {})
    assert notice.startswith("every timeout is off: hangs will not be noticed; --ft-rank-heart")
    section = "--ft-rank-section-timeouts=step:60"
    assert settings.limits(parse([*off, section, "train.py"], {}), {})[1] == ""


def test_monitoring_may_be_off():
    parsed = parse(["--ft-rank-section-timeouts=step:60", "train.py"], {})
    limits, notice = settings.limits(parsed, {"NVRX_DISABLE_RANK_MONITORS": "1"})
    assert (limits.heartbeat_s, limits.initial_heartbeat_s, limits.sections) == (None, None, {})
    assert not limits.learn
    assert notice == "NVRX_DISABLE_RANK_MONITORS is set: hangs will not be noticed"
    assert settings.limits(parsed, {"NVRX_DISABLE_RANK_MONITORS": "0"})[1] == ""
    with pytest.raises(UsageError, match="NVRX_DISABLE_RANK_MONITORS: 'x' is neither"):
        settings.limits(parsed, {"NVRX_DISABLE_RANK_MONITORS": "x"})


def test_gpus_per_numa():
    assert settings.gpus_per_numa({}) == settings.gpus_per_numa({"NVRX_GPUS_PER_NUMA": ""}) == 0
    assert settings.gpus_per_numa({"NVRX_GPUS_PER_NUMA": "4"}) == 4
    for text in ("0", "-1", "four"):
        with pytest.raises(UsageError, match=f"NVRX_GPUS_PER_NUMA: '{text}' is not a number"):
            settings.gpus_per_numa({"NVRX_GPUS_PER_NUMA": text})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--ft-max-no-progress-cycles=0", "--ft-checkpoint-iteration-file=f"],
            (
                "--ft-checkpoint-iteration-file is for the tracking of progress, which "
                "--ft-max-no-progress-cycles 0 turns off"
            ),
        ),
        (
            ["--duplicate-stderr-filters=a", "--tee=1"],
            "--duplicate-stderr-filters copies lines that --tee shows, .*; add --tee 2",
        ),
        (["--logs-specs=nosuch"], "--logs-specs: no plug-in 'nosuch' in the entry point group"),
        (
            ["--ft-nvrx-logfile=/l"],
            "--ft-nvrx-logfile needs --ft-per-cycle-applog-prefix, .*; add it",
        ),
    ],
)
def test_contradictions(argv, message):
    with pytest.raises(UsageError, match=message):
        settings.check_settings(parse([*argv, "train.py"], {}), {})


def test_one_node_and_several_exclude_one_another():
    with pytest.raises(UsageError, match="--standalone is for one node, but --nnodes asks for 2;"):
        settings.check_settings(parse(["--standalone", "--nnodes=2", "x"], {}), {})
    settings.check_settings(parse(["--standalone", "--nnodes=1:2", "x"], {}), {})
    settings.check_settings(parse(["--standalone", "x"], {"PET_NNODES": "2"}), {})


def test_the_log_of_a_round_has_a_name():
    with pytest.raises(UsageError, match=r"/logs/ is a directory; .* as in /logs/train\.log"):
        settings.check_settings(parse(["--ft-per-cycle-applog-prefix=/logs/", "x"], {}), {})


def test_two_places_for_the_launchers_lines():
    argv = ["--ft-per-cycle-applog-prefix=/a", "--ft-nvrx-logfile=/l", "train.py"]
    message = "--ft-nvrx-logfile and NVRX_NODE_LOCAL_TMPDIR both say where"
    with pytest.raises(UsageError, match=message):
        settings.check_settings(parse(argv, {}), {"NVRX_NODE_LOCAL_TMPDIR": "/tmp"})
    settings.check_settings(parse(argv, {}), {})


def test_settings_that_do_not_contradict():
    for argv in (
        ["--duplicate-stdout-filters=a", "--tee=0:1,1:0"],
        ["--ft-segment=1"],
        ["--ft-max-no-progress-cycles", "-1"],
        [],
    ):
        settings.check_settings(parse([*argv, "train.py"], {}), {})


def test_every_setting_has_its_option():
    fields = [option.setting for option in OPTIONS if option.setting]
    assert sorted(fields) == sorted(vars(FaultToleranceConfig()))
