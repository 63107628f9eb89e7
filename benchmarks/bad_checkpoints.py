"""Whether a finished run ever stands on a bad checkpoint: `python -m benchmarks.bad_checkpoints`.

Two ranks train a small model again and again. In each job one checkpoint is made bad, in one of
the ways of `KINDS`, and the ranks stop soon after; they go on until the job is finished, as rounds
of `undaunted run` do. Counted are jobs whose result is not that of an undisturbed run, bit for bit,
and rounds that have loaded the bad checkpoint and failed. Checkpoints, ledger, checksums and files
are the real ones. The rounds are not: a round is a call in the same process, and what the launcher
says of the one before comes from here (`tests/e2e` and `undaunted chaos --faults bad-checkpoint`
do the same with real processes, for seconds per job).

The exit code is 1 if a finished job stands on a bad checkpoint, or more than two rounds were spent
on one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist

from undaunted.chaos.nemesis.planting import plant
from undaunted.checkpointing import Checkpointer, CheckpointError, PerRank, snapshot
from undaunted.checkpointing.format.ledger import Failure
from undaunted.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
KINDS = {
    "replica": "a bit of one replica flips before the save",
    "copy": "a bit flips in the copy in memory",
    "disk": "a byte of a file is changed",
    "nan": "NaN is saved",
    "other-rank": "a file has the bytes of another rank's",
    "stale": "a local copy has the bytes of an older one",
    "torn": "the second half of a file is missing",
    "wrong-step": "all files have the bytes of an older step",
}
LOCAL = ("stale",)  # on the ranks' own disks; the others in the folder that all ranks see
STEPS, EVERY, SIZE = 12, 3, 48
MOST_ROUNDS = 8
MOST_SPENT = 2  # rounds that load a bad checkpoint
TIMEOUT_S = 300.0


class Killed(Exception):  # noqa: N818 - no error of the program
    """Stands for the end of the processes by a signal."""


class Job:
    """One job, which is started again until it is finished."""

    def __init__(self, folder: Path, kind: str, seed: str) -> None:
        """Args: for its checkpoints; "" = nothing is made bad; the same on all ranks."""
        self.folder, self.kind = folder, kind
        generator = random.Random(seed)
        self.at = EVERY * generator.randrange(2, STEPS // EVERY)  # the save that is bad
        self.victim = generator.randrange(dist.get_world_size())
        self.bit = generator.randrange(SIZE * SIZE * 32)
        self.round = 0
        self.loaded: list[int] = []  # step, by round
        self.spent = 0

    def run(self) -> str:
        """Return the digest of the result."""
        failure: Failure | None = None
        for self.round in range(MOST_ROUNDS):
            self._say_as_the_launcher(failure)
            error: Exception | None = None
            try:
                result = self._train()
            except (Killed, FloatingPointError, CheckpointError) as raised:
                error = raised
            failure = self._failure(error)
            if failure is None:
                return result
        raise SystemExit(f"{self.kind}: not finished after {MOST_ROUNDS} rounds: {error}")

    def _say_as_the_launcher(self, failure: Failure | None) -> None:
        os.environ["TORCHELASTIC_RUN_ID"] = self.folder.name
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(self.round)
        os.environ["UNDAUNTED_SUSPECT_STEPS"] = "20"
        said = msgspec.json.encode(failure).decode() if failure is not None else ""
        os.environ["UNDAUNTED_FAILURE"] = said

    def _failure(self, error: Exception | None) -> Failure | None:
        """Agree on how the round has ended."""
        found: list[Any] = [None] * dist.get_world_size()
        kind = "" if error is None else type(error).__name__
        dist.all_gather_object(found, (kind, self.loaded[self.round :]))
        kinds = {kind for kind, _ in found} - {""}
        if not kinds:
            return None
        loads_bad = self.loaded[self.round :] == [self.at] and self.round > 0
        if loads_bad:
            self.spent += 1
        cause = "not_finite" if "FloatingPointError" in kinds else "killed"
        return Failure(round=self.round, cause=cause, error=min(kinds), steps=1)

    def _train(self) -> str:
        torch.manual_seed(0)
        state = {
            "weight": torch.randn(SIZE, SIZE) / SIZE**0.5,
            "momentum": torch.zeros(SIZE, SIZE),
            "own": PerRank({"sum": torch.zeros(SIZE)}),
        }
        tier = OnOwnDisks(self, state) if self.kind in LOCAL else InOneFolder(self, state)
        with tier:
            start = tier.load()
            self.loaded.append(start)
            for step in range(start + 1, STEPS + 1):
                self._step(step, state)
                first = self.round == 0 and self.kind and step >= self.at
                if step % EVERY == 0:
                    tier.save(step, bad=bool(first) and step == self.at)
                elif first:
                    tier.spoil()
                    raise Killed
        digest = hashlib.sha256()
        for tensor in (state["weight"], state["momentum"], state["own"].value["sum"]):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    def _step(self, step: int, state: dict[str, Any]) -> None:
        weight, momentum, own = state["weight"], state["momentum"], state["own"].value
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        inputs = torch.randn(SIZE, 16, generator=generator)
        outputs = weight @ inputs
        together = torch.cat([(outputs @ inputs.T).flatten(), outputs.square().mean().view(1)])
        dist.all_reduce(together)
        if not torch.isfinite(together[-1]):
            raise FloatingPointError("the loss is not finite")
        momentum.mul_(0.9).add_(together[:-1].view(SIZE, SIZE), alpha=1e-3)
        weight.sub_(momentum)
        own["sum"].add_(inputs.sum(1))


class InOneFolder:
    """Checkpoints that all ranks see."""

    def __init__(self, job: Job, state: dict[str, Any]) -> None:
        self._job, self._state = job, state
        self._checkpoints = Checkpointer(job.folder, keep=3, certify=1, timeout=TIMEOUT_S)

    def load(self) -> int:
        return self._checkpoints.load(self._state) or 0

    def save(self, step: int, *, bad: bool) -> None:
        job, weight = self._job, self._state["weight"]
        good = weight.clone()
        if bad and job.kind == "replica" and dist.get_rank() == job.victim:
            flip(weight, job.bit)
        if bad and job.kind == "nan":
            weight.view(-1)[job.bit % weight.numel()] = float("nan")
        take = snapshot.Taker.take
        if bad and job.kind == "copy":
            snapshot.Taker.take = self._taking_wrong(take)  # type: ignore[method-assign]
        try:
            self._checkpoints.save(step, self._state)
            self._checkpoints.wait()
        finally:
            snapshot.Taker.take = take  # type: ignore[method-assign]
        weight.copy_(good)

    def _taking_wrong(self, take: Callable[..., Any]) -> Callable[..., Any]:
        """Return what copies the state, after which the rank that writes the weight has a flip."""
        content = self._state["weight"].numpy().tobytes()

        def taken(taker: Any, step: int, number: int, planned: Any, lease: Any) -> Any:
            staged = take(taker, step, number, planned, lease)
            memory = lease.arena.memory
            at = bytes(memory).find(content)
            if at >= 0:
                memory[at + self._job.bit // 8] ^= 1 << self._job.bit % 8
            return staged

        return taken

    def spoil(self) -> None:
        dist.barrier()
        if dist.get_rank() == 0 and self._job.kind in ("disk", "other-rank", "torn", "wrong-step"):
            made(plant(self._job.folder, self._job.kind))
        dist.barrier()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._checkpoints.close()
        else:
            self._checkpoints.abort()


class OnOwnDisks:
    """Local checkpoints: each rank has a folder of its own, as on a node of its own."""

    def __init__(self, job: Job, state: dict[str, Any]) -> None:
        self._job, self._state = job, state
        own = job.folder / f"node{dist.get_rank()}"
        self._manager = LocalCheckpointManager(own, keep=3, timeout_s=TIMEOUT_S)

    def load(self) -> int:
        if self._manager.find_latest() == -1:
            return 0
        loaded, found = self._manager.load()
        assert isinstance(loaded, BasicTensorAwareStateDict)
        for name in ("weight", "momentum"):
            self._state[name].copy_(loaded.state_dict[name])
        self._state["own"].value["sum"].copy_(loaded.state_dict["sum"])
        return found.iteration

    def save(self, step: int, *, bad: bool) -> None:  # noqa: ARG002 - its files are made bad
        own = self._state["own"].value
        parts = {name: self._state[name] for name in ("weight", "momentum")} | own
        self._manager.save(BasicTensorAwareStateDict(parts), step)

    def spoil(self) -> None:
        dist.barrier()
        if dist.get_rank() == self._job.victim:
            made(plant(self._job.folder / f"node{dist.get_rank()}", self._job.kind))
        dist.barrier()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._manager.abort()
        self._manager.close()


def flip(tensor: torch.Tensor, bit: int) -> None:
    tensor.view(-1).view(torch.int32)[bit // 32] ^= 1 << bit % 31


def made(what: str) -> None:
    if not what:
        raise SystemExit("the fault could not be made")


def rank(folder: Path, faults: int, seed: int) -> None:
    """Be one rank; rank 0 prints what came out, as JSON."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    logging.disable()  # what is found is said there, a thousand times
    right = Job(folder / "undisturbed", "", "").run()
    planted, wrong, spent, loads = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    worst, began = 0, time.monotonic()
    names = list(KINDS)
    for number in range(faults):
        kind = names[number % len(names)]
        job = Job(folder / f"job-{number}", kind, f"{seed} {number}")
        digest = job.run()
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(job.folder)
        planted[kind] += 1
        wrong[kind] += digest != right
        spent[kind] += job.spent
        loads[kind] += job.round
        worst = max(worst, job.spent)
        if dist.get_rank() == 0 and number % 20 == 19:
            said = f"{number + 1} faults, {wrong.total()} other results, at most {worst} restarts"
            print(f"{said}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if dist.get_rank() == 0:
        rows = {kind: [planted[kind], wrong[kind], loads[kind], spent[kind]] for kind in names}
        print(json.dumps({"rows": rows, "worst": worst, "seconds": time.monotonic() - began}))
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=1000, help="jobs with one each [1000]")
    parser.add_argument("--seed", type=int, default=0, help="decides when and where [0]")
    parser.add_argument("--dir", type=Path, help="where the checkpoints are (default: temporary)")
    args = parser.parse_args()
    if "RANK" in os.environ:
        rank(args.dir, args.faults, args.seed)
        return 0
    with tempfile.TemporaryDirectory(dir=args.dir) as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        words = ["--dir", folder, "--faults", str(args.faults), "--seed", str(args.seed)]
        processes = [start(at, port, words) for at in range(2)]
        output, _ = processes[0].communicate()
        codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")
    found = json.loads(output.splitlines()[-1])
    print("| the checkpoint is bad since | faults | other results | restarts | spent on it |")
    print("|---|---|---|---|---|")
    for kind, (faults, wrong, restarts, spent) in found["rows"].items():
        print(f"| {KINDS[kind]} | {faults} | {wrong} | {restarts} | {spent} |")
    faults, wrong = (sum(row[at] for row in found["rows"].values()) for at in (0, 1))
    print(
        f"\n{faults} faults, {wrong} other results, at most {found['worst']} restarts spent on one"
    )
    print(f"{found['seconds']:.0f} s, load {os.getloadavg()[0]:.1f}")
    return int(wrong > 0 or found["worst"] > MOST_SPENT)


def start(at: int, port: int, words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bad_checkpoints", *words],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE if at == 0 else subprocess.DEVNULL,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RANK": str(at),
            "LOCAL_RANK": str(at),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
