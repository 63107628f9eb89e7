"""The round that may commit, and the checkpoints that are kept. Pure.

The launcher numbers rounds (`coordinator.epoch`), for each run by itself. Of the rounds of a run
that have begun at a place only the latest may commit. A job that is started anew under the name of
a former one may begin with a lower number: that is accepted when nobody of the former one is
alive. A run without a launcher has no rounds and is not fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.checkpointing.errors import StaleEpochError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


# Of runs, the latest: a place is seldom used by more.
_MOST_RUNS = 64


class Fence(msgspec.Struct, frozen=True):
    """The content of ``.epoch``.

    Attributes:
        runs: the latest round of each run, the latest run last.
    """

    runs: dict[str, int] = {}


def decode_fence(content: bytes) -> Fence:
    """Read a fence; one that cannot be read holds nobody back."""
    try:
        return msgspec.json.decode(content, type=Fence)
    except msgspec.DecodeError:
        return Fence()


def encode_fence(fence: Fence) -> bytes:
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
        check_fence(fence, run, epoch, where)
    others = [item for item in fence.runs.items() if item[0] != run]
    return Fence(dict([*others[1 - _MOST_RUNS :], (run, epoch)]))


def check_fence(fence: Fence, run: str, epoch: int, where: str) -> None:
    """Raise `StaleEpochError` if another round of the run has begun after this one."""
    latest = fence.runs.get(run, epoch)
    if epoch and epoch != latest:
        raise StaleEpochError(
            f"{where}: round epoch {latest} of run {run!r} has begun, and this process belongs to "
            f"{epoch}: nothing is written. If both are jobs that are wanted, give one of them "
            "another --rdzv-id or another directory"
        )


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints that are kept.

    Attributes:
        keep: that many of the newest, at least 1; None keeps all.
        every: those of steps divisible by this as well; None = no others.
        certified: that many of the newest certified ones as well.
    """

    keep: int | None = None
    every: int | None = None
    certified: int = 0


def to_delete(
    steps: Sequence[int],
    rule: Rule,
    good: int | None = None,
    certified: Collection[int] = (),
) -> list[int]:
    """Return the steps that are to be deleted, the oldest first.

    Args:
        steps: of all committed checkpoints, the one that was committed last at the end.
        rule: what is kept.
        good: the newest one that is known to be whole, which is kept whatever the rule says: newer
            names may stand for damaged ones.
        certified: steps of those that are.
    """
    if rule.keep is None:
        return []
    kept = set(steps[-max(1, rule.keep) :])
    if good is not None:
        kept.add(good)
    if rule.certified:
        kept.update([step for step in steps if step in certified][-rule.certified :])
    if rule.every is not None:
        kept.update(step for step in steps if step % rule.every == 0)
    return [step for step in steps if step not in kept]
