"""Which rank this is among how many, and lines that the first one prints, as Megatron does."""

from __future__ import annotations

import os
import sys

from undaunted.fault_tolerance.data import who_am_i


def world_size() -> int:
    """Return the number of ranks: of torch.distributed if it is set up, else ``WORLD_SIZE``."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    value = os.environ.get("WORLD_SIZE", "")
    return int(value) if value.isascii() and value.isdigit() else 1


def is_first() -> bool:
    """Whether this is rank 0."""
    return who_am_i().global_rank == 0


def say(line: str) -> None:
    """Print a line, on rank 0."""
    if is_first():
        print(line, flush=True)
