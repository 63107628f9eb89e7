"""The highest round of each run that has written to a place: older ones are refused.

Rounds are numbered by the launcher (`coordinator.epoch`), for each run by itself. A run that nobody
started under a launcher has no rounds and is not fenced.
"""

from __future__ import annotations

import msgspec

from undaunted.checkpointing.errors import StaleEpochError

# Of runs, the latest: a place is seldom used by more.
_MOST_RUNS = 64


class Fence(msgspec.Struct, frozen=True):
    """The content of ``.epoch``.

    Attributes:
        runs: the highest round of each run, the latest run last.
    """

    runs: dict[str, int] = {}


def decode(content: bytes) -> Fence:
    """Read a fence; one that cannot be read holds nobody back."""
    try:
        return msgspec.json.decode(content, type=Fence)
    except msgspec.DecodeError:
        return Fence()


def encode(fence: Fence) -> bytes:
    """Return the content of ``.epoch``."""
    return msgspec.json.encode(fence) + b"\n"


def raised(fence: Fence, run: str, epoch: int, where: str) -> Fence:
    """Return the fence as it is when this round of the run has begun.

    Args:
        fence: as it is now.
        run: name of the run.
        epoch: of the round; 0 = there are none.
        where: the place of checkpoints, for the message.

    Raises:
        StaleEpochError: a later one has begun already.
    """
    if epoch == 0 or fence.runs.get(run) == epoch:
        return fence
    check(fence, run, epoch, where)
    others = [item for item in fence.runs.items() if item[0] != run]
    return Fence(dict([*others[1 - _MOST_RUNS :], (run, epoch)]))


def check(fence: Fence, run: str, epoch: int, where: str) -> None:
    """Raise `StaleEpochError` if a later round of the run has begun."""
    newest = fence.runs.get(run, 0)
    if epoch and epoch < newest:
        raise StaleEpochError(
            f"{where}: round epoch {newest} of run {run!r} has begun, and this process belongs to "
            f"{epoch}: nothing is written. If no other process of that run is alive, its name was "
            "used again: give this run another --rdzv-id, or delete .epoch there"
        )
