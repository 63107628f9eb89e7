import os
import re
import signal
import sys
import types
from pathlib import Path

import pytest

from undaunted.cli import devices, run
from undaunted.cli.messages import UsageError
from undaunted.cli.options import RUN
from undaunted.fault_tolerance.run_config import TO_BOTH, TO_CONSOLE, TO_FILE


@pytest.fixture
def build(tmp_path):
    (tmp_path / "train.py").touch()

    def build(*argv, script="train.py", **environ):
        return run.build_config(
            RUN.parse([*argv, script, "--lr", "1"], environ), environ, str(tmp_path)
        )

    return build


def test_plain_run(build, tmp_path):
    config, notice = build()
    assert notice == ""
    assert (config.kind, config.target, config.args) == ("script", "train.py", ["--lr", "1"])
    assert config.cwd == str(tmp_path)
    assert config.run_dir == str(tmp_path / "undaunted-runs" / config.run_id)
    assert config.log_dir == f"{config.run_dir}/logs"
    assert not os.path.exists(config.log_dir)  # noqa: PTH110 - a string
    assert config.stdout == config.stderr == [TO_CONSOLE]
    assert config.console_ranks is None
    assert config.nproc_per_node == 1
    assert config.python == sys.executable
    assert config.master_addr == "127.0.0.1"
    assert config.master_port == 0
    assert config.ft.rank_termination_signal == signal.SIGKILL
    assert config.limits.sources == {
        "initial_heartbeat": "default",
        "heartbeat": "default",
        "out_of_section": "default",
    }


def test_signals_and_virtual_local_ranks(build):
    assert build()[0].signals == (15, 2, 1, 3)
    assert build("--signals-to-handle=SIGTERM,usr1,TERM")[0].signals == (15, signal.SIGUSR1)
    flags = ("--virtual-local-rank", "--nproc-per-node=2")
    assert build(*flags)[0].virtual_local_rank
    assert build(*flags, CUDA_VISIBLE_DEVICES="0,3")[0].virtual_local_rank


def test_limits_say_where_they_come_from(build):
    config, _ = build(
        "--ft-param-rank_heartbeat_timeout=10",
        "--ft-rank-section-timeouts",
        "step:60,save:none",
        PET_FT_INITIAL_RANK_HEARTBEAT_TIMEOUT="none",
    )
    limits = config.limits
    assert (limits.heartbeat_s, limits.initial_heartbeat_s, limits.out_of_section_s) == (
        10,
        None,
        None,
    )
    assert limits.sections == {"step": 60, "save": None}
    assert limits.sources == {
        "initial_heartbeat": "PET_FT_INITIAL_RANK_HEARTBEAT_TIMEOUT",
        "heartbeat": "--ft-rank-heartbeat-timeout",
        "out_of_section": "default",
        "section:step": "--ft-rank-section-timeouts",
        "section:save": "--ft-rank-section-timeouts",
    }


def test_output(build, tmp_path):
    config, _ = build("--nproc-per-node=4", "-r", "0:3,1:1,9:3", "-t", "1:2", "--log-dir", "out")
    assert config.stdout == [TO_FILE, TO_FILE, TO_CONSOLE, TO_CONSOLE]
    assert config.stderr == [TO_FILE, TO_BOTH, TO_CONSOLE, TO_CONSOLE]
    assert config.log_dir == str(tmp_path / "out" / config.run_id)


def test_hidden_ranks_write_to_files(build):
    config, _ = build("--nproc-per-node=3", "-t", "1", "--local-ranks-filter", "0,8")
    assert config.console_ranks == [0]
    assert config.stdout == [TO_BOTH, TO_FILE, TO_FILE]
    assert config.stderr == [TO_CONSOLE, TO_FILE, TO_FILE]


def test_run_id(build, tmp_path):
    config, _ = build("--rdzv-id", "job/7")
    assert config.run_id == "job/7"
    assert config.run_dir == str(tmp_path / "undaunted-runs" / "job_7")
    assert build("--standalone", "--rdzv-id", "job")[0].run_id != "job"
    assert build("--rdzv-id", "none")[0].run_id != "none"


def test_addresses(build):
    assert build("--local-addr", "::1")[0].master_addr == "::1"
    assert build("--local-addr", "x", "--master-addr=[::1]")[0].master_addr == "::1"
    assert build("--master-port", "29555")[0].master_port == 29555


def test_the_port_where_nodes_meet_is_not_that_of_the_ranks(build):
    """As in torchrun's static rendezvous, and in a TrainJob of Kubeflow."""
    several = ("--nnodes", "2", "--node-rank", "0", "--master-port", "29555")
    config, _ = build(*several, "--master-addr", "127.0.0.1", UNDAUNTED_TOKEN="x" * 16)
    assert config.nodes.endpoints == ["127.0.0.1:29555"]
    assert config.master_port == 0
    config, _ = build(*several, "--rdzv-endpoint", "127.0.0.1:29400", UNDAUNTED_TOKEN="x" * 16)
    assert config.master_port == 29555


def test_environment(build):
    config, _ = build(
        PYTHON_EXEC="/bin/sh",
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="${rank}: ",
        SLURMD_NODENAME="n7",
    )
    assert (config.python, config.node) == ("/bin/sh", "n7")
    assert config.log_line_prefix_template == "${rank}: "


