"""The cases: each runs one launcher once and returns what it measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cost import launcher_processes, usage
from benchmarks.launchers import Job, Launcher
from benchmarks.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

WORKLOADS = Path(__file__).resolve().parent / "workloads"
PLAIN = WORKLOADS / "plain.py"
TORCH = WORKLOADS / "torch_only.py"
HEAVY = WORKLOADS / "torch_heavy.py"

HANG_LIMIT_S = 2.0
HANG_BEAT_S = 0.1  # between heartbeats of the ranks that do not hang
IDLE_BEAT_S = 1.0
SETTLE_S = 3.0  # the template tries imports in a child once the ranks run
IDLE_WINDOW_S = 10.0

Values = dict[str, float]


@dataclass(frozen=True)
class Case:
    """One line of the plan: what is run, and on how many ranks.

    Attributes:
        name: for the command line.
        title: for the table.
        ranks: number of ranks.
        measure: runs a launcher once; returns seconds, unless the name of a value has a unit.
        needs_hang_detection: leave out launchers that have none.
    """

    name: str
    title: str
    ranks: int
    measure: Callable[[Launcher], Values]
    needs_hang_detection: bool = False


def all_cases(ranks: tuple[int, ...]) -> list[Case]:
    """Return the plan for these numbers of ranks; hangs need two, cost is taken at the largest."""
    cases = []
    for count in ranks:
        for script, what in ((PLAIN, "a script that imports nothing"), (TORCH, "import torch")):
            measure = partial(start_and_exit, script=script, ranks=count)
            cases.append(Case("start", what, count, measure))
    for count in ranks:
        for script, what in (
            (TORCH, "import torch"),
            (HEAVY, "import torch, fsdp, checkpoint, dynamo"),
        ):
            measure = partial(crashes, script=script, ranks=count)
            cases.append(Case("crash", what, count, measure))
    for count in ranks:
        if count > 1:
            measure = partial(hang, ranks=count)
            cases.append(Case("hang", f"limit {HANG_LIMIT_S:g} s", count, measure, True))
    measure = partial(idle, ranks=max(ranks))
    cases.append(Case("idle", "a heartbeat per second", max(ranks), measure))
    return cases


def start_and_exit(launcher: Launcher, *, script: Path, ranks: int) -> Values:
    """Measure from the launcher's start to the first lines, and from the last end to its own."""
    with Stage(launcher, Job(script, ranks)) as stage:
        line = stage.all_lines(0)
        ranks_ended, launcher_ended = stage.finish(0)
        return {
            "start to first line of all ranks": seconds(stage.started_ns, line),
            "last rank's end to launcher's end": seconds(ranks_ended, launcher_ended),
        }


def crashes(launcher: Launcher, *, script: Path, ranks: int) -> Values:
    """Let the last rank kill itself, later raise; measure to the first lines of all new ranks."""
    with Stage(launcher, Job(script, ranks, restarts=2)) as stage:
        values = {}
        for round_, (order, title) in enumerate((("kill", "SIGKILL"), ("raise", "exception"))):
            stage.all_lines(round_)
            stage.tell(ranks - 1, round_, order)
            died = stage.said(ranks - 1, round_, "dying")
            line = stage.all_lines(round_ + 1)
            values[f"{title} to first line of all restarted ranks"] = seconds(died, line)
        stage.finish(2)
        return values


def hang(launcher: Launcher, *, ranks: int) -> Values:
    """Let the last rank stop its heartbeats; measure what comes on top of the limit."""
    with Stage(launcher, Job(TORCH, ranks, restarts=1, limit_s=HANG_LIMIT_S)) as stage:
        start_beating(stage, ranks, HANG_BEAT_S)
        stage.tell(ranks - 1, 0, "hang")
        passed = stage.said(ranks - 1, 0, "hanging") + int(HANG_LIMIT_S * 1e9)
        ended = stage.died(ranks - 1, 0)
        line = stage.all_lines(1)
        stage.finish(1)
        return {
            "limit passed to end of the hung rank": seconds(passed, ended),
            "limit passed to first line of all restarted ranks": seconds(passed, line),
        }


def idle(launcher: Launcher, *, ranks: int) -> Values:
    """Measure what the launcher's own processes use while the ranks beat."""
    with Stage(launcher, Job(TORCH, ranks)) as stage:
        start_beating(stage, ranks, IDLE_BEAT_S)
        stage.watch_for(SETTLE_S)
        own, templates = launcher_processes(stage.launcher_pid, stage.pids(0))
        before, templates_before = usage(own), usage(templates)
        stage.watch_for(IDLE_WINDOW_S)
        after, templates_after = usage(own), usage(templates)
        stage.finish(0)
    cpu = after.cpu_ns - before.cpu_ns
    template_cpu = templates_after.cpu_ns - templates_before.cpu_ns
    return {
        "CPU, % of a core": cpu / IDLE_WINDOW_S / 1e7,
        "wake-ups per second": (after.wake_ups - before.wake_ups) / IDLE_WINDOW_S,
        "PSS, MB": after.pss_bytes / 1e6,
        "processes": float(len(own)),
        "template: CPU, % of a core": template_cpu / IDLE_WINDOW_S / 1e7,
        "template: PSS, MB": templates_after.pss_bytes / 1e6,
    }


def start_beating(stage: Stage, ranks: int, period_s: float) -> None:
    stage.all_lines(0)
    for rank in range(ranks):
        stage.tell(rank, 0, f"beat {period_s}")
    for rank in range(ranks):
        stage.said(rank, 0, "beating")


def seconds(start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / 1e9
