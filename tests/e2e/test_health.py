"""A node that is unhealthy runs no round."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import DEADLINE_S, launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e


def test_before_any_worker(tmp_path: Path) -> None:
    options = ("--ft-storage-health-check-path", f"{tmp_path},{tmp_path}/none")
    with launched(tmp_path, "print('a worker')", *options) as launcher:
        assert launcher.finish() == 1, launcher.text
        problem = f"the storage check of {tmp_path}/none failed: No such file or directory"
        launcher.wait_for(f"excluded: node .* is unhealthy: {problem}")
        assert "a worker" not in launcher.text
        assert launcher.events("round_started") == []
        (checked,) = launcher.events("node_checked")
        assert checked["problem"] == problem
        (ended,) = launcher.events("job_ended")
        assert (ended["outcome"], ended["exit_code"]) == ("excluded", 1)


def test_before_a_restart(tmp_path: Path) -> None:
    script = """
        import os
        os.rmdir("data")
        raise RuntimeError("no data any more")
    """
    (tmp_path / "data").mkdir()
    options = ("--ft-storage-health-check-path", str(tmp_path / "data"), "--max-restarts", "3")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 1, launcher.text
        launcher.wait_for("excluded: node .* is unhealthy: the storage check of .*/data failed")
        launcher.wait_for("RuntimeError: no data any more")
        assert len(launcher.events("round_started")) == 1
        assert [d["action"] for d in launcher.events("decision")] == ["restart", "end"]
        assert [c.get("problem", "") != "" for c in launcher.events("node_checked")] == [
            False,
            True,
        ]


def test_a_healthy_node_restarts(tmp_path: Path) -> None:
    script = """
        import os, sys
        sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
    """
    options = ("--ft-storage-health-check-path", str(tmp_path), "--max-restarts", "1")
    with launched(tmp_path, script, *options, "--ft-enable-nic-monitor") as launcher:
        assert launcher.finish() == 0, launcher.text
        assert launcher.text.count("the NIC monitor check could not tell") == 1
        assert len(launcher.events("node_checked")) == 2


def test_a_signal_ends_the_wait_for_a_check_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    hang = "import threading; print('a check hangs', flush=True); threading.Event().wait()"
    (tmp_path / "lib/grpc.py").write_text(hang)
    (tmp_path / "socket").touch()
    options = ("--ft-node-health-check-endpoint", str(tmp_path / "socket"))
    path = os.pathsep.join(filter(None, [f"{tmp_path}/lib", os.environ.get("PYTHONPATH")]))
    with launched(tmp_path, "print('a worker')", *options, PYTHONPATH=path) as launcher:
        launcher.wait_for("a check hangs")
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 75, launcher.text
        assert "a worker" not in launcher.text


LAUNCH = """
import os, sys
import msgspec
from undaunted.cli.options import RUN
from undaunted.cli.run import build_config
from undaunted.fault_tolerance.front import run

root, *argv = sys.argv[1:]
config, _ = build_config(RUN.parse(argv, {}), os.environ, os.getcwd())
checks = config.health_checks._replace(root=root)
sys.exit(run(msgspec.structs.replace(config, health_checks=checks)))
"""
LOSES_LINK = """
import pathlib, signal, sys
pathlib.Path(sys.argv[1]).write_text("1")
signal.pause()
"""


def test_a_link_that_is_lost_stops_the_round(tmp_path: Path) -> None:
    counter = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
    counter.parent.mkdir(parents=True)
    counter.write_text("0")
    (tmp_path / "launch.py").write_text(LAUNCH)
    (tmp_path / "train.py").write_text(LOSES_LINK)
    options = ("--ft-enable-nic-monitor", "--ft-node-health-check-interval", "50ms")
    command = ("--run-dir", "run", "--max-restarts", "3", *options, "train.py", str(counter))
    ended = subprocess.run(
        [sys.executable, "launch.py", str(tmp_path), *command],
        cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    reason = "the NIC monitor check failed: mlx5_0 port 1 has lost its link (link_downed 0 -> 1)"
    assert f" is unhealthy: {reason}" in ended.stderr.splitlines()[-1]


def test_strikes_are_remembered_from_job_to_job(tmp_path: Path) -> None:
    check = f"/bin/sh -c 'test -e {tmp_path}/fan || {{ echo no fan; exit 3; }}'"
    strikes = str(tmp_path / "strikes" / "of-this-node")
    options = ("--health-command", check, "--strike-file", strikes, "--strike-limit", "2/1h")
    for _ in range(2):
        with launched(tmp_path, "print('a worker')", *options) as launcher:
            assert launcher.finish() == 1, launcher.text
            launcher.wait_for("excluded: .* the command check of /bin/sh failed: .*: no fan")
    (tmp_path / "fan").touch()
    with launched(tmp_path, "print('a worker')", *options) as launcher:
        assert launcher.finish() == 1, launcher.text
        launcher.wait_for("excluded: .* 2 strikes against it within 1 h")
        assert "a worker" not in launcher.text
