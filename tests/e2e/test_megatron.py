"""The names of Megatron under a real launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched
from tests.said import lines_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e
QUIET = {"TORCH_CPP_LOG_LEVEL": "error"}

SCRIPT = """
    import os, time
    from types import SimpleNamespace
    from undaunted.integrations.megatron import fault_tolerance as ft

    ft.setup(SimpleNamespace(save="saved", async_save=False, calc_ft_timeouts=True,
                             ft_num_warmup_iters=1))
    ft.maybe_setup_simulated_fault()
    time.sleep(1.2)
    ft.on_checkpoint_loaded(False)
    for iteration in range(20):
        ft.on_training_step_start()
        time.sleep(1.2 if iteration == 3 else 0.01)
        ft.on_training_step_end()
    time.sleep(1.2)
    ft.on_checkpointing_start()
    ft.on_checkpointing_end(False)
    ft.shutdown()
    time.sleep(1.2)
    print("rank", os.environ["RANK"], "is done")
"""


def test_a_job_of_sections_alone_never_dies_of_a_limit_of_heartbeats(tmp_path: Path) -> None:
    """Each of its stretches is longer than the limits, which a plug-in has set for it."""
    options = ["--nproc-per-node", "2"]
    options += ["--ft-initial-rank-heartbeat-timeout", "1", "--ft-rank-heartbeat-timeout", "1"]
    with launched(tmp_path, SCRIPT, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        text = launcher.text
    assert "rank 0 is done" in text
    assert "rank 1 is done" in text
    assert "hang" not in text
    assert "FT: updated timeouts saved to saved/ft_state.json." in text


def test_a_simulated_fault_is_announced_and_seen(tmp_path: Path) -> None:
    """Rank 0 announces it: rank 1 must not end the job before that."""
    call = "    ft.maybe_setup_simulated_fault()\n"
    assert call in SCRIPT
    in_turn = """
    while os.environ["RANK"] == "1" and not os.path.exists("announced"):
        time.sleep(0.01)
    ft.maybe_setup_simulated_fault()
    open("announced", "w").close()
"""
    fault = {"FT_SIM_FAULT_DESC": "rank_killed;1;0"}
    with launched(
        tmp_path, SCRIPT.replace(call, in_turn), "--nproc-per-node", "2", **fault
    ) as launcher:
        assert launcher.finish() == 1
        launcher.wait_for(r"rank 1 .*SIGKILL")
    line = "FT: Initializing simulated fault: rank_killed,rank to fail: 1, base delay: 0.0"
    assert line in launcher.seen


# No collective keeps these ranks together.
STOPS = """
    import os, signal, time
    from pathlib import Path
    from undaunted.integrations.megatron.signals import DistributedSignalHandler
    rank = int(os.environ["RANK"])
    with DistributedSignalHandler() as handler:
        Path(f"begun-{rank}").touch()
        while len(list(Path().glob("begun-*"))) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.01)
        for iteration in range(20000):
            time.sleep(0.002 * (1 + rank))
            if iteration == 5:
                print(f"rank {rank} steps", flush=True)
                if rank == 1 and "SELF" in os.environ:
                    os.kill(os.getpid(), signal.SIGTERM)
            if any(handler.signals_received()):
                print(f"rank {rank} stops after {iteration}", flush=True)
                break
