"""Hangs of every kind are noticed at their limit, explained, and survived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import DEADLINE_S, explained, launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

ONCE = """
    import os, sys, signal, threading, time, ctypes
    import undaunted
    rank = int(os.environ["RANK"])
    first_round = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    beat = threading.Event()
    def stuck():
        {hang}
    for step in range(12):
        undaunted.step(step)
        if first_round and rank == 1 and step == 5:
            stuck()
        beat.wait(0.05)
    if first_round:  # the healthy rank goes on beating until it is stopped
        while True:
            undaunted.heartbeat()
            beat.wait(0.05)
    sys.stdout.write(f"rank {{rank}} done\\n")
"""

KINDS = {
    "sleep": "time.sleep(600)",
    "SIGSTOP": "os.kill(os.getpid(), signal.SIGSTOP)",
    "GIL held": "ctypes.PyDLL(None).sleep(600)",
    "busy loop": "while True: pass",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
}


# One item of the data is never there.
LOADER = """
    import time
    import torch, undaunted
    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, number):
            if number == 20:
                self.item_that_never_comes()
            return number
        def item_that_never_comes(self):
            time.sleep(600)
    if __name__ == "__main__":
        loader = torch.utils.data.DataLoader(Items(), num_workers=2, multiprocessing_context="fork")
        for step, item in enumerate(loader):
            undaunted.step(step)
"""


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_the_stacks_of_workers_of_a_data_loader_are_kept(tmp_path: Path) -> None:
    with launched(tmp_path, LOADER, "--ft-rank-heartbeat-timeout", "5") as launcher:
        assert launcher.finish(120) == 1, launcher.text
        (verdict,) = launcher.events("verdict")
        assert "waiting for the DataLoader" in verdict["line"]
        stacks = (launcher.run_dir / "stacks-round0.txt").read_text()
        rank, *children = stacks.split("--- child of rank 0, pid ")
        assert "item_that_never_comes" not in rank
        assert sum("in item_that_never_comes" in child for child in children) == 1
        assert len(children) == 2


# Waits for all, as a collective does; rank 1 has fewer batches than the others.
UNEQUAL = """
    import glob, os, sys, time
    import undaunted
    rank = os.environ["RANK"]
    def wait_for_all(step):
        open(f"{step}-{rank}", "w").close()
        while len(glob.glob(f"{step}-*")) < 3:
            time.sleep(0.01)
    for step in range(12):
        undaunted.step(step)
        if rank == "1" and step == 5:
            sys.exit(0)
        wait_for_all(step)
