"""A node that is unhealthy runs no round."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

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


def test_what_hangs_is_named_and_a_signal_ends_the_wait(tmp_path: Path) -> None:
    """A health service that never answers would take a minute."""
    import socket

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        options = ("--ft-node-health-check-endpoint", str(tmp_path / "s"))
        with launched(tmp_path, "print('a worker')", *options) as launcher:
            launcher.wait_for("1 restart|0 restarts")
            launcher.process.send_signal(signal.SIGTERM)
            assert launcher.finish() in (0, 75), launcher.text
