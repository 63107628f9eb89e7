"""Which local checkpoint all ranks can load, and from whom each gets its shard: pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.checkpointing.local.replication.plans import plan_transfers

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Save(NamedTuple):
    """One save of all ranks; sorts by age.

    Attributes:
        iteration: of it.
        saved_at: seconds since 1970, of one of its shards.
        name: see `shard.Head.save`.
        world_size: of the job that saved.
    """

    iteration: int
    saved_at: float
    name: str
    world_size: int


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A shard that a rank can read.

    Attributes:
        iteration, rank, world_size, save, saved_at: see `shard.Head`.
    """

    iteration: int
    rank: int
    world_size: int
    save: str
    saved_at: float


class Transfer(msgspec.Struct, frozen=True, array_like=True):
    """A shard that a rank gets from another.

    Attributes:
        sender: rank that has it.
        receiver: rank that loads it.
        shard: whose it was when it was saved.
    """

    sender: int
    receiver: int
    shard: int


class Choice(msgspec.Struct, frozen=True, array_like=True):
    """What all ranks load.

    Attributes:
        iteration, save, world_size: see `Save`.
        shards: by rank: the shard it loads.
        transfers: in the order in which they are carried out.
    """

    iteration: int
    save: str
    world_size: int
    shards: list[int]
    transfers: list[Transfer]


class Selection(NamedTuple):
    """Outcome.

    Attributes:
        choice: None when nothing can be loaded.
        reasons: why newer ones cannot, newest first.
    """

    choice: Choice | None
    reasons: list[str]


def select(held: Sequence[Collection[Held]], interchangeable: bool = False) -> Selection:
    """Return the newest checkpoint of which every rank can get its shard.

    Args:
        held: by rank: the shards it can read.
        interchangeable: each shard is the whole state, as with DDP: any shard will do for any
            rank, and the number of ranks does not matter.
    """
    reasons: list[str] = []
    for save in sorted(_saves(held), reverse=True):
        available = {
            rank: {one.rank for one in shards if (one.iteration, one.save) == (save[0], save[2])}
            for rank, shards in enumerate(held)
        }
        why = _why_not(save, available, len(held), interchangeable)
        if why:
            reasons.append(f"iteration {save.iteration}: {why}")
            continue
        shards = _assign(available, interchangeable)
        wanted = {rank: [shard] for rank, shard in enumerate(shards)}
        moves = plan_transfers(available, wanted)
        transfers = [Transfer(move.sender, move.receiver, move.id_) for move in moves]
        chosen = Choice(save.iteration, save.name, save.world_size, shards, transfers)
        return Selection(chosen, reasons)
    return Selection(None, reasons)


def _saves(held: Sequence[Collection[Held]]) -> list[Save]:
    newest: dict[tuple[int, str, int], float] = {}
    for shards in held:
        for one in shards:
            key = (one.iteration, one.save, one.world_size)
            newest[key] = max(one.saved_at, newest.get(key, one.saved_at))
    return [Save(key[0], at, key[1], key[2]) for key, at in newest.items()]


def _why_not(
    save: Save, available: dict[int, set[int]], world_size: int, interchangeable: bool
) -> str:
    """Return why this one cannot be loaded; empty when it can."""
    if interchangeable:
        return ""
    if save.world_size != world_size:
        return (
            f"it was saved by {save.world_size} ranks and there are {world_size} now, and each "
            "has a part of the state of its own"
        )
    missing = sorted(set(range(world_size)) - set().union(*available.values()))
    if missing:
        return f"the shards of ranks {_listed(missing)} are nowhere, or damaged"
    return ""


def _assign(available: dict[int, set[int]], interchangeable: bool) -> list[int]:
    """Return the shard of each rank."""
    if not interchangeable:
        return list(range(len(available)))
    everywhere = sorted(set().union(*available.values()))
    # Those without one of their own share the load of those who send.
    others = (everywhere[at % len(everywhere)] for at in range(len(available)))
    return [
        rank if rank in here else min(here, default=other)
        for (rank, here), other in zip(sorted(available.items()), others, strict=True)
    ]


def _listed(ranks: Sequence[int], most: int = 16) -> str:
    text = ", ".join(map(str, ranks[:most]))
    return text if len(ranks) <= most else f"{text} and {len(ranks) - most} more"
