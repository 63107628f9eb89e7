"""Time from a power loss until a job of Slurm works again: `python -m benchmarks.power_loss`.

The cluster is that of the tests (tests/slurm/cluster.py): Slurm's real daemons on nodes that are
namespaces of this machine, which need root. A job trains on three nodes with one rank each, and
loses one of them; a fourth one is a spare, or there is none. Each job has a cluster of its own.
The time ends when all ranks have been heard of in an all-reduce of the next round. All kinds take
turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.__main__ import machine
from tests.slurm.cluster import EXAMPLES, Cluster, why_not

PORT, ROUNDS, LIMIT_S, LOOK_S = 29400, 5, 90.0, 0.01
WORK = 3  # nodes, with one rank each

SCRIPT = """
    import os, pathlib, threading, time
    import torch
    import torch.distributed as dist
    import undaunted

    number = os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    undaunted.step(0)
    new = pathlib.Path(f"new-{number}-{dist.get_rank()}")
    new.write_text(str(time.monotonic_ns()))
    new.rename(f"works-{number}-{dist.get_rank()}")
    threading.Event().wait()
"""


class Kind(NamedTuple):
    """What is lost.

    Attributes:
        title: of the row.
        lost: the node.
        endpoint: node where the launchers meet, "" = the first one.
        spare: there is one; else the job goes on with fewer nodes.
    """

    title: str
    lost: str
    endpoint: str = ""
    spare: bool = True


KINDS = (
    Kind("the first node: batch script and coordinator; a spare takes its place", "n1"),
    Kind("the same; the job goes on with fewer nodes", "n1", spare=False),
    Kind("the first node: batch script only; a spare takes its place", "n1", endpoint="n2"),
    Kind("the node of the coordinator, not the first; a spare takes its place", "n2", "n2"),
    Kind("any other node; a spare takes its place", "n2"),
    Kind("the same; the job goes on with fewer nodes", "n2", spare=False),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.power_loss", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of each kind (5)")
    args = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    found: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    for number in range(args.repeats):
        for kind in KINDS:
            try:
                found[kind].append(measure(kind))
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                found[kind].append(float("inf"))
            print(f"{number}: {kind.title}: {found[kind][-1]:.2f} s", file=sys.stderr, flush=True)
    print("| lost | all ranks at work, s (median, least and most) |")
    print("|---|---|")
    for kind, seconds in found.items():
        spread = f"{min(seconds):.1f}-{max(seconds):.1f}"
        print(f"| {kind.title} | {statistics.median(seconds):.1f} ({spread}) |")
    print(machine())
    return 0


def measure(kind: Kind) -> float:
    """Return the seconds from the power loss until all ranks work again."""
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as files,
        tempfile.TemporaryDirectory(prefix="power-") as name,
    ):
        folder = Path(name)
        (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
        nodes = [f"n{number}" for number in range(1, WORK + kind.spare + 1)]
        cluster = Cluster(Path(files), [folder], nodes=nodes)
        try:
            options = ["--spares=1"] if kind.spare else [f"--nnodes=1:{WORK}", "--elastic"]
            options += [f"--rdzv-endpoint={kind.endpoint}:{PORT}"] if kind.endpoint else []
            words = ("--parsable", "--output=output", f"--nodes={len(nodes)}")
            env = {"RANKS_PER_NODE": "1", "OMP_NUM_THREADS": "1"}
            script = (EXAMPLES / "train.sbatch", *options, "train.py")
            cluster.run("sbatch", *words, *script, cwd=folder, **env)
            try:
                all_work(folder, 0, WORK)
                lost = time.monotonic_ns()
                cluster.power_off(kind.lost)
                return (all_work(folder, 1, WORK if kind.spare else WORK - 1) - lost) / 1e9
            except TimeoutError:
                said = [folder / "output", *folder.glob("undaunted-runs/*/launcher-*.log")]
                told = "\n".join(f"{path.name}:\n{path.read_text()}" for path in said)
                raise RuntimeError(f"{kind}:\n{told}") from None
        finally:
            cluster.close()


def all_work(folder: Path, first: int, ranks: int) -> int:
    """Wait until all ranks work in one round, the first or a later one; return since when."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        for number in range(first, first + ROUNDS):
            if len(works := list(folder.glob(f"works-{number}-*"))) >= ranks:
                return max(int(path.read_text()) for path in works)
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(LOOK_S)


if __name__ == "__main__":
    sys.exit(main())
