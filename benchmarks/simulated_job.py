"""Journals of a job that never ran: many nodes and restarts, clocks that have nothing in common.

    python -m benchmarks.simulated_job DIRECTORY [--nodes N] [--slots N] [--restarts N] [--seed N]
        [--saves]

A seed gives the same journals everywhere. Of the failures, six in ten are crashes, three are hangs,
one is a launcher that is killed and started again. The truth is known: `Job.skews` tells by how
much the clock of each node is ahead, `Job.failures` what failed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from undaunted.journal import events as e
from undaunted.journal.lines import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

MS = 1_000_000
S = 1_000_000_000
HOUR = 3600 * S
_STEP_S = 2.0
_SAVE_EVERY = 50  # steps
_HANG_LIMIT_S = 300.0


@dataclass
class Node:
    """One machine: ``skew`` is how far its clock is ahead, ``wall`` when that showed 0, seconds."""

    name: str
    skew: int
    wall: float
    pid: int
    events: list[e.AnyEvent] = field(default_factory=list)

    def at(self, true: float, of: type[e.Event], number: int = -1, /, **fields: Any) -> None:
        """Write an event at a moment of true time, nanoseconds."""
        t = round(true) + self.skew
        about = {"node": self.name, **fields}
        self.events.append(of(t=t, wall=round(self.wall + t / S, 6), round=number, **about))

    def clock(self, true: float) -> int:
        """Return what the clock shows at a moment of true time."""
        return round(true) + self.skew


@dataclass(frozen=True)
class Planned:
    """A failure: in which round, of which kind, on which node and rank."""

    round: int
    kind: str
    node: str
    rank: int


@dataclass
class Job:
    """What was made."""

    nodes: list[Node]
    failures: list[Planned] = field(default_factory=list)
    first_steps: list[int] = field(default_factory=list)  # of each round
    last_steps: list[int] = field(default_factory=list)

    @property
    def skews(self) -> dict[str, int]:
        """By node."""
        return {node.name: node.skew for node in self.nodes}


def simulate(
    *,
    nodes: int = 125,
    slots: int = 8,
    restarts: int = 100,
    seed: int = 1,
    mean_s: float = 600.0,
    saves: bool = False,
) -> Job:
    """Return a job of ``nodes`` with ``slots`` ranks each that fails ``restarts`` times.

    Args:
        nodes, slots, restarts: its size.
        seed: decides everything else.
        mean_s: how long a round runs until it fails, in the mean.
        saves: every rank tells of every checkpoint.
    """
    random = Random(seed)
    job = Job([_node(index, random) for index in range(nodes)])
    now = 0.0
    for node in job.nodes:
        _launch(node, now + random.uniform(0, 20 * S), slots, restarts, nodes)
    now += 21 * S
    step = 0
    for number in range(restarts + 1):
        last = number == restarts
        steps = max(1, round(random.expovariate(_STEP_S / mean_s)))
        begun = _begin(job, number, now, step, slots, random)
        job.first_steps.append(step)
        job.last_steps.append(step + steps)
        failed_at = begun + (steps + 0.5) * _STEP_S * S
        _progress(job, number, begun, step, steps)
        if saves:
            _save(job, number, begun, step, steps)
        if last:
            _finish(job, number, failed_at, step + steps, random)
            break
        culprit = random.randrange(nodes * slots)
        kind = random.choices(["crash", "hang", "lost"], [6, 3, 1])[0] if nodes > 1 else "crash"
        job.failures.append(Planned(number, kind, job.nodes[culprit // slots].name, culprit))
        stopped = _fail(job, job.failures[-1], failed_at, step, steps, slots, restarts, random)
        now = stopped + random.uniform(0.2, 2) * S
        step += steps - steps % _SAVE_EVERY
    return job


def write(job: Job, directory: Path) -> list[Path]:
    """Write one journal for each node; returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for node in job.nodes:
        file = directory / f"journal-{node.name}.jsonl"
        file.write_bytes(b"".join(map(encode, node.events)))
        files.append(file)
    return files