"""


def test_a_rank_that_ends_early_is_named_before_a_limit_is_passed(tmp_path: Path) -> None:
    with launched(tmp_path, UNEQUAL, "--nproc-per-node", "3", "--node-name", "a") as launcher:
        told = r"rank 1 .*ended with 0 at iteration 5; ranks 0,2 wait for it.*nothing is stopped"
        launcher.wait_for(told)
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 75, launcher.text
        (event,) = launcher.events("rank_silent")
        assert event["rank"] == 0
        assert "wait_for_all" in (tmp_path / str(event["path"])).read_text()


def test_a_rank_that_ends_early_is_named_by_all_who_tell(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "3", "--node-name", "a", "--ft-rank-heartbeat-timeout", "3")
    with launched(tmp_path, UNEQUAL, *options) as launcher:
        assert launcher.finish() == 1, launcher.text
        (verdict,) = launcher.events("verdict")
        assert (verdict["rank"], verdict["iteration"], verdict["waiting"]) == (1, 5, [0, 2])
        assert verdict["cause"] == "unequal_work"
        launcher.wait_for(r"rank 1 .*ended with 0 at iteration 5; ranks 0,2 wait for it")
        command = [sys.executable, "-m", "undaunted.cli.main", "explain", str(launcher.run_dir)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        conclusion, advice = (
            next(line for line in told.stdout.splitlines() if line.startswith(word))
            for word in ("conclusion:", "advice:")
        )
        assert "rank 1 on node a: ranks end at different iterations" in conclusion
        assert advice.startswith("advice: start the job again")  # once proves nothing
        assert "unequal work" in advice
        assert advice.endswith("at iteration 5; after 3 times the advice is: stop")


@pytest.mark.parametrize("kind", KINDS)
def test_a_hang_is_explained_and_survived(tmp_path: Path, kind: str) -> None:
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "3")
    with launched(tmp_path, ONCE.format(hang=KINDS[kind]), *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        (verdict,) = launcher.events("verdict")
        assert (verdict["kind"], verdict["rank"], verdict["iteration"]) == ("hang", 1, 5)
        assert verdict["limit_s"] == 3.0
        assert "--ft-rank-heartbeat-timeout" in verdict["line"]
        launcher.wait_for(r"rank 1 .*pid \d+.*limit 3 s")
        stacks = (launcher.run_dir / "stacks-round0.txt").read_text()
        if kind != "SIGSTOP":
            assert "in stuck" in verdict["line"]
            assert "train.py" in stacks
        else:
            assert "stopped" in verdict["line"]
        assert launcher.text.count("rank 1 done") == 1


def test_stuck_before_the_first_heartbeat(tmp_path: Path) -> None:
    script = """
        import os, threading
        from undaunted.fault_tolerance import RankMonitorClient
        client = RankMonitorClient()
        client.init_workload_monitoring()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "0":
            threading.Event().wait(600)
        client.send_heartbeat()
        client.shutdown_workload_monitoring()
    """
    options = ("--nproc-per-node", "2", "--max-restarts", "1")
    limit = ("--ft-initial-rank-heartbeat-timeout", "1")
    with launched(tmp_path, script, *options, *limit) as launcher:
        assert launcher.finish() == 0, launcher.text
        launcher.wait_for(r"rank 0 .*first heartbeat.*1 s")


def test_each_open_section_has_its_own_limit(tmp_path: Path) -> None:
    """An inner section with a long limit does not hide an outer one that hangs."""
    script = """
        import os, threading, undaunted
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            with undaunted.section("outer"), undaunted.section("inner"):
                threading.Event().wait(600)
    """
    options = ("--nproc-per-node", "1", "--max-restarts", "1")
    limits = ("--ft-rank-section-timeouts", "outer:1,inner:1000")
    with launched(tmp_path, script, *options, *limits) as launcher:
        assert launcher.finish() == 0, launcher.text
        launcher.wait_for(r"section 'outer'")


def test_the_rank_that_others_wait_for_is_blamed(tmp_path: Path) -> None:
    """Both ranks pass the limit; the one inside all_reduce is a victim."""
    script = """
        import os, time
        import torch, torch.distributed as dist
        import undaunted
        def load_batch():
            time.sleep(600)
        dist.init_process_group("gloo")
        first_round = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        for step in range(8):
            undaunted.step(step)
            if first_round and step == 5 and dist.get_rank() == 1:
                load_batch()
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    """
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "3")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        (verdict,) = launcher.events("verdict")
        assert verdict["rank"] == 1
        assert verdict["waiting"] == [0]
        assert "load_batch" in verdict["line"]
        assert "all_reduce" in verdict["line"]


def test_a_pause_of_the_agent_itself_kills_nobody(tmp_path: Path) -> None:
    script = """
        import threading, undaunted, sys
        pause = threading.Event()
        for step in range(60):
            if step == 10:
                print("beating", flush=True)
            # Beats only now and then, so that a deadline passes while the agent is stopped.
            undaunted.step(step)
            pause.wait(0.1)
    """
    options = ("--nproc-per-node", "2", "--ft-rank-heartbeat-timeout", "2")
    with launched(tmp_path, script, *options) as launcher:
        launcher.wait_for("beating")
        agent = launcher.agent_pid
        os.kill(agent, signal.SIGSTOP)
        try:
            with pytest.raises(AssertionError, match="nothing within"):
                launcher.wait_for_next("a line that never comes", timeout_s=3.5)
        finally:
            os.kill(agent, signal.SIGCONT)
        assert launcher.finish() == 0, launcher.text
        assert launcher.events("verdict") == []
        assert launcher.events("agent_paused")


def test_a_rank_that_has_ended_owes_no_heartbeats(tmp_path: Path) -> None:
    """Its page stays as it was, and the other one goes on for longer than the limit."""
    script = """
        import os, threading, undaunted
        for step in range(1 if os.environ["RANK"] == "0" else 50):
            undaunted.step(step)
            threading.Event().wait(0.1)
    """
    options = ("--nproc-per-node", "2", "--ft-rank-heartbeat-timeout", "3")
    with launched(tmp_path, script, *options, "--worker-start", "fresh") as launcher:
        assert launcher.finish() == 0, launcher.text
        assert launcher.events("failure_detected") == []


def test_shut_down_monitoring_is_not_judged(tmp_path: Path) -> None:
    script = """
        import threading
        from undaunted.fault_tolerance import RankMonitorClient
        client = RankMonitorClient()
        client.init_workload_monitoring()
        client.send_heartbeat()
        client.shutdown_workload_monitoring()
        threading.Event().wait(4)  # a long export, say
    """
    options = ("--nproc-per-node", "1", "--ft-rank-heartbeat-timeout", "2")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 0, launcher.text


# torch.compile waits in files of this name for compilers that it has started.
COMPILES = """
    import importlib.util, os, pathlib, subprocess, sys
    import undaunted
    file = pathlib.Path("torch/_inductor/async_compile.py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("import subprocess\\ndef wait(command): subprocess.run(command)\\n")
    found = importlib.util.spec_from_file_location("async_compile", file.absolute())
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    work = "import pathlib; go = pathlib.Path('compiled')\\nwhile not go.exists(): pass"
    idle = "import threading; threading.Event().wait(600)"
    undaunted.step(0)
    module.wait([sys.executable, "-c", work if sys.argv[1] == "busy" else idle])
    undaunted.step(1)
"""


@pytest.mark.parametrize("children", ["busy", "idle"])
def test_a_rank_whose_compilers_are_busy_does_not_hang(tmp_path: Path, children: str) -> None:
    options = ("--nproc-per-node", "1", "--ft-rank-heartbeat-timeout", "3")
    if children == "idle":
        options = (*options[:3], "1")
    with launched(tmp_path, COMPILES, *options, args=(children,)) as launcher:
        if children == "busy":
            launcher.wait_for(r"rank 0 .* compiles \(torch.compile\): .* busy.* warmup:")
            (tmp_path / "compiled").touch()
            assert launcher.finish() == 0, launcher.text
            assert not launcher.events("failure_detected")
        else:
            assert launcher.finish() == 1, launcher.text
            launcher.wait_for(r"rank 0 .* hangs: .* compiling \(torch.compile\)")


def test_ranks_that_wait_to_print_are_not_blamed(tmp_path: Path) -> None:
    """As under a parent that reads standard error to its end before it reads standard output."""
    (tmp_path / "train.py").write_text(
        "import undaunted\n"
        "for step in range(10**9):\n"
        "    undaunted.step(step)\n"
        "    print('x' * 200, flush=True)\n"
    )
    command = [sys.executable, "-m", "undaunted.cli.main", "run", "--nproc-per-node", "2"]
    limit = ("--ft-rank-heartbeat-timeout", "3")
    launcher = subprocess.Popen(
        [*command, "--run-dir", "run", *limit, "train.py"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    with launcher.stdout, launcher.stderr:
        said = launcher.stderr.read()
        assert launcher.wait(DEADLINE_S) == 1
    assert "ranks 0-1 (node" in said
    assert "wait to print" in said
    assert "nobody reads standard output of the launcher" in said
    assert "-t 3" in said
    assert "hangs" not in said.partition("failed:")[0]
    why = explained(tmp_path / "run")
    assert (why["cause"], why["ranks"], why["action"]) == ("output_unread", [], "restart")
