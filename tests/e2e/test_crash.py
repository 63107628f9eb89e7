"""Crashes of every kind end in a restart from the last checkpoint, explained in one line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

# In each round rank 1 fails in another way while rank 0 waits, until there is none left.
EACH = """
    import os, sys, signal, resource, threading, undaunted
    rank, turn = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    undaunted.step(turn)  # without progress there would be pauses
    if rank == "0" and turn < {count}:
        open(f"there-{{turn}}", "w").close()
        threading.Event().wait(60)
    while turn < {count} and not os.path.exists(f"there-{{turn}}"):
        threading.Event().wait(0.01)
    {fails}
    sys.stdout.write(f"rank {{rank}} done\\n")
"""

KINDS = {
    "exception": ("raise ValueError('bad batch 17')", r"rank 1 .*ValueError: bad batch 17"),
    "exit code": ("sys.exit(7)", r"rank 1 .*exit(ed with)? (code )?7"),
    "os._exit": ("os._exit(3)", r"rank 1 .*exit(ed with)? (code )?3"),
    "SIGKILL": ("os.kill(os.getpid(), 9)", r"rank 1 .*SIGKILL"),
    "SIGTERM": ("os.kill(os.getpid(), 15)", r"rank 1 .*SIGTERM"),
    "abort": ("os.abort()", r"rank 1 .*SIGABRT"),
    "segfault": ("import ctypes; ctypes.string_at(0)", r"rank 1 .*SIGSEGV"),
    "memory": (
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); x = bytearray(1 << 32)",
        r"rank 1 .*MemoryError",
    ),
    "descriptors": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)); x = [*map(open, [os.devnull] * 40)]",
        r"rank 1 .*Too many open files",
    ),
    "no imports": (
        "sys.path.clear(); sys.meta_path.clear(); raise ValueError('bad batch 17')",
        r"rank 1 .*ValueError: bad batch 17",
    ),
}


@pytest.mark.parametrize("mode", ["warm", "fresh"])
def test_each_crash_is_explained_and_survived(tmp_path: Path, mode: str) -> None:
    count = len(KINDS)
    fails = [f"if turn == {number}: {fail}" for number, (fail, _) in enumerate(KINDS.values())]
    script = EACH.format(count=count, fails="\n    ".join(fails))
    options = ("--nproc-per-node", "2", "--max-restarts", str(count), "--worker-start", mode)
    with launched(tmp_path, script, *options) as launcher:
        for number, (_, line) in enumerate(KINDS.values(), 1):
            launcher.wait_for_next(line)
            launcher.wait_for_next(rf"restart {number} of {count}: 2 ranks running again")
        assert launcher.finish() == 0, launcher.text
        assert launcher.text.count("rank 0 done") == 1
        assert launcher.text.count("rank 1 done") == 1
        found = [(verdict["kind"], verdict["rank"]) for verdict in launcher.events("verdict")]
        assert found == [("crash", 1)] * count
        (ended,) = launcher.events("job_ended")
        assert (ended["outcome"], ended["exit_code"]) == ("finished", 0)


@pytest.mark.parametrize("trains", [False, True])
def test_a_wrong_command_line_is_not_restarted(tmp_path: Path, trains: bool) -> None:
    begin = "import undaunted; undaunted.step(0)" if trains else ""
    script = f"""
        import argparse
        {begin}
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", required=True)
        parser.parse_args()
    """
    with launched(tmp_path, script, "--nproc-per-node", "2", "--max-restarts", "1") as launcher:
        assert launcher.finish() == 1, launcher.text
        assert len(launcher.events("round_started")) == 1 + trains
        (ended,) = launcher.events("job_ended")
        assert ("not restarted: every rank" in str(ended["reason"])) is not trains


def test_without_restarts_left_the_first_cause_is_shown_in_full(tmp_path: Path) -> None:
    script = """
        import os
        def load():
            raise KeyError("weights.17")
        load()
    """
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        assert launcher.finish() == 1
        launcher.wait_for(r"rank 0 .*KeyError")
        launcher.wait_for(r"--max-restarts is 0")
        launcher.wait_for(r"train.py.*line \d+.*in load")


def test_a_crash_before_the_first_heartbeat_in_every_round(tmp_path: Path) -> None:
    """Also: a crash-looping script uses up its budget and no more."""
    script = """
        import undaunted, os
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            undaunted.heartbeat()
        raise RuntimeError("no data")
    """
    options = ("--nproc-per-node", "2", "--max-restarts", "4")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 1
        assert len(launcher.events("round_started")) == 5
        launcher.wait_for(r"no restart is left of 4")


def test_an_exception_of_a_rank_that_ends_with_0_all_the_same(tmp_path: Path) -> None:
    script = """
        import atexit, os
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            atexit.register(os._exit, 0)
            raise ValueError("swallowed")
    """
    options = ("--nproc-per-node", "1", "--max-restarts", "1", "--worker-start", "fresh")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        launcher.wait_for("rank 0 .*ValueError: swallowed")


def test_the_victim_is_not_blamed(tmp_path: Path) -> None:
    """Rank 0 fails because its peer is gone; the peer, killed from outside, is the cause."""
    script = """
        import os, signal
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        for step in range(1000):
            if step == 5 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 10 and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
                break
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    """
    options = ("--nproc-per-node", "2", "--max-restarts", "1")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        (verdict,) = launcher.events("verdict")
        assert (verdict["rank"], verdict["signal"]) == (1, "SIGKILL")


def test_torch_record_error_files_are_read(tmp_path: Path) -> None:
    script = """
        from torch.distributed.elastic.multiprocessing.errors import record
        @record
        def main():
            raise LookupError("shard 9 is missing")
        main()
    """
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        assert launcher.finish() == 1
        launcher.wait_for(r"LookupError: shard 9 is missing")


def test_our_own_error_file_is_served_to_a_launcher_above_us(tmp_path: Path) -> None:
    above = tmp_path / "error.json"
    with launched(
        tmp_path,
        "raise ValueError('deep down')",
        "--nproc-per-node",
        "1",
        TORCHELASTIC_ERROR_FILE=str(above),
    ) as launcher:
        assert launcher.finish() == 1
    assert "deep down" in above.read_text()


def test_a_worker_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = """
        import os, signal, threading
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if os.environ["RANK"] == "1":
                open("ignored").read()
                raise SystemExit(1)
            open("ignored", "w").close()
            while True:
                threading.Event().wait(60)
    """
    os.mkfifo(tmp_path / "ignored")  # rank 1 waits there until rank 0 ignores the signal
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--workers-stop-timeout", "0.3")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        by_kill = [e for e in launcher.events("rank_exited") if e.get("signal") == "SIGKILL"]
        assert [e["rank"] for e in by_kill] == [0]


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_100_restarts_in_a_row(tmp_path: Path) -> None:
    script = """
        import os, sys, undaunted
        turn = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        undaunted.step(turn)  # without progress there would be pauses
        sys.exit(turn != 100)
    """
    options = ("--nproc-per-node", "2", "--max-restarts", "100")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish(150) == 0, launcher.text[-3000:]
        assert len(launcher.events("round_started")) == 101


def test_a_template_that_is_killed_is_replaced(tmp_path: Path) -> None:
    script = """
        import os, signal, sys, threading
        turn = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if turn == "0":
            agent = os.getppid()
            children = open(f"/proc/{agent}/task/{agent}/children").read().split()
            (template,) = set(map(int, children)) - {os.getpid()}
            os.kill(template, signal.SIGKILL)
        sys.exit(turn != "2")
    """
    options = ("--nproc-per-node", "1", "--max-restarts", "2")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        launcher.wait_for(r"the template ended unexpectedly: .*SIGKILL.*; another one is started")
        first, _, last = (event["mode"] for event in launcher.events("workers_spawned"))
        assert (first, last) == ("warm", "warm")


@pytest.mark.parametrize("mode", ["warm", "fresh"])
def test_the_agent_outlives_its_ranks_when_memory_runs_out(tmp_path: Path, mode: str) -> None:
    script = """
        import os, sys
        scores = [int(open(f"/proc/{pid}/oom_score_adj").read()) for pid in ("self", os.getppid())]
        sys.exit(0 if scores[0] == min(1000, scores[1] + 100) else 1)
    """
    with launched(tmp_path, script, "--nproc-per-node", "1", "--worker-start", mode) as launcher:
        assert launcher.finish() == 0, launcher.text


def test_two_launchers_at_once(tmp_path: Path) -> None:
    script = """
        import os
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(1)
        dist.destroy_process_group()
    """
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    options = ("--nproc-per-node", "2", "--max-restarts", "1")
    with (
        launched(tmp_path / "a", script, *options) as first,
        launched(tmp_path / "b", script, *options) as second,
    ):
        assert first.finish() == 0, first.text
        assert second.finish() == 0, second.text
