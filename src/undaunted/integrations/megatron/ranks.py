"""Which rank this is among how many, and lines that the first one prints, as Megatron does."""

from __future__ import annotations

from undaunted.fault_tolerance.data import who_am_i
from undaunted.training.rerun.reduction import place


def world_size() -> int:
    """Return the number of ranks: of torch.distributed if it is set up, else ``WORLD_SIZE``."""
    return place()[1]


def is_first() -> bool:
    """Whether this is rank 0."""
    return who_am_i().global_rank == 0


def say(line: str) -> None:
    """Print a line, on rank 0."""
    if is_first():
        print(line, flush=True)
