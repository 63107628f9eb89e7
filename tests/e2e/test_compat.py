"""Programs that are written for NVRx, under `ft_launcher`, with gloo.

``compat_scripts`` has a training program of Megatron's kind, and one script for each area.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(200)]

SCRIPTS = Path(__file__).with_name("compat_scripts")
LAUNCHER = "import sys; from undaunted.cli.main import ft_launcher; sys.exit(ft_launcher())"
DEADLINE_S = 150
slow = partial(pytest.param, marks=pytest.mark.slow)
TWO = ("--nproc-per-node=2",)
ONE_RESTART = ("--nproc-per-node=2", "--max-restarts=1")
SECTIONS = (
    "--ft-param-rank_section_timeouts=setup:60,step:3,checkpointing:60",
    "--ft-param-rank_out_of_section_timeout=60",
)
# A second of CPU, which each rank would need.
ONCE = ("--preload=torch.distributed.checkpoint",)
# The sum of all weights after 40 iterations, whatever has happened on the way.
RESULT = sum(iteration % 7 for iteration in range(40)) * sum(range(1000))


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


def ft_launcher(tmp_path: Path, options: tuple[str, ...], script: str, *args: str) -> str:
    """Run a script under the launcher, which has to succeed; return what was printed."""
    output = tmp_path / "output"
    command = [sys.executable, "-c", LAUNCHER, "--run-dir", "run", *options]
    with output.open("w") as out:
        launcher = subprocess.Popen(
            [*command, str(SCRIPTS / script), *args],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        code = launcher.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{script} hangs\n{output.read_text()}", pytrace=False)
    finally:
        launcher.terminate()  # it ends its ranks
        launcher.wait()
    text = output.read_text()
    assert code == 0, text
    return text


def pretrain(tmp_path: Path, options: tuple[str, ...], *args: str) -> str:
    """Run the program of Megatron's kind; it must come to the right result in all that end it."""
    text = ft_launcher(tmp_path, (*SECTIONS, *ONCE, *options), "pretrain.py", *args)
    ends = re.findall(r"^process \d+ ends with .*", text, re.MULTILINE)
    assert ends
    assert all(line.endswith(f"ends with {RESULT}") for line in ends), text
    return text


@pytest.mark.slow
def test_limits_are_calculated_saved_and_loaded(tmp_path: Path) -> None:
    text = pretrain(tmp_path, TWO, "--calc-ft-timeouts")
    assert "updating timeouts for: ['checkpointing'] update out-of-section: False" in text
    assert "updating timeouts for: ['step', 'checkpointing']" in text
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("16")
    text = pretrain(tmp_path, TWO, "--calc-ft-timeouts")
    assert "FT: loaded timeouts from checkpoints/ft_state.json" in text
    assert "process 1 begins at iteration 16, rank 1 of 2" in text
    assert "['setup', 'step', 'checkpointing'] update out-of-section: True" in text
    assert json.loads((tmp_path / "checkpoints" / "ft_state.json").read_text())


@pytest.mark.parametrize("fault", ["rank_killed", slow("rank_hung")])
def test_processes_are_restarted(tmp_path: Path, fault: str) -> None:
    text = pretrain(tmp_path, ONE_RESTART, "--async-save", "--fault", fault)
    if fault == "rank_killed":
        assert "rank 1 (node" in text
        assert "was killed by SIGKILL" in text
    else:
        assert re.search(r"section 'step' open for \d+\.\d s \(limit 3 s", text)
    for rank in range(2):
        assert f"process {rank} begins at iteration 0" in text
        assert f"process {rank} begins at iteration 16" in text


INSIDE = ("--async-save", "--inprocess-restart", "--fault")


