"""What the callback of an adapter costs a step of its framework: see `--help`.

`.venv-integrations/lightning/bin/python -m benchmarks.adapters --framework lightning`: one rank
under `undaunted run` trains a tiny model. Of three steps that follow one another the trainer has no
more callback in one, an empty one of the framework in another, and that of the adapter in the
third. Measured is the CPU time of the training thread from the begin of a step to its end, all that
the framework does for a callback included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine
from tests.e2e.launcher import Launcher

STEPS, WARM_UP = 24002, 600  # after the last one the trainer has the adapter's
WITHOUT, EMPTY, OURS = range(3)
TURNS = (WITHOUT, EMPTY, OURS, OURS, EMPTY, WITHOUT)
PARTS = 10  # of the run
LIMIT_S = 500.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--framework", choices=MEASURED, required=True)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.result is not None:
        args.result.write_text(json.dumps(MEASURED[args.framework]()))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        script = [__file__, "--framework", args.framework, "--result", str(result)]
        path = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
        environment = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
        launcher = Launcher(["--nproc-per-node", "1", *script], Path(folder), environment)
        try:
            code = launcher.finish(LIMIT_S)
        finally:
            launcher.close()
        if code != 0:
            print(launcher.text, file=sys.stderr)
            return code
        print(table(args.framework, json.loads(result.read_text())))
    print(machine())
    return 0


def table(framework: str, steps: list[tuple[float, float, float]]) -> str:
    """Medians over the run, and the range of the medians of its parts."""
    without, empty, ours = zip(*steps, strict=True)
    columns = [
        [*without],
        [one - before for before, one in zip(without, empty, strict=True)],
        [one - before for before, one in zip(without, ours, strict=True)],
        [one - before for before, one in zip(empty, ours, strict=True)],
    ]
    cells = " | ".join(cell(column) for column in columns)
    return (
        "| CPU time of a step, µs | without | more: an empty callback | more: the adapter's | "
        f"more than the empty one |\n|---|---|---|---|---|\n| {framework} | {cells} |"
    )


def cell(values: list[float]) -> str:
    size = len(values) // PARTS
    parts = [statistics.median(values[at * size : (at + 1) * size]) for at in range(PARTS)]
    median = statistics.median(values)
    return f"{median:.1f} [{min(parts):.1f}..{max(parts):.1f}] n={len(values)}"


class Times:
    """CPU times of steps with each of the callbacks, which take turns."""

    def __init__(self) -> None:
        self._began = 0
        self._times: list[list[float]] = [[], [], []]
        self._now = OURS  # the trainer is made with it
        self._steps = 0

    def begin(self) -> None:
        self._began = time.thread_time_ns()

    def end(self) -> int:
        """A step is over; return which callback the next one is to have."""
        spent = time.thread_time_ns() - self._began
        self._steps += 1
        if self._steps > WARM_UP:
            self._times[self._now].append(spent / 1e3)
        self._now = OURS if self._steps >= STEPS - 1 else TURNS[self._steps % len(TURNS)]
        return self._now

    def each(self) -> list[tuple[float, float, float]]:
        return list(zip(*self._times, strict=False))


def of_lightning() -> list[tuple[float, float, float]]:
    from lightning.pytorch.callbacks import Callback

    from tests.integrations.lightning.training import Model, trainer_of
    from undaunted.integrations.lightning import UndauntedCallback

    times, undaunted = Times(), UndauntedCallback()
    others: list[list[Any]] = [[], [Callback()], [undaunted]]

    class Begins(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            times.begin()

    class Ends(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.callbacks = [begins, *others[times.end()], ends]

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            trainer.callbacks = [begins, undaunted, ends]

    begins, ends = Begins(), Ends()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of([begins, undaunted, ends], max_epochs=1, default_root_dir=folder)
        trainer.fit(Model(batches=STEPS))
    return times.each()


def of_transformers() -> list[tuple[float, float, float]]:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from undaunted.integrations.transformers import UndauntedCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
            found = self.line(x)
            return {"loss": (found - labels).square().mean(), "logits": found}

    times, undaunted, empty = Times(), UndauntedCallback(), TrainerCallback()
    own: list[list[Any]] = [[], [empty], [undaunted]]

    class Begins(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.begin()

    class Ends(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            others = [each for each in handler.callbacks if each not in (undaunted, empty, self)]
            handler.callbacks = [*others, *own[times.end()], self]

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=1,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(64)]
        trainer = Trainer(
            Model(), args, train_dataset=data, callbacks=[Begins(), undaunted, Ends()]
        )
        handler = trainer.callback_handler
        trainer.train()
    return times.each()


MEASURED = {"lightning": of_lightning, "transformers": of_transformers}

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
