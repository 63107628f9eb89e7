"""One random run of the register: is there one history, whatever is lost, doubled or late?

Only `lead/register.py` is run. Messages are in a bag: any of them arrives next, some twice, some
never. Launchers are killed, and others with the same name come with an old disk or an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.register import Claim, Member, Vote, Voter, Writer, voter

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 90
_LAUNCHERS = 7


class ForkError(Exception):
    """There are two histories; the message says which values."""


class Value:
    """A value, and the one it was written after."""

    __slots__ = ("after", "before", "committee", "epoch", "version")

    def __init__(
        self,
        epoch: int,
        version: int,
        committee: tuple[Member, ...],
        before: tuple[Member, ...] = (),
        after: Value | None = None,
    ) -> None:
        self.epoch, self.version = epoch, version
        self.committee, self.before, self.after = committee, before, after

    def __repr__(self) -> str:
        who = "".join(each.node for each in self.committee)
        before = "+" + "".join(each.node for each in self.before) if self.before else ""
        return f"{self.epoch}.{self.version}[{who}{before}]"

    def follows(self, other: Value) -> bool:
        """Whether it is that value, or was written knowing it."""
        known: Value | None = self
        while known is not None and (known.epoch, known.version) >= (other.epoch, other.version):
            if known is other:
                return True
            known = known.after
        return False


@dataclass(slots=True)
class Launcher:
    """One launcher: its vote, its claim, and the values that it writes as a leader."""

    member: Member
    vote: Vote[Value]
    claim: Claim[Value] | None = None
    writer: Writer[Value] | None = None
    last: int = 0  # version

    @property
    def who(self) -> Voter:
        """Name and incarnation."""
        return voter(self.member)


@dataclass(slots=True)
class Counts:
    """What happened in a run."""

    leaders: int = 0
    held: int = 0
    committees: int = 0


@dataclass
class Run:
    """One run.

    Args:
        chance: decides all that happens.
        counts: of many runs.

    Attributes:
        held: values that a majority has taken, whether or not their writer knows.
        begun: epochs of leaders, each with the value it went on from.
    """

    chance: Random
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        """The first launchers start; one of them leads."""
        self.bag: list[Callable[[], None]] = []
        self.names = [chr(ord("a") + number) for number in range(_LAUNCHERS)]
        self.incarnations = 0
        self.launchers: dict[Voter, Launcher] = {}
        self.takers: dict[Value, set[Voter]] = {}
        self.held: list[Value] = []
        self.begun: list[tuple[int, Value]] = []
        first = self._member("a")
        self.root = Value(0, 0, (first,))
        others = [self._member(name) for name in self.names[1:]]
        for member in (first, *others):
            self._launch(member, self.root)
        self._claim(self.launchers[voter(first)])

    # --- launchers ------------------------------------------------------------------------------

    def _member(self, name: str) -> Member:
        self.incarnations += 1
        return Member(name, str(self.incarnations), name)

    def _launch(self, member: Member, value: Value) -> None:
        self.launchers[voter(member)] = Launcher(member, Vote(value))

    def _restart(self) -> None:
        """A launcher is killed; another one is there, with a disk that is old or lost."""
        old = self._some()
        del self.launchers[old.who]
        self._launch(self.again(old), self.chance.choice((old.vote.value, self.root)))

    def again(self, old: Launcher) -> Member:
        """Who is started in place of a launcher."""
        return self._member(old.member.node)

    def _some(self) -> Launcher:
        return self.chance.choice(list(self.launchers.values()))

    def _send(self, deliver: Callable[[], None]) -> None:
        if self.chance.random() < 0.9:
            self.bag.append(deliver)
        if self.chance.random() < 0.1:
            self.bag.append(deliver)

    # --- claims ---------------------------------------------------------------------------------

    def _claim(self, one: Launcher) -> None:
        vote = one.vote
        if one.who not in register.members(vote.value):
            return
        epoch = register.next_epoch(vote.promised, one.member.incarnation)
        claim = one.claim = Claim(epoch, vote.value)
        one.writer = None
        if vote.claimed(epoch, vote.value):
            claim.granted.add(one.who)
        for who in register.members(vote.value):
            if who != one.who:
                self._send(lambda who=who: self._asked(who, one, claim))  # type: ignore[misc]
        self._count(one, claim)

    def _asked(self, who: Voter, one: Launcher, claim: Claim[Value]) -> None:
        other = self.launchers.get(who)
        if other is None:
            return
        granted = other.vote.claimed(claim.epoch, claim.value)
        if granted and other.writer is not None:
            other.writer = None  # lost: a later epoch is promised
        known = other.vote.value
        self._send(lambda: self._answered(one, claim, who, granted=granted, known=known))

    def _answered(
        self, one: Launcher, claim: Claim[Value], who: Voter, *, granted: bool, known: Value
    ) -> None:
        if self.launchers.get(one.who) is not one or one.claim is not claim:
            return
        if not granted:
            if register.is_later(known, one.vote.value):
                one.vote.value = known
            return
        claim.granted.add(who)
        self._count(one, claim)

    def _count(self, one: Launcher, claim: Claim[Value]) -> None:
        if not claim.won or claim.epoch < one.vote.promised:
            return
        one.claim, value = None, claim.value
        self._leads(claim.epoch, value)
        again = Value(claim.epoch, 1, value.committee, value.before, value)
        one.writer, one.last = Writer(again, 1), 1
        self._write(one, again)

    # --- writes ---------------------------------------------------------------------------------

    def _write(self, one: Launcher, value: Value) -> None:
        writer = one.writer
        assert writer is not None
        writer.value = value
        for who in register.members(value):
            self._send(lambda who=who: self._given(who, one, writer, value))  # type: ignore[misc]

    def _given(self, who: Voter, one: Launcher, writer: Writer[Value], value: Value) -> None:
        other = self.launchers.get(who)
        if other is None or not other.vote.written(value.epoch, value):
            return
        if other is not one:
            other.writer = None
        self._taken(value, who)
        self._send(lambda: self._wrote(one, writer, who, value.version))

    def _wrote(self, one: Launcher, writer: Writer[Value], who: Voter, version: int) -> None:
        if self.launchers.get(one.who) is one and one.writer is writer:
            writer.wrote(who, version)

    def _go_on(self, one: Launcher) -> None:
        """A leader writes another value, perhaps of another committee."""
        writer = one.writer
        if writer is None:
            return
        one.last += 1
        value, version = writer.value, one.last
        committee, before = value.committee, value.before
        if before and writer.is_settled:
            before, writer.config = (), version
        elif not before and self.chance.random() < 0.5:
            committee, before = self._other(committee), committee
            writer.config = version
            self.counts.committees += 1
        self._write(one, Value(value.epoch, version, committee, before, value))

    def _other(self, committee: tuple[Member, ...]) -> tuple[Member, ...]:
        """Another committee: often as the product chooses it, sometimes any."""
        launchers = list(self.launchers.values())
        if self.chance.random() < 0.5:
            here = self.chance.sample(launchers, self.chance.randint(1, len(launchers)))
            chosen = register.choose(
                committee, {each.who: (each.member, each.member.node) for each in here}
            )
            if chosen:
                return chosen
        size = self.chance.choice((1, 3, 3, 5))
        return tuple(each.member for each in self.chance.sample(launchers, size))

    # --- what must hold -------------------------------------------------------------------------

    def _leads(self, epoch: int, value: Value) -> None:
        self.counts.leaders += 1
        if any(other == epoch for other, _ in self.begun):
            raise ForkError(f"two lead under epoch {epoch}")
        self.begun.append((epoch, value))
        for held in self.held:
            self._one_history(held, epoch, value)

    def _taken(self, value: Value, who: Voter) -> None:
        """A member has taken a value: perhaps it is held now, whether or not its writer knows."""
        takers = self.takers.setdefault(value, set())
        takers.add(who)
        if value in self.held or not register.is_kept_by(takers, value):
            return
        self.counts.held += 1
        self.held.append(value)
        for epoch, begun in self.begun:
            self._one_history(value, epoch, begun)

    def _one_history(self, held: Value, epoch: int, begun: Value) -> None:
        if epoch > held.epoch and not begun.follows(held):
            raise ForkError(f"{held} is held, and the leader of epoch {epoch} began with {begun}")

    def step(self) -> None:
        """Let something happen."""
        chance = self.chance.random()
        if self.bag and chance < 0.72:
            position = self.chance.randrange(len(self.bag))
            self.bag[position], self.bag[-1] = self.bag[-1], self.bag[position]
            self.bag.pop()()
        elif chance < 0.80:
            self._claim(self._some())
        elif chance < 0.97:
            leaders = [each for each in self.launchers.values() if each.writer is not None]
            if leaders:
                self._go_on(self.chance.choice(leaders))
        else:
            self._restart()


def run(seed: int, counts: Counts | None = None, make: Callable[..., Run] = Run) -> str:
    """Run one; return what is wrong, "" = there is one history."""
    one = make(Random(seed), counts or Counts())  # noqa: S311 - to be repeated
    try:
        for _ in range(STEPS):
            one.step()
    except ForkError as fork:
        return str(fork)
    return ""