@pytest.mark.parametrize("more", [(), slow(("--share-store",))], ids=["prefixes", "one store"])
def test_a_fault_in_a_collective_is_restarted_inside(tmp_path: Path, more: tuple[str, ...]) -> None:
    text = pretrain(tmp_path, ("--nproc-per-node=3",), *INSIDE, "exception", *more)
    assert "in-process restart 1: 3 ranks running again" in text
    for process in range(3):
        assert f"process {process} begins at iteration 16, rank {process} of 3" in text
        assert f"finalized in process {process}" in text
    states = [line.partition("[InProcess] ")[2] for line in text.splitlines() if "[Nested" in line]
    assert states == [
        "state=initialize",
        "state=handling stage=starting",
        "state=handling stage=completed",
        "state=finalized",
    ]


@pytest.mark.slow
def test_a_reserve_takes_over_for_a_process_that_is_killed(tmp_path: Path) -> None:
    policy = ("--ft-restart-policy=min-healthy", "--ft-restart-lost-ranks")
    options = ("--nproc-per-node=3", *policy)
    active = ("--active-world-size", "2")
    text = pretrain(tmp_path, options, *INSIDE, "rank_killed", *active)
    assert "rank 1 (node" in text
    assert "process 2 begins at iteration 16, rank 1 of 2" in text
    assert "process 2 begins at iteration 0" not in text


@pytest.mark.slow
def test_a_silent_rank_is_restarted_inside(tmp_path: Path) -> None:
    soft = ("--soft-timeout", "4")
    generous = ("--ft-param-rank_section_timeouts=setup:60,step:60,checkpointing:60",)
    text = pretrain(tmp_path, (*TWO, *generous), *INSIDE, "silent", *soft)
    assert "in-process restart 1: 2 ranks running again" in text
    assert "process 1 begins at iteration 16, rank 1 of 2" in text


def test_heartbeats(tmp_path: Path) -> None:
    limits = (
        "--ft-param-initial_rank_heartbeat_timeout=60",
        "--ft-param-rank_heartbeat_timeout=3",
        "--ft-param-min_measured_timeout=3",
    )
    text = ft_launcher(tmp_path, (*ONE_RESTART, *limits), "heartbeats.py")
    assert "rank 1 stops" in text
    assert text.count("done after restart 1\n") == 2
    limits_after = [line for line in text.splitlines() if "after restart 1: limits" in line]
    assert len(limits_after) == 2
    assert all("were_calculated=True" in line for line in limits_after)  # from the file


def test_sections(tmp_path: Path) -> None:
    limits = ("--ft-param-rank_section_timeouts=init:60,train:3,forward:2",)
    text = ft_launcher(tmp_path, (*ONE_RESTART, *limits), "sections.py")
    assert text.count("as expected: start_section needs monitoring") == 4
    assert re.search(r"section 'forward' open for \d+\.\d s \(limit 2 s", text)
    assert text.count("done after restart 1\n") == 2


@pytest.mark.parametrize("fault", ["WORKLOAD_EXC", "ASYNC_EXC", "SIGNAL_EXC"])
def test_faults_of_the_old_place_are_restarted_inside(tmp_path: Path, fault: str) -> None:
    text = ft_launcher(tmp_path, TWO, "restart_inside.py", fault)
    assert "in-process restart 1: 2 ranks running again" in text
    for process in range(2):
        assert f"process {process}: iteration 1: 2 ranks" in text


def test_asynchronous_checkpoints(tmp_path: Path) -> None:
    text = ft_launcher(tmp_path, TWO, "async_save.py")
    for rank in range(2):
        assert f"rank {rank}: 499500" in text  # as it was when the save was scheduled
        assert f"rank {rank}: call 2, {sum(range(64)) + 2 * 64}" in text


@pytest.mark.slow
def test_local_checkpoints_survive_the_loss_of_a_disk(tmp_path: Path) -> None:
    text = ft_launcher(tmp_path, ONE_RESTART, "local_save.py")
    for rank in range(2):
        assert f"rank {rank}: loaded" in text
        assert f", [{20 + rank}.0]" in text
        assert f"rank {rank}: done" in text
