"""What the jobs of the tests run, and what is asked about such a job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.slurm.cluster import Job

# Goes on until there is a file named finish.
RANK = """
    import os, pathlib, signal, sys, threading
    import undaunted
    e, told = os.environ, []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    about = "rank {RANK}/{WORLD_SIZE} round {TORCHELASTIC_RESTART_COUNT} node {GROUP_RANK} "
    about += "task {SLURM_PROCID} again " + e.get("SLURM_RESTART_COUNT", "0")
    os.write(1, (about.format(**e) + "\\n").encode())  # in one piece
    step = 0
    while not pathlib.Path("finish").exists():
        undaunted.step(step)
        step += 1
        if pathlib.Path("crash-" + e["RANK"]).exists() and e["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        if told:
            sys.exit("saved")
        threading.Event().wait(0.02)
"""


# Saves at a stop, and goes on from there until there is a file named finish.
SAVES = """
    import json, os, pathlib, sys, threading
    from undaunted.training import Session

    rank, again = os.environ["RANK"], os.environ.get("SLURM_RESTART_COUNT", "0")
    number = os.environ["TORCHELASTIC_RESTART_COUNT"]
    state = pathlib.Path(f"state-{rank}.json")

    def save(iteration):
        state.with_suffix(".new").write_text(json.dumps(iteration))
        state.with_suffix(".new").replace(state)
        os.write(1, f"rank {rank} saved {iteration} in start {again}\\n".encode())

    iteration = json.loads(state.read_text()) + 1 if state.exists() else 0
    with Session(save=save) as session:
        while not pathlib.Path("finish").exists():
            with session.step(iteration):
                threading.Event().wait(0.02)
            if iteration % 10 == 3:
                os.write(1, f"rank {rank} works in start {again} round {number}\\n".encode())
            if session.should_stop(iteration):
                break
            iteration += 1
    sys.exit(session.exit_code)
"""

# The same with a model of DDP, whose data come from two processes for each rank.
TRAINS = """
    import json, os, pathlib, sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, IterableDataset
    from undaunted.training import Session

    class Numbers(IterableDataset):
        def __iter__(self):
            while True:
                yield torch.rand(4)

    dist.init_process_group("gloo")
    rank, again = dist.get_rank(), os.environ.get("SLURM_RESTART_COUNT", "0")
    number = os.environ["TORCHELASTIC_RESTART_COUNT"]
    state = pathlib.Path(f"state-{rank}.pt")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    iteration = 0
    if state.exists():
        saved = torch.load(state)
        iteration = saved["iteration"] + 1
        model.load_state_dict(saved["model"])

    def save(iteration):
        torch.save({"iteration": iteration, "model": model.state_dict()}, f"{state}.new")
        os.replace(f"{state}.new", state)
        os.write(1, f"rank {rank} saved {iteration} in start {again}\\n".encode())

    finish = torch.zeros(1)
    loader = iter(DataLoader(Numbers(), batch_size=2, num_workers=2))
    with Session(save=save) as session:
        while not finish:
            with session.step(iteration):
                model(next(loader)).sum().backward()
                finish += pathlib.Path("finish").exists()
                dist.all_reduce(finish)
            if iteration % 10 == 3:
                os.write(1, f"rank {rank} works in start {again} round {number}\\n".encode())
            if session.should_stop(iteration):
                break
            iteration += 1
    del loader
    dist.destroy_process_group()
    sys.exit(session.exit_code)
"""


def working(job: Job, ranks: int, number: int = 0, start: int = 0) -> None:
    """Wait until all ranks of `SAVES` or `TRAINS` have done some steps in a round."""
    for rank in range(ranks):
        job.wait_for(rf"^rank {rank} works in start {start} round {number}$")


def saved(job: Job, start: int = 0) -> dict[str, set[str]]:
    """Which iterations each rank has saved in a start."""
    found: dict[str, set[str]] = {}
    for rank, at in re.findall(
        rf"^rank (\d+) saved (\d+) in start {start}$", job.text, re.MULTILINE
    ):
        found.setdefault(rank, set()).add(at)
    return found


def running(job: Job, ranks: int, number: int = 0, again: int = 0) -> None:
    """Wait until all ranks of a round run."""
    for rank in range(ranks):
        job.wait_for(rf"^rank {rank}/{ranks} round {number} .* again {again}$")


def launchers(node: str, directory: Path) -> list[int]:
    """The launcher's processes on a node, for a job in this directory."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            command = (proc / "cmdline").read_bytes().split(b"\0")
            here = (proc / "cwd").readlink() == directory
            environment = (proc / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if command[0].endswith(b"srun"):  # which has the launcher's words as well
            continue
        if here and b"run" in command and f"SLURMD_NODENAME={node}".encode() in environment:
            found.append(int(proc.name))
    return found


def outcomes(job: Job) -> dict[str, str]:
    """How each node says that the job has ended."""
    found = {}
    for path in job.cwd.glob(f"undaunted-runs/slurm-{job.id}/journal-*.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        ends = [event["outcome"] for event in events if event["event"] == "job_ended"]
        found[path.stem.removeprefix("journal-")] = ends[-1] if ends else ""
    return found
