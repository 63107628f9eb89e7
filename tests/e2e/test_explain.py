"""`undaunted explain` names the right rank of real jobs, with a quote that stands where it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launcher import DEADLINE_S, launched

pytestmark = pytest.mark.e2e

CRASHES = """
    import os, threading, undaunted
    for step in range(6):
        undaunted.step(step)
        if step == 3 and os.environ["RANK"] == "1":
            raise ValueError("bad batch 17")
    threading.Event().wait(60)
"""
HANGS = """
    import os, threading, undaunted
    def load_batch():
        threading.Event().wait(600)
    for step in range(6):
        undaunted.step(step)
        if step == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if os.environ["RANK"] == "1":
                load_batch()
            while True:
                undaunted.heartbeat()
                threading.Event().wait(0.05)
"""


def explain(run_dir: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "undaunted.cli.main", "explain", str(run_dir), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=DEADLINE_S, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def line_at(source: str) -> str:
    file, _, number = source.rpartition(":")
    return Path(file).read_text().splitlines()[int(number) - 1]


def test_a_crash_that_comes_again(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "2", "--max-restarts", "2", "--redirects", "3")
    with launched(tmp_path, CRASHES, *options) as launcher:
        assert launcher.finish() == 1, launcher.text
        found = explain(launcher.run_dir)
    assert (found["job"]["outcome"], found["job"]["exit_code"]) == ("failed", 1)
    conclusion = found["conclusion"]
    assert (conclusion["cause"], conclusion["ranks"]) == ("program_error", [1])
    assert conclusion["action"] == "stop"
    assert [one["iteration"] for one in found["rounds"]] == [3, 3, 3]
    for one in found["rounds"]:
        root = one["findings"][0]
        assert root["quote"] == "ValueError: bad batch 17"
        assert "stderr.log:" in root["source"]
        assert line_at(root["source"]) == root["quote"]


def test_a_hang_that_is_survived(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "3")
    with launched(tmp_path, HANGS, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        found = explain(launcher.run_dir)
    assert found["job"]["outcome"] == "finished"
    (one,) = found["rounds"]
    assert (one["findings"][0]["ranks"], one["iteration"]) == ([1], 5)
    assert "load_batch" in one["findings"][0]["quote"]
    assert line_at(one["findings"][0]["source"]).strip() == one["findings"][0]["quote"]
    assert "restarted the job" in one["did"]
