"""The local checkpoint that all ranks can load, and the source of each shard: pure functions.

Each rank says what it holds, then whether it has loaded what was chosen (`Standing`); rank 0
decides for all (`decide`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from undaunted.base.text import name_ranks
from undaunted.checkpointing.errors import NoCheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_T = TypeVar("_T")
_REMEDY = "; LocalCheckpointManager.load_parts has others load it"


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


# Whose parts a rank takes over: given its number, how many ranks there are, and how many saved.
Parts = Callable[[int, int, int], Iterable[int]]
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


class ShardChoice(NamedTuple):
    """The choice of all ranks.

    Attributes:
        iteration, save, world_size: see `Save`.
        shards: by rank: the shards it loads; one, unless it takes over those of others.
        transfers: in the order in which they are carried out.
    """

    iteration: int
    save: str
    world_size: int
    shards: list[list[int]]
    transfers: list[Transfer]


class Share(msgspec.Struct, frozen=True, array_like=True):
    """The share of one rank in a choice.

    Attributes:
        iteration, save: see `Save`.
        shards: that it loads.
        transfers: see `ShardChoice`; none where the rank has no part in any.
    """

    iteration: int
    save: str
    shards: list[int]
    transfers: list[Transfer]


class ShardSelection(NamedTuple):
    """Outcome.

    Attributes:
        choice: None when nothing can be loaded.
        reasons: why newer ones cannot, newest first.
    """

    choice: ShardChoice | None
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
    choice: ShardChoice | None
    reasons: list[str]


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """For one rank.

    Attributes:
        done, reasons: see `Verdict`.
        share: what to load next; None = there is nothing.
        doubted: iterations that are not trusted.
    """

    done: bool
    share: Share | None
    reasons: list[str]
    doubted: list[int] = []


def decider(
    interchangeable: bool, trusted: Trusted | None = None, parts: Parts | None = None
) -> Callable[[Sequence[bytes]], list[bytes]]:
    """Return what rank 0 decides with: an `Answer` for each rank; see `decide`."""

    def decide_encoded(contributions: Sequence[bytes]) -> list[bytes]:
        standings = [msgspec.msgpack.decode(one, type=Standing) for one in contributions]
        doubted: list[int] = []

        def noted(saves: Sequence[Save]) -> tuple[Save | None, dict[Save, str]]:
            assert trusted is not None
            first, doubts = trusted(saves)
            doubted.extend(save.iteration for save in doubts)
            return first, doubts

        done, choice, reasons = decide(standings, interchangeable, trusted and noted, parts)
        shares = _shares(choice) if choice else [None for _ in standings]
        return [msgspec.msgpack.encode(Answer(done, one, reasons, doubted)) for one in shares]

    return decide_encoded


def _shares(choice: ShardChoice) -> list[Share]:
    busy = {rank for move in choice.transfers for rank in (move.sender, move.receiver)}
    return [
        Share(choice.iteration, choice.save, shards, choice.transfers if rank in busy else [])
        for rank, shards in enumerate(choice.shards)
    ]


def decide(
    standings: Sequence[Standing],
    interchangeable: bool,
    trusted: Trusted | None = None,
    parts: Parts | None = None,
) -> Verdict:
    """Return whether all have loaded the same, or else what to load.

    Args:
        standings: of all ranks.
        interchangeable: see `select`.
        trusted: see `select`.
        parts: see `select`.

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
    choice, reasons = select([one.held for one in standings], interchangeable, trusted, parts)
    return Verdict(False, choice, [*problems, *reasons][:64])


def select(
    held: Sequence[Collection[Held]],
    interchangeable: bool = False,
    trusted: Trusted | None = None,
    parts: Parts | None = None,
) -> ShardSelection:
    """Return the newest checkpoint of which every rank can get its shard.

    Args:
        held: by rank: the shards it can read.
        interchangeable: each shard is the whole state, as with DDP: any shard will do for any
            rank, and the number of ranks does not matter.
        trusted: given those that can be loaded, the newest first, returns the first one to try,
            None if it is none of them, and why not newer ones.
        parts: whose shards each rank loads, however many ranks have saved; None = its own, and as
            many ranks as there are now.
    """
    usable: list[Save] = []
    reasons: dict[Save, str] = {}
    for save in sorted(_saves(held), reverse=True):
        why = _why_not(save, _available(held, save), interchangeable, parts)
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
    chosen = None if first is None else _choice(held, first, interchangeable, parts)
    return ShardSelection(chosen, named)


def _available(held: Sequence[Collection[Held]], save: Save) -> dict[int, set[int]]:
    """Return by rank the shards of a save that it can read."""
    key = (save.iteration, save.name)
    return {
        rank: {one.rank for one in shards if (one.iteration, one.save) == key}
        for rank, shards in enumerate(held)
    }


def _choice(
    held: Sequence[Collection[Held]], save: Save, interchangeable: bool, parts: Parts | None
) -> ShardChoice:
    available = _available(held, save)
    if interchangeable:
        shards = [[one] for one in _assign(available)]
    else:
        shards = _wanted(save, len(held), parts)
    moves = plan_transfers(available, dict(enumerate(shards)))
    transfers = [Transfer(*move) for move in moves]
    return ShardChoice(save.iteration, save.name, save.world_size, shards, transfers)


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
    save: Save, available: dict[int, set[int]], interchangeable: bool, parts: Parts | None
) -> str:
    """Return why this one cannot be loaded; empty when it can."""
    if interchangeable:
        return ""
    ranks, saved = len(available), set(range(save.world_size))
    wanted = set().union(*_wanted(save, ranks, parts))
    if left := sorted(saved - wanted):
        return (
            f"it was saved by {save.world_size} ranks and there are {ranks} now: nobody would "
            f"load what {name_ranks(left, 16)} had" + ("" if parts else _REMEDY)
        )
    if unknown := sorted(wanted - saved):
        whose = ", which the function of load_parts asks for" if parts else _REMEDY
        return (
            f"it was saved by {save.world_size} ranks and there are {ranks} now: there is nothing "
            f"to load for {name_ranks(unknown, 16)}{whose}"
        )
    missing = sorted(saved - set().union(*available.values()))
    if missing:
        return f"no whole shard is left of {name_ranks(missing, 16)}"
    return ""


def _wanted(save: Save, ranks: int, parts: Parts | None) -> list[list[int]]:
    """Return whose shards each rank loads."""
    if parts is None:
        return [[rank] for rank in range(ranks)]
    return [[*dict.fromkeys(parts(rank, ranks, save.world_size))] for rank in range(ranks)]


def _assign(available: dict[int, set[int]]) -> list[int]:
    """Return the shard of each rank, of those that are all the same."""
    everywhere = sorted(set().union(*available.values()))
    # Those without one of their own share the load of those who send.
    others = (everywhere[at % len(everywhere)] for at in range(len(available)))
    return [
        rank if rank in here else min(here, default=other)
        for (rank, here), other in zip(sorted(available.items()), others, strict=True)
    ]