def _node(index: int, random: Random) -> Node:
    return Node(
        name=f"node{index:03}",
        skew=random.randrange(1, 1000 * HOUR),
        wall=1_750_000_000 + random.uniform(-5000, 5000),
        pid=random.randrange(1000, 30000),
    )


def _launch(node: Node, now: float, slots: int, restarts: int, nodes: int) -> None:
    node.at(now, e.JournalOpened, boot_id=f"boot of {node.name}", pid=node.pid, version="0")
    node.at(
        now + 50 * MS, e.JobStarted, run_id="simulated", argv=["train.py"],
        nproc_per_node=slots, max_restarts=restarts,
        nodes=e.JobNodes(least=nodes, most=nodes, lease_s=5, away_timeout_s=60),
    )  # fmt: skip


def _begin(job: Job, number: int, now: float, step: int, slots: int, random: Random) -> float:
    """Start a round on all nodes; returns when the first step began."""
    size = len(job.nodes) * slots
    begun = now + 40 * S
    for index, node in enumerate(job.nodes):
        ranks = list(range(index * slots, (index + 1) * slots))
        began = now + random.uniform(0, 200) * MS
        node.at(
            began, e.RoundStarted, number, world_size=size, ranks=ranks,
            master_addr="10.0.0.1", master_port=20000 + number,
        )  # fmt: skip
        pids = [1000 + number + rank for rank in ranks]
        node.at(began + 30 * MS, e.WorkersSpawned, number, mode="warm", pids=pids)
        line, ready = began + 100 * MS, began + random.uniform(5, 9) * S
        first = begun - random.uniform(0, 50) * MS
        for name, moment in (("first_line", line), ("initialized", ready), ("first_step", first)):
            for rank in ranks:
                node.at(
                    moment + 2 * MS, e.RankMilestone, number, rank=rank, name=name,
                    at_ns=node.clock(moment), iteration=step if name == "first_step" else None,
                )  # fmt: skip
    return begun


def _progress(job: Job, number: int, begun: float, step: int, steps: int) -> None:
    """Once a minute each node tells how far it is."""
    minute = 1
    while (reached := int(minute * 60 / _STEP_S)) < steps:
        for node in job.nodes:
            node.at(
                begun + minute * 60 * S, e.RoundProgress, number, first_iteration=step,
                last_iteration=step + reached, last_ns=node.clock(begun + reached * _STEP_S * S),
            )  # fmt: skip
        minute += 1


def _save(job: Job, number: int, begun: float, step: int, steps: int) -> None:
    """Every rank tells of the checkpoints of a round."""
    for done in range(_SAVE_EVERY, steps, _SAVE_EVERY):
        saved = begun + done * _STEP_S * S
        text = f"saved step={step + done} bytes=1000000 stall_s=0.050000 write_s=1.5 total_s=1.6"
        for node in job.nodes:
            started = next(one for one in reversed(node.events) if isinstance(one, e.RoundStarted))
            for rank in started.ranks:
                node.at(saved + 2 * MS, e.RankEvent, number, rank=rank, name="checkpoint",
                        at_ns=node.clock(saved), text=text)  # fmt: skip


