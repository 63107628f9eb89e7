"""Real jobs with random histories: `python -m tests.data.histories --count 100 --seed 1`.

A job trains from a Loader under the launcher, and is started again and again with another number
of ranks and workers. Something happens in each start but the last one: a rank is killed, raises,
stops, loses a worker or its agent, or the whole job is told to end. Every rank notes what it
learned from. An undisturbed job of one rank, without launcher and workers, must note the same.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.launcher import launched

FAULTS = ("kill", "exception", "stop", "worker", "agent", "terminate")
PROGRAM = Path(__file__).with_name("job.py")


class Start(NamedTuple):
    """One start of the job.

    Attributes:
        ranks: how many.
        workers: of each rank's loader.
        fault: one of `FAULTS`, or "none".
        rank: where it happens.
        step: in which one, after its first micro-batch.
        until: the job ends by itself after this step.
    """

    ranks: int
    workers: int
    fault: str
    rank: int
    step: int
    until: int


class History(NamedTuple):
    """A job and its starts.

    Attributes:
        lengths: samples of its data sets; of several, a mixture.
        micro: samples of a micro-batch.
        shares: micro-batches of a step.
        remainder: see `Loader`.
        exact: see `Loader`.
        persistent: workers go on into the next epoch.
        every: steps from save to save.
        steps: of the whole job.
        starts: one after the other; the last one comes to the end.
    """

    lengths: list[int]
    micro: int
    shares: int
    remainder: str
    exact: bool
    persistent: bool
    every: int
    steps: int
    starts: list[Start]


def drawn(seed: int) -> History:
    """Return a history."""
    rng = random.Random(seed)
    micro, shares = rng.randint(1, 4), rng.randint(1, 8)
    lengths = [rng.randint(20, 90) for _ in range(rng.choice((1, 1, 3)))]
    remainder = rng.choice(("drop", "short", "pad"))
    in_epoch = max(1, sum(lengths) // (micro * shares))
    steps = min(40, rng.randint(1, 3) * in_epoch + rng.randint(0, in_epoch))
    steps = max(steps, 4)
    starts = []
    for _ in range(rng.randint(1, 3)):
        ranks = rng.randint(1, min(4, shares))
        workers = rng.choice((0, 1, 2, 8 // ranks))
        fault = rng.choice([one for one in FAULTS if workers or one != "worker"])
        step = rng.randint(1, steps)
        until = rng.randint(step, steps)
        starts.append(Start(ranks, workers, fault, rng.randrange(ranks), step, until))
    last = Start(rng.randint(1, min(4, shares)), rng.choice((0, 2)), "none", 0, 0, steps)
    return History(
        lengths,
        micro,
        shares,
        remainder,
        rng.random() < 0.5,
        rng.random() < 0.3,
        rng.randint(1, 5),
        steps,
        [*starts, last],
    )


def undisturbed(folder: Path, history: History) -> dict[str, Any]:
    """Run it as one process; return what it noted."""
    folder.mkdir()
    words = [sys.executable, str(PROGRAM), json.dumps(history._asdict()), "-1"]
    alone = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RANK")}
    subprocess.run(
        words, cwd=folder, check=True, timeout=120, env={**alone, "OMP_NUM_THREADS": "1"}
    )
    return noted(folder)


def disturbed(folder: Path, history: History) -> dict[str, Any]:
    """Run it start by start under the launcher; return what it noted."""
    folder.mkdir()
    for number, start in enumerate(history.starts):
        options = ["--standalone", "--nproc-per-node", str(start.ranks), "--max-restarts", "2"]
        if start.fault == "stop":
            options += ["--ft-rank-heartbeat-timeout", "4"]
        args = (json.dumps(history._asdict()), str(number))
        script = PROGRAM.read_text()
        with launched(folder, script, *options, args=args) as launcher:
            code = launcher.finish(150)
            fired = (folder / "fired").exists()
            assert fired or start.fault == "none" or number, launcher.text
            ends = start.fault in ("agent", "terminate") and fired
            assert code == 0 or ends, launcher.text
        (folder / "fired").unlink(missing_ok=True)
    return noted(folder)


def noted(folder: Path) -> dict[str, Any]:
    """Return what was learned from in each step, as it was done last; the result; the rounds.

    A sample is its epoch, its number and its random numbers. The random number of a micro-batch is
    told by the step and its first sample.

    Raises:
        AssertionError: a micro-batch had two random numbers.
    """
    draws: dict[tuple[int, str], float] = {}
    rounds: dict[int, dict[tuple[int, int], list[Any]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("noted-*.jsonl")):
        for line in path.read_text().splitlines():
            note = json.loads(line)
            place = note["step"], str(note["samples"][0])
            assert draws.setdefault(place, note["draw"]) == note["draw"], (path, place)
            samples = note["samples"][: note["counted"]]
            rounds[note["step"]][note["start"], note["round"]] += samples
    steps = {step: sorted(by_round[max(by_round)]) for step, by_round in rounds.items()}
    result = json.loads((folder / "result.json").read_text())
    starts = {when for by_round in rounds.values() for when in by_round}
    return {"steps": steps, "draws": draws, "result": result, "rounds": starts}


def check(folder: Path, seed: int) -> None:
    """Run a history, and the same job undisturbed; see `compare`."""
    history = drawn(seed)
    alone = undisturbed(folder / "alone", history)
    compare(disturbed(folder / "job", history), alone, history)


def compare(job: dict[str, Any], alone: dict[str, Any], history: History) -> None:
    """Compare a job with the undisturbed one.

    Raises:
        AssertionError: they learned from other samples, or by other random numbers.
    """
    assert job["steps"] == alone["steps"], history
    common = job["draws"].keys() & alone["draws"].keys()
    assert len(common) == len(alone["draws"]), history
    assert all(job["draws"][one] == alone["draws"][one] for one in common), history
    if len(history.lengths) == 1:
        seen = [tuple(sample[:2]) for step in job["steps"].values() for sample in step]
        assert len(set(seen)) == len(seen), f"a sample comes twice in an epoch: {history}"
    if history.exact:
        assert job["result"]["digest"] == alone["result"]["digest"], history
    assert abs(job["result"]["sum"] - alone["result"]["sum"]) < 1e-3, history


def main() -> None:
    """Run histories, and say how each one ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    failed = []
    for seed in range(given.seed, given.seed + given.count):
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                check(Path(folder), seed)
            said = "right"
        except AssertionError as error:
            failed.append(seed)
            said = f"WRONG: {error}"
        faults = ", ".join(f"{one.ranks}x{one.workers} {one.fault}" for one in drawn(seed).starts)
        print(f"{seed}: {faults}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{given.count - len(failed)} of {given.count} right; wrong: {failed or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