def test_number_of_workers_by_device(build, monkeypatch):
    monkeypatch.setattr(devices, "usable_cpus", lambda: 6)
    monkeypatch.setattr(devices, "gpu_count", lambda _: 0)
    assert build("--nproc-per-node=cpu")[0].nproc_per_node == 6
    assert build("--nproc-per-node=auto")[0].nproc_per_node == 6
    with pytest.raises(UsageError, match="--nproc-per-node gpu: no NVIDIA or AMD GPU is visible"):
        build("--nproc-per-node=gpu")
    monkeypatch.setattr(devices, "gpu_count", lambda _: 2)
    assert build("--nproc-per-node=gpu")[0].nproc_per_node == 2
    assert build(PET_NPROC_PER_NODE="auto")[0].nproc_per_node == 2


def test_workers(build):
    config, _ = build("--preload=a,b", "--preload=c", "--role=", "--workers-stop-timeout=5")
    assert config.preload == ["a", "b", "c"]
    assert config.role == ""
    assert config.stop_timeout_s == 5
    assert build("--worker-start=fresh")[0].worker_start == "fresh"


def test_more_checks_of_the_node(build, tmp_path):
    checks = build("--health-checks=xid,clock:100ms", "--health-checks=disk:2G")[0].health_checks
    assert (checks.xid, checks.ecc, checks.clock_s, checks.disk_bytes) == (
        True,
        False,
        0.1,
        2 << 30,
    )
    own = build("--run-dir=here", "--health-checks=disk:2G")[0]
    assert own.health_checks.disk_paths == (own.run_dir,) == (str(tmp_path / "here"),)
    named = build("--health-checks=disk:1G:/a,disk:1G:/b,ecc,ethernet")[0].health_checks
    assert (named.disk_paths, named.ecc, named.ethernet) == (("/a", "/b"), True, True)
    told = build("--health-command=/bin/check --fan 'a b'")[0].health_checks
    assert told.commands == (("/bin/check", "--fan", "a b"),)


def test_each_word_of_health_checks_is_shown_to_users(build):
    with pytest.raises(UsageError) as refused:
        build("--health-checks=fan")
    remedy = str(refused.value).partition("choose from ")[2]
    page = (Path(__file__).parents[2] / "docs/health.md").read_text(encoding="utf-8")
    (option,) = (one for one in RUN.options if one.name == "health-checks")
    examples = dict(re.findall(r"`--health-checks ([a-z]+)(:[^`]*)?`", page))
    words = set(examples)
    assert set(re.findall(r"(?<![:/\w])[a-z]+(?= and |[,:]|$)", remedy)) == words
    assert set(re.findall(r"(?<=[ ,])([a-z]+)(?=[,:])", option.about.help)) - {"more"} == words
    nothing = build()[0].health_checks
    for word, value in examples.items():
        assert build(f"--health-checks={word}{value}")[0].health_checks != nothing


def test_the_port_for_probes(build):
    assert build()[0].liveness_port is None
    assert build(TORCHELASTIC_HEALTH_CHECK_PORT="29999")[0].liveness_port == 29999


@pytest.mark.parametrize("word", ["--node-rank=1", "--health-checks=fan", "--preload"])
def test_a_command_that_cannot_run_makes_nothing(build, tmp_path, word):
    with pytest.raises(UsageError):
        build(word)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_files_that_are_bounded(build):
    for words in (["-r=2"], ["--tee=0:1"], ["--local-ranks-filter=0", "--nproc-per-node=2"]):
        assert build("--log-max-bytes=9M", *words)[0].log_max_bytes == 9 << 20


def test_fault_plans_are_joined(build):
    config, _ = build(
        "--inject-fault", "sigkill:rank=0", "--inject-fault=exception:rank=0,iteration=3"
    )
    assert config.faults == "sigkill:rank=0;exception:rank=0,iteration=3"


@pytest.fixture
def front(monkeypatch):
    """A front that only notes what it was asked to run."""
    configs = []

    def fake_run(config, _end_for_script):
        configs.append(config)
        return 7

    module = types.SimpleNamespace(run=fake_run)
    monkeypatch.setitem(sys.modules, "undaunted.fault_tolerance.front", module)
    return configs


def test_main_hands_over_to_the_front(front, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert run.main(["train.py", "a"]) == 7
    assert front[0].args == ["a"]
    assert capsys.readouterr() == ("", "")


def test_current_directory_that_is_gone(front, tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run.main(["train.py"]) == 2
    assert "the current directory no longer exists" in capsys.readouterr().err


def test_gpu_failures_of_this_node(build):
    assert build()[0].gpu_failures == ()
    config, _ = build(NVRX_INJECT_GPU_FAILURE="1:0,2:5", SLURM_PROCID="5")
    assert (config.gpu_failures, config.infra_rank) == (((1, 0), (2, 5)), 5)
    assert build(NVRX_INJECT_GPU_FAILURE="1:0", SLURM_JOB_ID="7")[0].infra_rank == 0


def test_jobs_of_several_nodes_without_a_name_share_no_directory(build, tmp_path):
    several = ("--nnodes", "2", "--rdzv-endpoint")
    config, _ = build(*several, "localhost:29400", "--tee=3", "--log-dir", "logs")
    assert config.run_dir == str(tmp_path / "undaunted-runs" / "localhost_29400")
    assert config.log_dir == str(tmp_path / "logs" / "localhost_29400")
    assert build(*several, "localhost:29500")[0].run_dir.endswith("/localhost_29500")
    assert build(*several, "localhost:29400", "--rdzv-id", "job")[0].run_dir.endswith("/job")
    assert build(*several, "localhost:29400", SLURM_JOB_ID="7", SLURM_PROCID="0")[0].run_id == (
        "slurm-7"
    )
