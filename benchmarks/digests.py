"""What recording a rank's state costs, as under `undaunted chaos`.

    python benchmarks/digests.py [--million 10] [--tensors 20] [--rounds 9] [--threads 1]

A model of so many million parameters (float32), trained with AdamW on the CPU. Shown is the CPU
time of each record: median, least and largest over the rounds. Records go to a temporary directory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from undaunted.digests.generators import Generators
from undaunted.digests.observer import Observer
from undaunted.digests.record import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million", type=float, default=10, help="parameters")
    parser.add_argument("--tensors", type=int, default=20, help="weights they are in")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    side = max(1, round((args.million * 1e6 / args.tensors) ** 0.5))
    layers = (torch.nn.Linear(side, side, bias=False) for _ in range(args.tensors))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(1, side)
    model(batch).sum().backward()
    optimizer.step()
    with tempfile.TemporaryDirectory() as place:
        observer = Observer(
            Recorder(Path(place), 0),
            Generators(Path(place), 0),
            rank=0,
            round_=0,
            announce=lambda _iteration: None,
        )
        observer.step(0, None)
        cases: dict[str, Callable[[], object]] = {
            "step, digest=model": lambda: observer.step(0, model),
            "forward": lambda: observer.forward(model, batch, first=True),
            "update": lambda: observer.update(optimizer),
        }
        print("| record | median, ms | least | largest |\n|---|---|---|---|")
        for name, case in cases.items():
            case()
            times = [milliseconds(case) for _ in range(args.rounds)]
            figures = (statistics.median(times), min(times), max(times))
            print(f"| {name} | {' | '.join(f'{one:.1f}' for one in figures)} |")


def milliseconds(case: Callable[[], object]) -> float:
    start = time.process_time()
    case()
    return (time.process_time() - start) * 1e3


if __name__ == "__main__":
    main()
