"""The report of a real job of two nodes: a crash, then a launcher that is killed and comes back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from simulator.__main__ import main as simulator
from tests.e2e.launcher import nodes_of_a_job
from tests.journal.test_trace import events_of, names, on
from undaunted.cli.report import main as report

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

RANK = """
    import os, pathlib, threading, undaunted
    rank, number = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    undaunted.step(0)
    undaunted.step(1)
    os.write(1, f"rank {rank} in round {number}\\n".encode())
    if number == 0 and rank == 0:
        while not pathlib.Path("crash").exists():
            threading.Event().wait(0.02)
        raise ValueError("bad batch")
    while not pathlib.Path("finish").exists():
        threading.Event().wait(0.02)
    undaunted.step(2)
"""


def test_a_crash_and_a_lost_launcher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--nnodes", "2", "--max-restarts", "3")
    with nodes_of_a_job(tmp_path, RANK, *options) as start:
        one, two = start("one", "is_host=1"), start("two", "is_host=0")
        for launcher, rank in ((one, 0), (two, 1)):
            launcher.wait_for(f"rank {rank} in round 0")
        (tmp_path / "crash").touch()
        for launcher, rank in ((one, 0), (two, 1)):
            launcher.wait_for(f"rank {rank} in round 1")
        two.process.kill()
        again = start("two", "is_host=0")
        one.wait_for("rank 0 in round 2")
        again.wait_for("rank 1 in round 2")
        (tmp_path / "finish").touch()
        assert (one.finish(), again.finish()) == (0, 0)

    run = str(tmp_path / "run")
    assert simulator(["--check", run]) == 0
    assert capsys.readouterr().out == "checked:  3 rounds, 3 launches: no violations\n"
    assert report([run, "--json"]) == 0
    job = json.loads(capsys.readouterr().out)["job"]
    assert (job["attempts"], job["restarts"], job["outcome"]) == (1, 2, "finished")
    failures = [(one["failure"] or {}).get("kind") for one in job["rounds"]]
    assert failures == ["crash", "lost", None]
    assert job["failures"]["by_node"] == {"one": 1, "two": 1}
    assert [len(one["parts"]) for one in job["rounds"]] == [2, 2, 2]
    assert [one["lost_steps"] for one in job["rounds"]] == [1, 1, None]
    assert 0 < job["goodput"] < 1
    assert [clock["method"] for clock in job["clocks"]] == ["reference"]
    assert report([run]) == 0
    assert "failures: 2, one in" in capsys.readouterr().out
    assert report([run, "--trace", str(tmp_path / "trace.json")]) == 0
    found = events_of((tmp_path / "trace.json").read_text())
    assert set(names(found, "process_name").values()) == {"job", "node one", "node two"}
    assert [one["name"] for one in on(found, "rank 1")].count("steps") == 3
    assert {"crash", "lost"} <= {one["name"] for one in found if one["ph"] == "i"}
    assert sum(one["name"] == "restart" for one in found) == 4
