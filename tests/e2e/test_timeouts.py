"""Limits that nobody gave: calculated by the ranks, or learned by a predecessor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched
from undaunted.base.ids import node_name
from undaunted.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e


def test_a_hang_is_noticed_at_a_calculated_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """
        import os, threading
        from undaunted.fault_tolerance import RankMonitorClient
        client = RankMonitorClient()
        client.init_workload_monitoring()
        pause = threading.Event()
        first_round = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        for step in range(10):
            client.send_heartbeat()
            pause.wait(0.1)
        if first_round:
            assert client.calculate_and_set_hb_timeouts()
            assert client.cfg.rank_heartbeat_timeout < 60  # --ft-min-measured-timeout
            pause.wait(600)
        else:
            assert client.hb_timeouts.were_calculated
            client.shutdown_workload_monitoring()
            assert client.calculate_and_set_hb_timeouts() is False
    """
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--ft-min-measured-timeout", "3")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        (verdict,) = launcher.events("verdict")
        assert verdict["watch"] == "heartbeat"
        assert verdict["limit_source"] == "calculated"
        assert "calculated)" in str(verdict["line"])
        assert str(verdict["distribution"]).startswith("gaps between heartbeats in this round: 9,")
        changed = launcher.events("limits_changed")[0]
        assert changed["sources"] == {
            "initial_heartbeat": "calculated",
            "heartbeat": "calculated",
        }
        stacks = (launcher.run_dir / "stacks-round0.txt").read_text()
        assert "gaps between heartbeats in this round: 9, longest" in stacks
        assert main(["report", str(launcher.run_dir), "--round", "0"]) == 0
        assert "gaps between heartbeats in this round: 9" in capsys.readouterr().out


def test_limits_of_the_program_do_not_count_while_its_interpreter_leaves(tmp_path: Path) -> None:
    script = """
        import atexit, threading, undaunted
        def upload():
            threading.Event().wait(4)
            print("uploaded", flush=True)
        atexit.register(upload)
        for step in range(3):
            with undaunted.section("step"):
                undaunted.step(step)
    """
    options = ("--ft-rank-heartbeat-timeout", "1", "--ft-rank-out-of-section-timeout", "1")
    with launched(tmp_path, script, "--nproc-per-node", "1", *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        assert "uploaded" in launcher.seen
        assert not launcher.events("failure_detected")


def test_what_was_seen_is_kept_in_the_run_directory(tmp_path: Path) -> None:
    script = """
        import undaunted
        for step in range(20):
            undaunted.step(step)
    """
    path = tmp_path / "run" / f"learned-limits-{node_name({})}.json"
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        assert launcher.finish() == 0, launcher.text
    assert not path.exists(), "nothing was seen after the warm-up"
    gaps = {"count": 5000, "longest_ns": 10**10}
    known = {"world_size": 1, "observed_ns": 10**14, "samples": {"heartbeat": gaps}}
    path.write_text(json.dumps({"version": 3, "entries": [known]}))
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        assert launcher.finish() == 0, launcher.text
        (changed,) = launcher.events("limits_changed")
        assert changed["limits"] == {"heartbeat": 60.0}
        assert "learned from 5000 samples" in changed["sources"]["heartbeat"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_in_strict_mode_every_call_is_confirmed(tmp_path: Path) -> None:
    script = """
        from undaunted.fault_tolerance import RankMonitorClient
        client = RankMonitorClient()
        client.init_workload_monitoring()
        assert client.cfg.skip_section_response is False
        for step in range(50):
            client.send_heartbeat()
            client.start_section("step")
            client.end_section("step")
        client.shutdown_workload_monitoring()
    """
    options = ("--nproc-per-node", "2", "--ft-skip-section-response=false")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
