"""Whether numbers that are computed wrong get the right verdict: see `--help`.

`python -m benchmarks.verdicts`: jobs of several ranks, some of several launchers, each with an
operation that sets or flips bits of one number: once, or always on one place, or whatever the
place. Journals and exit codes must say which it was, and no optimizer may see such a number: what
it makes of each step is compared with an undisturbed job, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine
from benchmarks.hang_of_job import events
from tests.e2e.launcher import nodes_of_a_job
from undaunted.training.rerun.table import OPINIONS, RerunDiagnostic

PROGRAM = Path(__file__).resolve().with_name("workloads") / "verdicts.py"
STEPS, ELEMENTS, DEADLINE_S = 12, 64, 180.0
TRANSIENT, PERSISTENT, CORRECT = (
    RerunDiagnostic.TRANSIENT_ERROR,
    RerunDiagnostic.PERSISTENT_ERROR,
    RerunDiagnostic.CORRECT_RESULT,
)
KINDS = {
    TRANSIENT: "once, on one place",
    PERSISTENT: "always, on one place",
    CORRECT: "on any place",
}
EXCLUDED, INVALID = 1, 17
EXPONENT, QUIET, SIGN = 0x7F800000, 0x7FC00000, -(1 << 31)


@dataclass(frozen=True)
class Setup:
    """A job: its nodes, how many of them work, and how many ranks each has."""

    nodes: int
    working: int
    slots: int

    @property
    def ranks(self) -> int:
        return self.working * self.slots

    @property
    def spare(self) -> bool:
        return self.nodes > self.working

    @property
    def title(self) -> str:
        spare = ", one to spare" if self.spare else ""
        return f"{self.ranks} ranks, {self.nodes} launcher{'s' * (self.nodes > 1)}{spare}"

    @property
    def names(self) -> str:
        return "abc"[: self.nodes]


SETUPS = (Setup(1, 1, 2), Setup(1, 1, 4), Setup(2, 2, 2), Setup(3, 2, 1))


@dataclass(frozen=True)
class Case:
    """What is computed wrong; the program reads it.

    Attributes:
        kind: of the verdict that is right.
        place: node and local rank where it is computed wrong; unless it is everywhere.
        ranks: whose result it is, if it is everywhere.
        step: the first one.
        element: which number of the result.
        keep, set, flip: what becomes of its bits: `(bits & keep | set) ^ flip`.
        go_on: verdicts after which the ranks are to go on.
    """

    setup: Setup
    kind: RerunDiagnostic
    place: tuple[str, int]
    ranks: tuple[int, ...]
    step: int
    element: int
    keep: int
    set: int
    flip: int
    go_on: tuple[str, ...]
    steps: int = STEPS


@dataclass(frozen=True)
class Outcome:
    """What became of a job: exit codes and journals of its nodes, digests that its ranks used."""

    codes: dict[str, int]
    journals: dict[str, list[dict[str, Any]]]
    used: list[list[str]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description=__doc__)
    parser.add_argument("--cases", type=int, default=100, help="how many (100)")
    parser.add_argument("--seed", type=int, default=1, help="of what is computed wrong (1)")
    args = parser.parse_args()
    chance, counts, right = random.Random(args.seed), Counter[str](), Counter[str]()
    undisturbed: dict[int, list[list[str]]] = {}
    for number in range(args.cases):
        case = drawn(number, chance)
        ranks = case.setup.ranks
        if ranks not in undisturbed:
            undisturbed[ranks] = run(sound(case)).used
        began, found = time.monotonic(), run(case)
        wrong = judged(case, found, undisturbed[ranks])
        row = f"{case.setup.title} | {KINDS[case.kind]} | {case.kind.value.replace('_', ' ')}"
        counts[row] += 1
        right[row] += not wrong
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{number}: {wrong or 'right'} ({took}): {case}", file=sys.stderr, flush=True)
    print("| job | computed wrong | right verdict | cases | got it |\n|---|---|---|---|---|")
    for row, number in sorted(counts.items()):
        print(f"| {row} | {number} | {right[row]} |")
    print(f"\n{machine()}")
    return 1 if counts != right else 0


def drawn(number: int, chance: random.Random) -> Case:
    """Return a case; kinds and setups take turns."""
    kind = [*KINDS][number % len(KINDS)]
    setup = SETUPS[number // len(KINDS) % len(SETUPS)]
    ranks = range(setup.ranks)
    # With a spare node the ranks of one node would get an opinion, and the job end with 16.
    everyone = chance.random() < 1 / 4 and not setup.spare
    keep, bits, flip = chance.choice(
        [
            (-1, 0, 1 << 30),  # from around 1 to infinity, NaN, or what has no finite square
            (-1, QUIET | chance.getrandbits(22), 0),  # NaN
            (SIGN, EXPONENT, 0),  # infinity
        ]
    )
    return Case(
        setup=setup,
        kind=kind,
        place=(chance.choice(setup.names[: setup.working]), chance.randrange(setup.slots)),
        ranks=tuple(ranks if everyone else [chance.choice(ranks)]),
        step=chance.randrange(1, STEPS),
        element=chance.randrange(ELEMENTS),
        keep=keep,
        set=bits,
        flip=flip,
        go_on=chance.choice([(), ("transient_error", "persistent_error")]),
    )


def sound(case: Case) -> Case:
    """The same job, in which nothing is computed wrong."""
    return replace(case, kind=CORRECT, ranks=())


def run(case: Case) -> Outcome:
    """Run a job."""
    setup = case.setup
    nodes = f"{setup.working}:{setup.nodes}" if setup.spare else f"{setup.nodes}"
    options = ("--nnodes", nodes, "--nproc-per-node", str(setup.slots), "--worker-start", "warm")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "case.json").write_text(json.dumps(asdict(case)))
        with nodes_of_a_job(folder, PROGRAM.read_text(), *options) as start:
            launchers = {}
            for node in setup.names:
                launchers[node] = start(node, f"is_host={int(node == 'a')}")
                launchers[node].wait_for(r"\[undaunted\]")
            codes = {node: launcher.finish(DEADLINE_S) for node, launcher in launchers.items()}
        journals = {node: events(folder / "run" / f"journal-{node}.jsonl") for node in codes}
        files = [folder / f"used-{rank}" for rank in range(setup.ranks)]
        used = [file.read_text().splitlines() if file.exists() else [] for file in files]
        return Outcome(codes, journals, used)


def judged(case: Case, found: Outcome, undisturbed: list[list[str]]) -> str:
    """Return "" or what is wrong about the verdicts, or about what came of them."""
    everything = [event for journal in found.journals.values() for event in journal]
    told = {
        event["rank"]: event["text"]
        for event in everything
        if event["event"] == "rank_event" and event["name"] == "odd_result"
    }
    places = first_places(everything)
    guilty = [rank for rank in places if is_guilty(case, rank, places[rank])]
    if sorted(told) != sorted(guilty):
        return f"{guilty} have computed wrong, and these say so: {told}"
    for rank, (node, local_rank) in places.items():
        where = f"in iteration {case.step}, computed on cpu:{local_rank} of node {node}: "
        if rank in told and f"{where}{OPINIONS[case.kind]}" not in told[rank]:
            return f"rank {rank} was on {node}, {local_rank}: {told[rank]}"
    left_out = {node for node, code in found.codes.items() if code == EXCLUDED}
    moves = case.setup.spare and case.kind is not TRANSIENT
    if left_out != ({places[guilty[0]][0]} if moves else set()):
        return f"nodes {left_out} were left out"
    # On a place that stays in use another rank computes wrong from then on.
    finished = case.kind is TRANSIENT or (case.kind is PERSISTENT and moves)
    code, steps = (0, STEPS) if finished and case.go_on else (INVALID, case.step)
    if {found.codes[node] for node in found.codes if node not in left_out} != {code}:
        return f"exit codes are {found.codes}, not {code}"
    if found.used != [of_rank[:steps] for of_rank in undisturbed]:
        return f"optimizers have used {found.used}, not {undisturbed} up to step {steps}"
    return ""


def is_guilty(case: Case, rank: int, place: tuple[str, int]) -> bool:
    return rank in case.ranks if case.kind is CORRECT else place == case.place


def first_places(everything: list[dict[str, Any]]) -> dict[int, tuple[str, int]]:
    """Return node and local rank that each rank had at first."""
    return {
        rank: (event["node"], local_rank)
        for event in everything
        if event["event"] == "round_started" and event["round"] == 0
        for local_rank, rank in enumerate(event["ranks"])
    }


if __name__ == "__main__":
    sys.exit(main())
