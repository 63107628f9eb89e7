"""Which local checkpoint all ranks can load, and from whom each gets its shard: pure functions.

Each rank says what it holds, then whether it has loaded what was chosen (`Standing`); rank 0
decides for all (`decide`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from undaunted.base.text import name_ranks
from undaunted.checkpointing.errors import NoCheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_T = TypeVar("_T")


class NoReplicasAvailableError(NoCheckpointError):
    """Nobody has what a rank needs."""


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


# Returns the first save to try, and why not newer ones; see `select`.
Trusted = Callable[[Sequence[Save]], tuple[Save | None, dict[Save, str]]]


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


class Choice(NamedTuple):
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


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What one rank loads of a choice.

    Attributes:
        iteration, save: see `Save`.
        shard: that it loads.
        transfers: see `Choice`; none where the rank has no part in any.
    """

    iteration: int
    save: str
    shard: int
    transfers: list[Transfer]


class Selection(NamedTuple):
    """Outcome.

    Attributes:
        choice: None when nothing can be loaded.
        reasons: why newer ones cannot, newest first.
    """

    choice: Choice | None
    reasons: list[str]


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


class Verdict(NamedTuple):
    """For all ranks.

    Attributes:
        done: all ranks have loaded what was chosen.
        choice: what to load next; None = there is nothing.
        reasons: why not something newer.
    """

    done: bool
    choice: Choice | None
    reasons: list[str]


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """For one rank.

    Attributes:
        done, reasons: see `Verdict`.
        share: what to load next; None = there is nothing.
    """

    done: bool
    share: Share | None
    reasons: list[str]


def decider(
    interchangeable: bool, trusted: Trusted | None = None
) -> Callable[[Sequence[bytes]], list[bytes]]:
    """Return what rank 0 decides with: an `Answer` for each rank; see `decide`."""

    def decide_encoded(contributions: Sequence[bytes]) -> list[bytes]:
        standings = [msgspec.msgpack.decode(one, type=Standing) for one in contributions]
        done, choice, reasons = decide(standings, interchangeable, trusted)
        shares = _shares(choice) if choice else [None for _ in standings]
        return [msgspec.msgpack.encode(Answer(done, share, reasons)) for share in shares]

    return decide_encoded


def _shares(choice: Choice) -> list[Share]:
    busy = {rank for move in choice.transfers for rank in (move.sender, move.receiver)}
    return [
        Share(choice.iteration, choice.save, shard, choice.transfers if rank in busy else [])
        for rank, shard in enumerate(choice.shards)
    ]


def decide(
    standings: Sequence[Standing], interchangeable: bool, trusted: Trusted | None = None
) -> Verdict:
    """Return whether all have loaded the same, or else what to load.

    Args:
        standings: of all ranks.
        interchangeable: see `select`.
        trusted: see `select`.

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
    choice, reasons = select([one.held for one in standings], interchangeable, trusted)
    return Verdict(False, choice, [*problems, *reasons][:64])


def select(
    held: Sequence[Collection[Held]],
    interchangeable: bool = False,
    trusted: Trusted | None = None,
) -> Selection:
    """Return the newest checkpoint of which every rank can get its shard.

    Args:
        held: by rank: the shards it can read.
        interchangeable: each shard is the whole state, as with DDP: any shard will do for any
            rank, and the number of ranks does not matter.
        trusted: given those that can be loaded, the newest first, returns the first one to try,
            None if it is none of them, and why not newer ones.
    """
    usable: list[Save] = []
    reasons: dict[Save, str] = {}
    for save in sorted(_saves(held), reverse=True):
        why = _why_not(save, _available(held, save), len(held), interchangeable)
        if why:
            reasons[save] = why
        else:
            usable.append(save)
    if trusted is None:
        first = next(iter(usable), None)
    else:
        first, doubts = trusted(usable)
        reasons |= doubts
    newer = [save for save in sorted(reasons, reverse=True) if first is None or save > first]
    named = [f"iteration {save.iteration}: {reasons[save]}" for save in newer]
    return Selection(None if first is None else _choice(held, first, interchangeable), named)


def _available(held: Sequence[Collection[Held]], save: Save) -> dict[int, set[int]]:
    """Return by rank the shards of a save that it can read."""
    key = (save.iteration, save.name)
    return {
        rank: {one.rank for one in shards if (one.iteration, one.save) == key}
        for rank, shards in enumerate(held)
    }


def _choice(held: Sequence[Collection[Held]], save: Save, interchangeable: bool) -> Choice:
    available = _available(held, save)
    shards = _assign(available, interchangeable)
    moves = plan_transfers(available, {rank: [one] for rank, one in enumerate(shards)})
    transfers = [Transfer(*move) for move in moves]
    return Choice(save.iteration, save.name, save.world_size, shards, transfers)


def plan_transfers(
    available: Mapping[int, Collection[_T]], wanted: Mapping[int, Collection[_T]]
) -> list[tuple[int, int, _T]]:
    """Return the fewest transfers after which all have what they want: sender, receiver, what.

    Who has it already gets nothing; else the one of those who have it that has least to send,
    the first of equals. The same on all ranks.

    Args:
        available: by global rank, what it has.
        wanted: by global rank, what it needs.

    Raises:
        NoReplicasAvailableError: nobody has something that is wanted.
    """
    sent = dict.fromkeys(available, 0)
    transfers: list[tuple[int, int, _T]] = []
    for receiver, items in sorted(wanted.items()):
        for it in items:
            if it in available.get(receiver, ()):
                continue
            holders = [rank for rank in sorted(available) if it in available[rank]]
            if not holders:
                raise NoReplicasAvailableError(
                    f"rank {receiver} needs {it}, which no rank has: its disk and those of its "
                    "replicas are gone or damaged"
                )
            sender = min(holders, key=lambda rank: sent[rank])
            sent[sender] += 1
            transfers.append((sender, receiver, it))
    return transfers


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
        return f"no whole shard is left of {name_ranks(missing, 16)}"
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
