"""The rank and the number of ranks, lines of rank 0, and the reason of an end for the launcher."""

from __future__ import annotations

from undaunted.base.torch_ranks import place
from undaunted.fault_tolerance.data import who_am_i
from undaunted.progress.writer import current_writer
from undaunted.training import stopping
from undaunted.training.stopping import ByLauncher, StopReason


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


def end_together(reason: StopReason, rank: int | None, text: str) -> None:
    """Have the launcher know why all ranks end: it does not go by their exit codes.

    Every rank calls it, and waits until that is known.

    Args:
        reason: why.
        rank: which one is the reason; None = another rank knows.
        text: for the journal.
    """
    page = current_writer()
    if page.attached:
        stopping.end_together(ByLauncher(page), page, reason, rank, text)
