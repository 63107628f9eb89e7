"""A rank of a job in which numbers are really computed wrong, many times: `test_opinions`.

Each trial is a job of its own, with files of its own: a first round, in which rank r is on slot r,
and, if the ranks ask for it, a second one with slots exchanged. A matrix is multiplied; on the slot
that is chosen one bit of it, the highest of the exponent, is flipped before: once, or always. In
other trials a batch has a NaN.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.training import gloo_ranks
from undaunted.progress import writer
from undaunted.progress.writer import NullWriter
from undaunted.training import Rerun, Session, StopReason

STEPS = 6
WORDS = ("transient", "persistent", "correct")


class Page(NullWriter):
    """Keeps what the rank tells."""

    def __init__(self):
        super().__init__("a test")
        self.told: list[str] = []

    def event(self, name, text=""):
        if name == "odd_result":
            self.told.append(text)


def trial(number: int, folder: Path, rank: int) -> str:
    """Return "" or what is wrong about the verdict."""
    chance = random.Random(number)  # the same on all ranks
    kind = chance.choice(WORDS)
    guilty, at = chance.randrange(2), chance.randrange(1, STEPS - 1)
    place = chance.randrange(16)
    folder.mkdir(exist_ok=True)
    job = Job(folder, rank, kind, guilty, at, place)
    stop, told = job.round(slot=rank)
    rounds = 1
    if stop is not None and stop.reason is StopReason.SUSPECT:
        stop, told = job.round(slot=1 - rank)
        rounds = 2
    what = f"trial {number}, {kind} by {guilty} at {at}: "
    if stop is None or stop.exit_code != 17 or stop.iteration != at - 1:
        return f"{what}{stop}"
    if rounds != (1 if kind == "transient" else 2):
        return f"{what}{rounds} rounds"
    expected = [kind] if rank == guilty else []
    found = [word for text in told for word in WORDS if f" a {word} " in text]
    if found != expected or any(f"cpu:{guilty}" not in text for text in told):
        return f"{what}{told}"
    return ""


class Job:
    def __init__(self, folder, rank, kind, guilty, at, place):
        self.folder, self.rank, self.kind = folder, rank, kind
        self.guilty, self.at, self.place = guilty, at, place
        self.flips = 0

    def multiply(self, matrix, other, slot, step):
        hit = slot == self.guilty and step >= self.at
        if hit and (self.kind == "persistent" or (self.kind == "transient" and not self.flips)):
            self.flips += 1
            matrix = matrix.clone()
            matrix.view(torch.int32).view(-1)[self.place] ^= 1 << 30
        return matrix @ other

    def round(self, slot):
        os.environ["LOCAL_RANK"] = str(slot)
        page = writer.current = Page()
        saved = self.folder / f"state-{self.rank}.pt"
        weight, start = torch.full((4, 4), 1.0), 0
        if saved.exists():
            weight, start = torch.load(saved).values()

        def save(step):
            torch.save({"weight": weight, "next": step + 1}, saved)

        with Session(save=save, rerun=Rerun(folder=self.folder)) as session:
            for step in range(start, STEPS):
                with session.step(step):
                    batch = torch.rand(4, 4, generator=torch.Generator().manual_seed(step))
                    if self.kind == "correct" and (self.rank, step) == (self.guilty, self.at):
                        batch[0, 0] = float("nan")
                    for _ in session.attempts():
                        made = self.multiply(1.0 + weight % 0.9, batch + torch.rand(1), slot, step)
                        session.check(made.sum(), "loss")
                    dist.all_reduce(made)
                    weight = weight * 0.9 + made * 0.01
                if session.should_stop(step):
                    break
        assert weight.isfinite().all(), "a wrong number was used"
        return session.stop, page.told


def main() -> None:
    folder, trials = Path(sys.argv[1]), int(sys.argv[2])
    rank, _ = gloo_ranks.join()
    wrong = [trial(number, folder / str(number), rank) for number in range(trials)]
    gloo_ranks.leave({"wrong": [one for one in wrong if one], "trials": trials})


if __name__ == "__main__":
    main()
