"""What checks for silent corruption find, and what they cost: see `--help`.

`python -m benchmarks.corruption`: bits flip in local gradients and in replicas, 100 times each, and
it is counted how often the right rank is named. Then a check of replicas takes turns with reading
the same bytes once, and a step that is replayed with one that is not.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from benchmarks.__main__ import machine
from benchmarks.table import cell, paired_ratio
from tests.training import gloo_ranks, replay_program, replicas_program
from undaunted.digests import each
from undaunted.training import Replay, Replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GIB = 1 << 30
TENSORS = 64  # that the bytes of a model are in
FLIPS = (("plain", 1), ("ddp", 2), ("ddp", 3), ("views", 4))
MODELS = ((256, 4, 32), (1024, 4, 64), (2048, 6, 256))  # width, layers, rows of a batch


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corruption", description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="of parameters (1)")
    parser.add_argument("--rounds", type=int, default=15, help="turns (15)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (1)")
    parser.add_argument("--only", choices=("found", "replicas", "replay"), help="a part; all")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.only in (None, "found"):
        found()
    if args.only in (None, "replicas"):
        replicas(args.gib, args.rounds)
    if args.only in (None, "replay"):
        replay(args.rounds)
    print(machine())
    return 0


def found() -> None:
    print("| bits that flip | ranks | caught before the optimizer | right rank and tensor named |")
    print("|---|---|---|---|")
    for kind, ranks in FLIPS:
        for one in said(replay_program.__file__, ranks, "flips", kind)[:1]:
            caught = f"{one['caught']} of {replay_program.FLIPS}, {one['updates']} updates"
            print(f"| local gradient, {kind} | {ranks} | {caught} | {one['named']} |", flush=True)
    for one in said(replicas_program.__file__, 4, "corrupt")[:1]:
        times = f"{one['named']} of {replicas_program.TIMES}"
        print(f"| parameter: bit, NaN payload, -0.0 | 4 | - | {times} |\n", flush=True)


def said(program: str | None, ranks: int, *arguments: str) -> list[dict[str, int]]:
    assert program is not None
    with tempfile.TemporaryDirectory() as place:
        return gloo_ranks.run(Path(program), ranks, Path(place), *arguments)


def replicas(gib: float, rounds: int) -> None:
    """A process group of one: what is exchanged is 32 bytes."""
    words = int(gib * GIB) // TENSORS // 4
    model = nn.ParameterList(nn.Parameter(torch.randn(words)) for _ in range(TENSORS))
    check = Replicas(model, every=1)
    halves = nn.ParameterList(nn.Parameter(one.detach().bfloat16()) for one in model)
    half = Replicas(halves, every=1)
    print(f"| {gib:g} GiB of parameters | reading, ms | check, ms | ratio of the pairs |")
    print("|---|---|---|---|")
    row("float32", lambda: read(model), lambda: check(0), rounds)
    row("bfloat16, half as much", lambda: read(halves), lambda: half(0), rounds)
    with without_xxhash():
        row("float32, no xxhash", lambda: read(model), lambda: check(0), rounds)
    print()


def read(parameters: nn.ParameterList) -> None:
    for one in parameters:
        one.detach().view(torch.int64).sum()


@contextlib.contextmanager
def without_xxhash() -> Iterator[None]:
    there, each._xxhash = each._xxhash, lambda: None  # type: ignore[assignment]  # noqa: SLF001
    try:
        yield
    finally:
        each._xxhash = there  # noqa: SLF001


def replay(rounds: int) -> None:
    print("| model | step, ms | replayed step, ms | ratio of the pairs |")
    print("|---|---|---|---|")
    for width, layers, batch in MODELS:
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        rows = torch.randn(batch, width)

        def forward_backward(model: nn.Module = model, rows: torch.Tensor = rows) -> torch.Tensor:
            loss = model(rows).square().mean()
            loss.backward()
            return loss.detach()

        def step(model: nn.Module = model, run: Callable[[], object] = forward_backward) -> None:
            run()
            model.zero_grad()

        twice = Replay(model, every=1)
        million = sum(one.numel() for one in model.parameters()) / 1e6

        def replayed(
            model: nn.Module = model,
            twice: Replay = twice,
            run: Callable[[], torch.Tensor] = forward_backward,
        ) -> None:
            twice(0, run)
            model.zero_grad()

        row(f"{million:.1f} million parameters, batch of {batch}", step, replayed, rounds)
    print()


def row(title: str, base: Callable[[], None], ours: Callable[[], None], rounds: int) -> None:
    base()
    ours()
    pairs = [(milliseconds(base), milliseconds(ours)) for _ in range(rounds)]
    first, second = zip(*pairs, strict=True)
    ratios = [b / a for a, b in pairs]
    middle = paired_ratio(first, second)
    spread = f"{min(ratios):.3g}..{max(ratios):.3g}"
    print(f"| {title} | {cell(first)} | {cell(second)} | {middle:.3g} [{spread}] |", flush=True)


def milliseconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    sys.exit(main())
