"""The register: who leads a job under which epoch, and the ledger, kept by a committee.

A committee is one, three or five launchers. It is part of the value that it keeps, so that it can
change. The rules are those of Raft (Ongaro and Ousterhout 2014, sections 5.2, 5.4 and 6: votes,
what may be elected, joint consensus) for a log whose last entry replaces all before it, as in
CASPaxos (Rystsov 2018). docs/design/coordination.md has the argument why one history follows.

The four operations: **claim** an epoch (`Claim`), **write** a value (`Vote.written`), ask whether
it is **held** (`Writer.holds`), and learn that the lead is **lost** (a member has promised a later
epoch). No clock, disk or network in here.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

Voter = tuple[str, str]  # node, incarnation: a launcher that is started again is another one

# A committee of more would be slower and hardly safer.
MOST = 5
# Fewer cannot outvote the one that leads: it keeps the register alone, in its file.
FEWEST = 3
# No two agents take the same epoch, as a rule: an agent's epochs have one remainder modulo this.
_EPOCHS = 1 << 20


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A launcher that keeps the register, and where it listens."""

    node: str
    incarnation: str
    address: str


class Seated(Protocol):
    """Anybody with a name and an incarnation."""

    @property
    def node(self) -> str:
        """Name of the node."""

    @property
    def incarnation(self) -> str:
        """Random id of the launcher."""


class Value(Protocol):
    """A value: of two of one job the one with the later stamp replaces the other."""

    @property
    def epoch(self) -> int:
        """Of the leader that has written it."""

    @property
    def version(self) -> int:
        """Rises with each value of an epoch."""

    @property
    def committee(self) -> tuple[Member, ...]:
        """The launchers that keep it; () = the one that has written it, alone."""

    @property
    def before(self) -> tuple[Member, ...]:
        """The committee of the value before, until this one is held; () = the same one."""


def voter(of: Seated) -> Voter:
    """The name and incarnation of a member, or of a seat in a table."""
    return (of.node, of.incarnation)


def next_epoch(after: int, who: str) -> int:
    """The first epoch later than ``after`` that ``who`` takes, and hardly anybody else."""
    mine = zlib.crc32(who.encode()) % _EPOCHS
    return after + 1 + (mine - after - 1) % _EPOCHS


def members(value: Value) -> dict[Voter, Member]:
    """All who keep a value, in the order in which they claim."""
    return {voter(each): each for each in (*value.committee, *value.before)}


def lacking(present: Collection[Voter], value: Value) -> tuple[Member, ...]:
    """The first committee of a value of which these are no majority, () = there is none."""
    for committee in (value.committee, value.before):
        here = sum((each.node, each.incarnation) in present for each in committee)
        if committee and 2 * here <= len(committee):
            return committee
    return ()


def is_kept_by(present: Collection[Voter], value: Value) -> bool:
    """Return whether these are enough to hold a value, or to know of each that is held."""
    return not lacking(present, value)


def turn(me: Voter, missing: Collection[Voter], value: Value) -> int:
    """Return how many of the members that miss the leader claim before ``me``."""
    order = list(members(value))
    mine = order.index(me) if me in order else len(order)
    return sum(1 for each in order[:mine] if each in missing)


# --- a member -------------------------------------------------------------------------------------

V = TypeVar("V", bound=Value)


def is_later(one: Value, other: Value) -> bool:
    """Return whether a value replaces another one of the same job."""
    return (one.epoch, one.version) > (other.epoch, other.version)


@dataclass(slots=True)
class Vote(Generic[V]):
    """The vote of one member, for as long as its launcher lives.

    It is in memory: a launcher that is started again is another member, so that no disk that
    comes back old can make it vote twice.

    Attributes:
        value: the latest it was given.
        promised: it takes no value of an earlier epoch.
        later: whether one value replaces another.
    """

    value: V
    promised: int = 0
    later: Callable[[V, V], bool] = is_later

    def claimed(self, epoch: int, value: V) -> bool:
        """Return whether it follows a claimant from now on, who knows that value: see `Claim`."""
        if epoch <= self.promised or self.later(self.value, value):
            return False
        self.promised = epoch
        return True

    def written(self, epoch: int, value: V) -> bool:
        """Keep what the leader of an epoch has written; return whether it, or a later one, is."""
        if epoch < self.promised:
            return False
        self.promised = epoch
        self.learn(value)
        return True

    def learn(self, value: V) -> None:
        """Know a value, be it held or not."""
        if self.later(value, self.value):
            self.value = value


@dataclass(slots=True)
class Claim(Generic[V]):
    """An epoch that is claimed by who knows ``value``: it leads from that on, once `won`.

    A member that knows a later value refuses, so the value of a claim that is won is the latest
    that is held, or a later one.
    """

    epoch: int
    value: V
    granted: set[Voter] = field(default_factory=set)

    @property
    def won(self) -> bool:
        """Return whether a majority has granted it."""
        return is_kept_by(self.granted, self.value)


@dataclass(slots=True)
class Writer(Generic[V]):
    """The leader of an epoch.

    It writes the value that it has taken over first, under its own epoch. Another committee is
    written with the present one as the one before, if none is before that. Such a value is held
    when a majority of both has taken it; then the earlier committee is left (`is_settled`).

    Attributes:
        value: the latest.
        config: version of the first value of this epoch with these committees.
        taken: the latest version that each member has taken.
    """

    value: V
    config: int
    taken: dict[Voter, int] = field(default_factory=dict)

    def wrote(self, who: Voter, version: int) -> None:
        """A member has taken a version."""
        self.taken[who] = max(version, self.taken.get(who, 0))

    def holds(self, version: int) -> bool:
        """Return whether a version is held: each later leader knows of it, or of a later one."""
        least = max(version, self.config)
        return is_kept_by({who for who, taken in self.taken.items() if taken >= least}, self.value)

    @property
    def is_settled(self) -> bool:
        """Return whether the committee before need not be asked any more, if there is one."""
        return not self.value.before or self.holds(self.config)


# --- who keeps it ---------------------------------------------------------------------------------


def choose(
    committee: Sequence[Member],
    here: Mapping[Voter, tuple[Member, str]],
    returning: Collection[Voter] = (),
) -> tuple[Member, ...]:
    """Choose who keeps the register from now on; () = fewer than three could, so the leader alone.

    A launcher that keeps it and is here stays. Others come from the domains that keep it least,
    and in the order in which they are given.

    Args:
        committee: who keeps it now.
        here: launchers that can be reached by others, each with the domain it may be lost with.
        returning: members that are away, and may be back soon: they lose their place only to
            those that are here.
    """
    away = [each for each in committee if voter(each) in returning and voter(each) not in here]
    size = min(MOST, len(here) + len(away))
    size -= 1 - size % 2
    if size < FEWEST:
        return ()
    stay = [each for each in committee if voter(each) in here][:size]
    chosen = {voter(each): each for each in stay}
    used: dict[str, int] = {}
    for who in chosen:
        used[here[who][1]] = used.get(here[who][1], 0) + 1
    left = {who: about for who, about in here.items() if who not in chosen}
    while left and len(chosen) < size:
        who = min(left, key=lambda each: used.get(left[each][1], 0))
        member, domain = left.pop(who)
        chosen[who] = member
        used[domain] = used.get(domain, 0) + 1
    return (*chosen.values(), *away[: size - len(chosen)])
