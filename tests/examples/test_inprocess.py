from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.launchers import source_path
from tests import warm
from tests.ports import free_ports

EXAMPLES = Path(__file__).parents[2] / "examples" / "inprocess"
DEADLINE_S = 150

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.torch,
    pytest.mark.timeout(DEADLINE_S + 30),
    pytest.mark.usefixtures("no_compiler"),
]


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


def launched(tmp_path: Path, *command: str) -> tuple[int, str]:
    """Run a launcher; return its exit code and what it has printed."""
    output = tmp_path / "output"
    popen = warm.Popen if command[0].startswith("torch.") else subprocess.Popen
    with output.open("w") as out:
        launcher = popen(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env=environment(),
            stdout=out,
            stderr=out,
        )
    try:
        return launcher.wait(DEADLINE_S), output.read_text()
    except subprocess.TimeoutExpired:
        pytest.fail(f"{command} hangs\n{output.read_text()}", pytrace=False)
    finally:
        launcher.terminate()  # it ends its ranks
        launcher.wait()


def processes(tmp_path: Path, script: str, **environ: str) -> tuple[list[int], str]:
    """Run four plain processes; return their exit codes and what they have printed."""
    port = str(free_ports(2))
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "4", **environ}
    output = tmp_path / "output"
    with output.open("a") as out:
        started = [
            warm.Popen(
                [sys.executable, str(EXAMPLES / script)],
                cwd=tmp_path,
                env={**environment(), **own, "RANK": str(rank)},
                stdout=out,
                stderr=out,
            )
            for rank in range(4)
        ]
    try:
        return [each.wait(DEADLINE_S) for each in started], output.read_text()
    finally:
        for each in started:
            each.kill()
            each.wait()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": source_path(), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    "launcher",
    [
        "undaunted.cli.main run",
        pytest.param("torch.distributed.run --standalone", marks=pytest.mark.slow),
    ],
)
def test_basic_example_under_a_launcher(
    tmp_path: Path, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "1")
    script = str(EXAMPLES / "basic.py")
    code, text = launched(tmp_path, *launcher.split(), "--nproc-per-node=4", script)
    assert code == 0, text
    assert "a fault, to see what happens" in text
    assert text.count("): 80") == 4


def test_basic_example_without_a_launcher(tmp_path: Path) -> None:
    codes, text = processes(tmp_path, "basic.py", FAULT="1")
    assert codes == [0] * 4, text
    assert text.count("): 80") == 4


@pytest.mark.parametrize("fault", ["exception", "kill", "hang"])
def test_advanced_example_without_a_launcher(tmp_path: Path, fault: str) -> None:
    codes, text = processes(tmp_path, "advanced.py", FAULT=fault)
    killed = fault == "kill"
    assert codes == [0, -signal.SIGKILL if killed else 0, 0, 0], text
    assert text.count("done, loss") == 3
    assert text.count("was not needed") == (not killed)
    if killed:
        assert "process 3: iteration 1, rank 2 of 3" in text
    # Before and after the fault; nothing is done again, as the checkpoint was made just before.
    assert [text.count(f"step {step} is saved") for step in range(9, 60, 10)] == [1] * 6


@pytest.mark.slow
def test_advanced_example_under_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is killed has torchrun replace all processes, which go on from the checkpoint."""
    monkeypatch.setenv("FAULT", "kill")
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=4", "--max-restarts=1"]
    code, text = launched(tmp_path, *torchrun, str(EXAMPLES / "advanced.py"))
    assert code == 0, text
    assert (text.count("done, loss"), text.count("was not needed")) == (3, 1)
    # The others may have begun without it before torchrun ended them.
    assert text.count("process 0: iteration 0,") == 2, text
    assert [text.count(f"step {step} is saved") for step in range(9, 60, 10)] == [1] * 6
