"""Lines of rank 0."""

from __future__ import annotations

from undaunted.base.torch_ranks import place


def say(line: str) -> None:
    """Print a line, on rank 0."""
    if place()[0] == 0:
        print(line, flush=True)