def _fail(
    job: Job, failed: Planned, at: float, step: int, steps: int, slots: int, restarts: int,
    random: Random,
) -> float:  # fmt: skip
    """A round fails and is stopped; returns when all have."""
    culprit = next(node for node in job.nodes if node.name == failed.node)
    number, line = failed.round, f"rank {failed.rank} (node {failed.node}) failed: {failed.kind}"
    noticed = at + (_HANG_LIMIT_S * S if failed.kind == "hang" else 3 * MS)
    decided = noticed + 10 * MS
    if failed.kind != "lost":
        _detect(culprit, failed, at, noticed, slots, line)
        decided = noticed + (1200 * MS if failed.kind == "hang" else 10 * MS)
    else:
        line = f"node {failed.node}: its launcher was killed"
    begun_ns = at - 0.5 * _STEP_S * S
    stopped_all = decided
    for index, node in enumerate(job.nodes):
        if failed.kind == "lost" and node is culprit:
            continue
        told = decided + random.uniform(0, 20) * MS
        reason = f"node {failed.node}: {failed.kind}"
        node.at(told, e.Decision, number, action="restart", reason=reason,
                restarts_left=restarts - number - 1)  # fmt: skip
        node.at(told + MS, e.StopRequested, number, reason=reason, grace_s=2.0)
        stopped = told + random.uniform(50, 2000) * MS
        for rank in range(index * slots, (index + 1) * slots):
            ended: dict[str, Any] = {"signal": "SIGTERM", "by_us": True}
            if rank == failed.rank and failed.kind == "crash":
                ended = {"exit_code": 1}
            node.at(stopped - MS, e.RankExited, number, rank=rank, pid=1000 + number + rank,
                    **ended)  # fmt: skip
        node.at(stopped, e.RoundProgress, number, first_iteration=step,
                last_iteration=step + steps, last_ns=node.clock(begun_ns))  # fmt: skip
        node.at(stopped + MS, e.RoundStopped, number)
        stopped_all = max(stopped_all, stopped + 2 * MS)
    for node in job.nodes:
        if failed.kind != "lost" or node is not culprit:
            node.at(stopped_all + 5 * MS, e.RoundBlamed, number, number=number,
                    node=failed.node, line=line)  # fmt: skip
    if failed.kind == "lost":
        culprit.pid += 1
        _launch(culprit, stopped_all + 3 * S, slots, restarts, len(job.nodes))
        stopped_all += 4 * S
    return stopped_all


def _detect(node: Node, failed: Planned, at: float, noticed: float, slots: int, line: str) -> None:
    number, rank = failed.round, failed.rank
    node.at(noticed, e.FailureDetected, number, kind=failed.kind, rank=rank,
            since_ns=node.clock(noticed - 2 * MS))  # fmt: skip
    about: dict[str, Any] = {"exit_code": 1, "exception": "ValueError: bad batch"}
    if failed.kind == "hang":
        about = {"limit_s": _HANG_LIMIT_S, "age_s": (noticed - at) / S, "watch": "heartbeat"}
        node.at(noticed + 900 * MS, e.EvidenceCollected, number, ranks=[rank],
                duration_ns=890 * MS)  # fmt: skip
    node.at(noticed + (1000 if failed.kind == "hang" else 5) * MS, e.Verdict, number,
            kind=failed.kind, rank=rank, local_rank=rank % slots, pid=1000 + number + rank,
            line=line, **about)  # fmt: skip


def _finish(job: Job, number: int, at: float, step: int, random: Random) -> None:
    decided = at + 2 * S
    for node in job.nodes:
        started = next(one for one in reversed(node.events) if isinstance(one, e.RoundStarted))
        for rank in started.ranks:
            node.at(at + random.uniform(0, 1000) * MS, e.RankExited, number, rank=rank,
                    pid=1000 + number + rank, exit_code=0)  # fmt: skip
        told = decided + random.uniform(0, 20) * MS
        reason = "every rank exited with 0"
        node.at(told, e.Decision, number, action="end", reason=reason)
        node.at(told + 1, e.RoundProgress, number, first_iteration=job.first_steps[-1],
                last_iteration=step, last_ns=node.clock(at - S))  # fmt: skip
        node.at(told + MS, e.RoundStopped, number)
        node.at(told + 30 * MS, e.JobEnded, number, outcome="finished", exit_code=0,
                reason=reason)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Write the journals of a job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("directory", type=Path)
    for name, default in (("nodes", 125), ("slots", 8), ("restarts", 100), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--saves", action="store_true")
    options = parser.parse_args(argv)
    job = simulate(
        nodes=options.nodes, slots=options.slots, restarts=options.restarts, seed=options.seed,
        saves=options.saves,
    )  # fmt: skip
    write(job, options.directory)
    count = sum(len(node.events) for node in job.nodes)
    print(f"{count} events of {len(job.nodes)} nodes in {options.directory}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
