"""A rank whose saves are aborted at random moments. Run by test_aborts.py.

    python -m tests.checkpointing.aborts_program RANK WORLD FOLDER SEED COUNT

Each time the ranks make a `Checkpointer`, load, and save step after step. A phase of a save is
drawn, and a rank. When that rank comes to the phase, it tells the others, and a random moment later
each rank calls ``abort_all`` in a thread of its own, as a restart inside the process does. When it
returns, nothing may be committed any more, and the next load has to find what was committed last.
Prints a line of JSON: the number of aborts by phase. Whatever goes wrong ends the program.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from undaunted.checkpointing import Checkpointer, SaveError, aborting
from undaunted.checkpointing.dcp.saving import Saver
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.memory import copy
from undaunted.checkpointing.publishing import Publisher
from undaunted.checkpointing.writer.process import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

PHASES = ("plan", "copy", "write", "agreement", "commit")
# The abort comes at most so long after the phase began, in seconds: about what each takes.
LONGEST_S = {"plan": 0.005, "copy": 0.002, "write": 0.03, "agreement": 0.005, "commit": 0.01}
NUMBERS = 1 << 19  # of the state of a rank, 4 bytes each
LONG_S = 120.0


class Moment:
    """Calls a function when a save of this process comes to a phase; only once."""

    def __init__(self) -> None:
        self._waits_for = ""
        self._call: Callable[[], None] = lambda: None

    def arm(self, phase: str, call: Callable[[], None]) -> None:
        self._call, self._waits_for = call, phase

    def watch(self, phase: str, owner: Any, name: str) -> None:
        """The phase begins with each call of this function."""
        function = getattr(owner, name)

        def told(*args: Any, **named: Any) -> Any:
            if phase == self._waits_for:
                self._waits_for = ""
                self._call()
            return function(*args, **named)

        setattr(owner, name, told)


class Aborts:
    """The part of one rank."""

    def __init__(self, rank: int, world_size: int, folder: Path, seed: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._folder = folder
        self._drawn = random.Random(seed)  # the same on all ranks
        self._own = random.Random(f"{seed} {rank}")
        self._store = dist.FileStore(f"{folder}.store", world_size)
        self._store.set_timeout(timedelta(seconds=LONG_S))
        self._met = 0
        self._newest = 0
        self._moment = Moment()
        self._moment.watch("plan", Saver, "plan")
        self._moment.watch("copy", copy, "copy_each")
        self._moment.watch("write", Writer, "write")
        self._moment.watch("agreement", Publisher, "publish")
        self._moment.watch("commit", FolderStorage, "commit")

    def run(self, count: int) -> Counter[str]:
        """Abort so often; each phase equally often, in an order that is drawn."""
        counts: Counter[str] = Counter()
        for number in range(count):
            if number % len(PHASES) == 0:
                order = self._drawn.sample(PHASES, len(PHASES))
            phase = order[number % len(PHASES)]
            self._once(f"abort {number}", phase)
            counts[phase] += 1
        self._load()
        self._meet()  # rank 0 serves the store over which the others load
        return counts

    def _once(self, name: str, phase: str) -> None:
        who = 0 if phase == "commit" else self._drawn.randrange(self._world_size)
        undisturbed = self._drawn.randrange(3)
        checkpoints = self._load()
        reached = threading.Event()
        aborting_thread = threading.Thread(target=self._abort, args=(name, phase, reached, who))
        aborting_thread.start()
        try:
            for step in range(self._newest + 1, self._newest + 1000):
                if who == self._rank and step > self._newest + undisturbed and not reached.is_set():
                    self._moment.arm(phase, reached.set)
                checkpoints.save(step, self._state(step))
        except (SaveError, ValueError):  # aborted, or closed already
            assert who != self._rank or reached.wait(LONG_S)
        aborting_thread.join()
        checkpoints._saves._thread.join(LONG_S)
        assert not checkpoints._saves._thread.is_alive()
        assert self._committed() == self._after_abort or self._rank != 0, name
        self._meet()

    def _abort(self, name: str, phase: str, reached: threading.Event, who: int) -> None:
        if who == self._rank:
            assert reached.wait(LONG_S), f"{name}: {phase} was not reached"
            self._store.set(name, b"")
        else:
            self._store.wait([name])
        time.sleep(self._own.uniform(0.0, LONGEST_S[phase]))
        aborting.abort_all()
        self._after_abort = self._committed()

    def _load(self) -> Checkpointer:
        """Make the next one, and see that it loads what was committed last."""
        checkpoints = Checkpointer(
            self._folder,
            timeout=LONG_S,
            on_failure=self._drawn.choice(["raise", "retry"]),
            slots=self._drawn.choice([1, 2]),
            bandwidth=1e8,
        )
        state = self._state(0)
        expected = max(
            (int(name.removeprefix("step-")) for name in self._committed()), default=None
        )
        assert checkpoints.load(state) == expected
        self._newest = expected or 0
        assert all(bool((value == self._newest).all()) for value in state.values())
        return checkpoints

    def _state(self, step: int) -> dict[str, torch.Tensor]:
        mine = {f"of rank {self._rank}": torch.full((NUMBERS,), float(step))}
        return {"of all": torch.full((100,), float(step)), **mine}

    def _committed(self) -> dict[str, int]:
        """The checkpoints there are, and which folder each of them is."""
        return {path.name: path.stat().st_ino for path in self._folder.glob("step-*")}

    def _meet(self) -> None:
        self._met += 1
        name = f"meeting {self._met}"
        if self._store.add(f"{name} count", 1) == self._world_size:
            self._store.set(name, b"")
        self._store.wait([name])


def end(told: Any) -> None:
    """An error of any thread ends the program."""
    traceback.print_exception(told.exc_type, told.exc_value, told.exc_traceback)
    os._exit(1)


def main() -> None:
    rank, world_size, seed, count = (int(sys.argv[n]) for n in (1, 2, 4, 5))
    folder = Path(sys.argv[3])
    threading.excepthook = end
    logging.disable(logging.WARNING)
    if world_size > 1:
        meeting = f"file://{folder}.meeting"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    try:
        counts = Aborts(rank, world_size, folder, seed).run(count)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    print(json.dumps(counts), flush=True)
    aborting.abort_all()
    os._exit(0)


if __name__ == "__main__":
    main()
