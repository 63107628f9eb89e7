"""What ranks tell each other to find a checkpoint that all can load, and to load it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.checkpointing.errors import NoCheckpointError
from undaunted.checkpointing.local.selection import Choice, Held, select

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class CkptID(NamedTuple):
    """A shard, for users.

    Attributes:
        iteration: at which it was saved.
        rank: whose state it is.
        session_id: of the manager.
    """

    iteration: int
    rank: int
    session_id: str


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """Of one rank.

    Attributes:
        held: the shards it can read.
        loaded: iteration and save of the shard it has loaded; None = nothing.
        problem: why it has not loaded what was chosen.
        damaged: whether it has found damage that it did not know of: worth another choice.
    """

    held: list[Held]
    loaded: tuple[int, str] | None = None
    problem: str = ""
    damaged: bool = False


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """For all ranks.

    Attributes:
        done: all ranks have loaded what was chosen.
        choice: what to load next; None = there is nothing.
        reasons: why not something newer.
    """

    done: bool
    choice: Choice | None
    reasons: list[str]


def encode(standing: Standing) -> bytes:
    """Return what a rank contributes."""
    return msgspec.msgpack.encode(standing)


def decode(verdict: bytes) -> Verdict:
    """Return what was decided."""
    return msgspec.msgpack.decode(verdict, type=Verdict)


def decider(interchangeable: bool) -> Callable[[Sequence[bytes]], bytes]:
    """Return what rank 0 decides with; see `decide`."""

    def decide_encoded(contributions: Sequence[bytes]) -> bytes:
        standings = [msgspec.msgpack.decode(one, type=Standing) for one in contributions]
        return msgspec.msgpack.encode(decide(standings, interchangeable))

    return decide_encoded


def decide(standings: Sequence[Standing], interchangeable: bool) -> Verdict:
    """Return whether all have loaded the same, or else what to load.

    Args:
        standings: of all ranks.
        interchangeable: see `select`.

    Raises:
        NoCheckpointError: a rank could not load what was chosen, and there is no reason to choose
            something else.
    """
    loaded = {one.loaded for one in standings}
    if len(loaded) == 1 and None not in loaded:
        return Verdict(True, None, [])
    problems = [f"rank {rank}: {one.problem}" for rank, one in enumerate(standings) if one.problem]
    if problems and not any(one.damaged for one in standings):
        raise NoCheckpointError(f"no local checkpoint was loaded: {'; '.join(problems[:8])}")
    choice, reasons = select([one.held for one in standings], interchangeable)
    return Verdict(False, choice, [*problems, *reasons][:64])
