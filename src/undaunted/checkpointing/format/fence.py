"""The latest round of each run that has begun at a place: commits of all others are refused.

Rounds are numbered by the launcher (`coordinator.epoch`), for each run by itself. A job that is
started anew under the name of a former one begins with a low number again: that is accepted when
nobody of the former one is alive. A run that nobody started under a launcher has no rounds and is
not fenced.
"""

from __future__ import annotations

import msgspec

from undaunted.checkpointing.errors import StaleEpochError

# Of runs, the latest: a place is seldom used by more.
_MOST_RUNS = 64


class Fence(msgspec.Struct, frozen=True):
    """The content of ``.epoch``.

    Attributes:
        runs: the latest round of each run, the latest run last.
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


def begun(fence: Fence, run: str, epoch: int, where: str, *, alive: bool) -> Fence:
    """Return the fence as it is when this round of the run has begun.

    Args:
        fence: as it is now.
        run: name of the run.
        epoch: of the round; 0 = there are none.
        where: the place of checkpoints, for the message.
        alive: whether another process that commits for this run is alive.

    Raises:
        StaleEpochError: a later one has begun already.
    """
    if epoch == 0 or fence.runs.get(run) == epoch:
        return fence
    if alive and epoch < fence.runs.get(run, 0):
        check(fence, run, epoch, where)
    others = [item for item in fence.runs.items() if item[0] != run]
    return Fence(dict([*others[1 - _MOST_RUNS :], (run, epoch)]))


def check(fence: Fence, run: str, epoch: int, where: str) -> None:
    """Raise `StaleEpochError` if another round of the run has begun after this one."""
    latest = fence.runs.get(run, epoch)
    if epoch and epoch != latest:
        raise StaleEpochError(
            f"{where}: round epoch {latest} of run {run!r} has begun, and this process belongs to "
            f"{epoch}: nothing is written. If both are jobs that are wanted, give one of them "
            "another --rdzv-id or another directory"
        )