"""


@pytest.mark.parametrize("who", ["launcher", "rank"])
def test_all_ranks_stop_after_one_iteration(tmp_path: Path, who: str) -> None:
    env = {"SELF": "1"} if who == "rank" else {}
    with launched(tmp_path, STOPS, "--nproc-per-node", "3", **env) as launcher:
        if who == "launcher":
            launcher.wait_for("rank 1 steps")
            launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 75, launcher.text
    after = [line.partition(" after ")[2] for line in launcher.seen if " stops after " in line]
    assert len(after) == 3
    assert len({*after}) == 1


ALONE = """
    import os, signal
    import torch.distributed as dist
    from undaunted.integrations.megatron.signals import DistributedSignalHandler
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=rank,
                            world_size=2)
    with DistributedSignalHandler() as handler:
        print(handler.signals_received(), flush=True)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        print(handler.signals_received(), flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.torch
def test_without_the_launcher_ranks_ask_each_other(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(ALONE)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "STORE": f"{tmp_path}/store"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        said = lines_of(rank.communicate(timeout=60)[0])
        assert [line for line in said if line.startswith("[")] == [
            "[False, False]",
            "[False, True]",
        ]
        assert rank.returncode == 0


RESTARTS = """
    import os, sys, time
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from undaunted import inprocess
    from undaunted.integrations.megatron.config import InProcessRestartConfig
    from undaunted.integrations.megatron.inprocess_restart import maybe_wrap_for_inprocess_restart

    process, when = os.environ["RANK"], sys.argv[1]

    def fail(at, iteration):
        if process == "1" and at == when and (iteration == 0 or when == "always"):
            while len(list(Path().glob("begun-*"))) < 3:
                time.sleep(0.01)
            raise RuntimeError("a fault")

    def pretrain(steps, call: inprocess.CallWrapper, *, store):
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        Path("begun-" + process).touch()
        fail("before", call.iteration)
        assert type(store) is not type(for_all_calls)
        if when == "within":
            store = for_all_calls
        group = dist.PrefixStore(str(call.iteration), store)
        dist.init_process_group("gloo", store=group, rank=rank, world_size=size)
        fail("always", call.iteration)
        for step in range(steps):
            dist.all_reduce(torch.ones(1))
            if step == 2:
                fail("within", call.iteration)
        dist.destroy_process_group()
        return f"iteration {call.iteration}, rank {rank} of {size}"

    config = InProcessRestartConfig(enabled=True, max_iterations=2)
    pretrain, for_all_calls = maybe_wrap_for_inprocess_restart(pretrain, config, None)
    print(f"process {process}: {pretrain(5, store=for_all_calls)}\\n", end="", flush=True)
"""


@pytest.mark.torch
@pytest.mark.parametrize("when", ["before", "within"])
def test_a_function_is_restarted_inside_the_process(tmp_path: Path, when: str) -> None:
    """Before there is a process group, too, when the others wait for it in torch's code."""
    pytest.importorskip("torch")
    ranks = ("--nproc-per-node", "3")
    with launched(tmp_path, RESTARTS, *ranks, args=(when,), **QUIET) as launcher:
        assert launcher.finish() == 0, launcher.text
    for rank in range(3):
        assert f"process {rank}: iteration 1, rank {rank} of 3" in launcher.text
    assert "state=handling stage=completed" in launcher.text or when == "before"


@pytest.mark.torch
def test_it_is_restarted_no_more_often_than_allowed(tmp_path: Path) -> None:
    """Megatron Bridge does not pass the number on."""
    pytest.importorskip("torch")
    ranks = ("--nproc-per-node", "3")
    with launched(tmp_path, RESTARTS, *ranks, args=("always",), **QUIET) as launcher:
        assert launcher.finish() == 1, launcher.text
    assert "allowed: max_iterations=2" in launcher.text


ODD = """
    import os, sys
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from undaunted.integrations.megatron import rerun

    rank, bad = int(os.environ["RANK"]), os.environ["LOCAL_RANK"] == "1"
    once = sys.argv[1] == "once"
    dist.init_process_group("gloo")
    machine = rerun.RerunStateMachine(mode="validate_results")
    start, path = 0, Path(f"state-{rank}.pt")
    if path.exists():
        saved = torch.load(path)
        start = saved["next"]
        machine.load_state_dict(saved["rerun"])
    for step in range(start, 8):
        runs, batches = 0, rerun.RerunDataIterator([float(rank)])
        while machine.should_run_forward_backward(batches):
            loss, runs = torch.tensor(next(batches)), runs + 1
            if step == 5 and bad and (runs == 1 or not once):
                loss = torch.tensor(float("nan"))
            machine.validate_result(loss, torch.isnan, "loss")
        save, leave, code = machine.should_checkpoint_and_exit()
        if save:
            torch.save({"next": step, "rerun": machine.state_dict(batches)}, path)
        if leave:
            print(f"rank {rank} ends with {code}", flush=True)
            sys.exit(code)
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        ("once", 17, "a transient error"),
        ("always", 17, "a persistent error of that place"),
    ],
)
def test_an_odd_result_is_looked_into_by_the_launcher(
    tmp_path: Path, kind: str, code: int, text: str
) -> None:
    """Without restarts of the budget, and with the outcome that the result asks for."""
    pytest.importorskip("torch")
    ranks = ("--nproc-per-node", "2", "--max-restarts", "0")
    with launched(tmp_path, ODD, *ranks, args=(kind,), **QUIET) as launcher:
        assert launcher.finish() == code, launcher.text
        said = [one for one in launcher.events("rank_event") if one["name"] == "odd_result"]
    assert len(said) == 1
    assert text in said[0]["text"]
    assert launcher.text.count("ends with 16") == (0 if kind == "once" else 2)
