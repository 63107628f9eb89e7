"""The followers of a leader: connections, incarnations, numbered orders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.times import REDIAL_LONGEST_S, Durations
from undaunted.coordinator.policy import messages as m

if TYPE_CHECKING:
    from collections.abc import Collection

    from undaunted.coordinator.lead.record import Record

_NS = 1_000_000_000


@dataclass(slots=True)
class Session:
    """One agent that has introduced itself.

    Attributes:
        hello: what it said of itself, last.
        link: the connection to it; None = lost.
        heard_ns: when it said something, last.
        counts_ns: when it said what it counts on this leader for, as far as that is known.
        renewals: when each renewal was sent, by its clock, and heard, of which it has not said that
            it was answered.
        epoch: under which it follows; 0 = it has not said so.
        draining: it came back with ranks of another round, which must stop first.
        orders: to it since it was connected or since the last table, to be sent again.
        number: of the last order.
        reported: number of the last report that was taken in.
        stopped: the last round of which it has reported that nothing is left of it, -1 = none.
        acknowledged: version of the ledger that it knows.
        tables: that it has, by their digests: those of the last ledger that it was sent.
        silent: it was lost without a word, so that its ranks may go on for a while.
        replaceable: it knows that its ranks have to stop when its lease is over.
        leaves: it has been told to stop, and goes soon.
        master: address and port it has reserved for the round.
    """

    hello: p.Hello
    link: int | None
    heard_ns: int
    counts_ns: int = 0
    renewals: list[tuple[int, int]] = field(default_factory=list)
    epoch: int = 0
    draining: bool = False
    orders: list[p.PrepareOrder | p.Order] = field(default_factory=list)
    number: int = 0
    reported: int = 0
    stopped: int = -1
    acknowledged: int = 0
    tables: tuple[bytes, ...] = ()
    silent: bool = False
    replaceable: bool = False
    leaves: bool = False
    master: tuple[str, int] = ("", 0)

    def __post_init__(self) -> None:
        """Its lease begins with what it has introduced itself with."""
        self.introduced(self.hello, self.heard_ns)

    def introduced(self, hello: p.Hello, now: int) -> None:
        """It has introduced itself, perhaps again."""
        self.hello, self.heard_ns, self.counts_ns = hello, now, now
        self.tables = hello.tables

    def renewed(self, renew: p.Renew, now: int) -> None:
        """Take in a renewal, or which one was answered: its lease begins with that one."""
        if not renew.answered:
            self.counts_ns = now  # an older build does not say
            return
        if renew.sent:
            self.renewals.append((renew.sent, now))
        while self.renewals and self.renewals[0][0] <= renew.answered:
            self.counts_ns = self.renewals.pop(0)[1]

    @property
    def node(self) -> str:
        """The name of its node."""
        return self.hello.node

    @property
    def voter(self) -> register.Voter:
        """Its name and incarnation, as voters have them."""
        return (self.hello.node, self.hello.incarnation)

    @property
    def info(self) -> m.NodeInfo:
        """The facts about its node for the policy."""
        hello = self.hello
        return m.NodeInfo(hello.node, hello.slots, hello.infra_rank, hello.domain, hello.group)

    def may_return(self, since_ns: int) -> bool:
        """Return whether it was heard after ``since_ns``, is lost, and does not know the end."""
        told = any(_is_end(order) for order in self.orders)
        return self.link is None and self.heard_ns > since_ns and not told

    def send(self, message: p.Message) -> list[c.LeaderCommand]:
        """Send a message once: it is not kept."""
        return [] if self.link is None else [c.Send(self.link, message)]

    def learn(self, record: Record) -> list[c.LeaderCommand]:
        """Send the ledger, as far as it does not know it."""
        learn, self.tables = record.learn(self.tables), record.tables
        return self.send(learn)

    def beat(
        self, record: Record, sent: int = 0, majority_s: float | None = None
    ) -> list[c.LeaderCommand]:
        """Answer a renewal that was sent at ``sent``, or acknowledge reports."""
        beat = p.Beat(
            epoch=record.epoch,
            acknowledged=self.reported,
            sent=sent,
            replaceable=record.replaceable,
            majority_s=majority_s,
        )
        return self.send(beat)

    def order(self, order: p.PrepareOrder | p.Order) -> list[c.LeaderCommand]:
        """Give an order; it is kept until the next table, in case the connection breaks."""
        self.number += 1
        numbered = msgspec.structs.replace(order, number=self.number)
        self.orders.append(numbered)
        return self.send(numbered)

    def forget_round(self) -> None:
        """Forget orders about the round, as another table follows; an order to end is kept."""
        self.orders = [each for each in self.orders if _is_end(each)]

    def again(self, record: Record) -> list[c.LeaderCommand]:
        """Send the ledger and the orders that it may not have seen, now under the same epoch."""
        orders = [each for each in self.orders if each.number > self.hello.last_order]
        again = [msgspec.structs.replace(each, epoch=record.epoch) for each in orders]
        return [*self.learn(record), *(send for each in again for send in self.send(each))]

    def number_from(self, epoch: int) -> None:
        """Number orders higher than in any earlier epoch."""
        self.number = max(self.number, epoch * p.ORDERS_PER_EPOCH)


@dataclass(slots=True)
class Sessions:
    """The sessions of all followers, by node and by link.

    Attributes:
        lasts: the durations.
        voters: those that are there.
        goes_on_ns: when this process went on last that had stood still; None = it never did.
        by_node: of all that have ever been here, connected or lost.
        by_link: those that are connected.
    """

    lasts: Durations
    voters: dict[register.Voter, None] = field(default_factory=dict)
    by_node: dict[str, Session] = field(default_factory=dict)
    by_link: dict[int, Session] = field(default_factory=dict)
    goes_on_ns: int | None = None  # since then, as this process stood still before
    _swept_ns: int | None = None  # when `silent` ran last

    def connected(self) -> list[Session]:
        """Those that are, now: a list that does not change."""
        return list(self.by_link.values())

    def taken(self, ledger: p.Ledger) -> dict[register.Voter, int]:
        """The version of the ledger that each has taken that keeps it, and is connected."""
        here = [who for who in register.members(ledger) if who in self.voters]
        return {who: self.by_node[who[0]].acknowledged for who in here}

    def learn(self, record: Record, but: Collection[str] = ()) -> list[c.LeaderCommand]:
        """Send the ledger to all that are connected, ``but`` to these nodes."""
        told = [each for each in self.connected() if each.node not in but]
        return [command for each in told for command in each.learn(record)]

    def add(self, session: Session) -> None:
        """Add a new agent, perhaps in place of an earlier one of its node."""
        self.by_node[session.node] = session
        assert session.link is not None
        self.by_link[session.link] = session
        self.voters[session.voter] = None

    def reconnect(self, session: Session, link: int) -> list[c.LeaderCommand]:
        """Note that the agent is here on another connection."""
        commands: list[c.LeaderCommand] = []
        if session.link is not None:  # its reset has not been seen yet
            del self.by_link[session.link]
            commands = [c.Close(session.link)]
        session.link, session.silent, session.epoch = link, False, 0
        session.renewals.clear()
        self.by_link[link] = session
        self.voters[session.voter] = None
        return commands

    def disconnect(self, session: Session, *, silent: bool) -> None:
        """Its connection is gone, or nothing is heard on it."""
        session.silent = silent
        if session.link is not None:
            self.by_link.pop(session.link, None)
            self.voters.pop(session.voter, None)
        session.link = None
        session.draining = False

    def silent(self, now: int) -> list[Session]:
        """Connected ones whose lease is over; asked every third of a lease.

        Most say what was answered only with their next renewal, and have so much longer. If this
        process has stood still they have a lease from then on: they may have as well.
        """
        self._swept_ns, since_ns = now, self._lease_before(now)
        if self.goes_on_ns is not None and self.goes_on_ns > since_ns:
            return []
        answered_ns = since_ns - round(self.lasts.renew_s * _NS)
        return [
            each
            for each in self.by_link.values()
            if each.heard_ns <= since_ns or each.counts_ns <= answered_ns
        ]

    def counting(self, now: int) -> set[register.Voter]:
        """Those that count on this leader now, as far as it knows."""
        since_ns = self._lease_before(now)
        return {each.voter for each in self.by_link.values() if each.counts_ns > since_ns}

    def heard(self, now: int) -> set[register.Voter]:
        """Those that have missed no renewal."""
        since_ns = now - round(2 * self.lasts.renew_s * _NS)
        return {each.voter for each in self.by_link.values() if each.heard_ns > since_ns}

    def majority_s(self, ledger: p.Ledger, epoch: int, now: int) -> float | None:
        """For how long a majority of the committee, and of the one before, counts on this leader.

        None = there is no committee.
        """
        committees = [each for each in (ledger.committee, ledger.before) if each]
        return min((self._counts_s(each, epoch, now) for each in committees), default=None)

    def _counts_s(self, committee: tuple[register.Member, ...], epoch: int, now: int) -> float:
        here = [self.by_node[each.node] for each in committee if self.is_here(each)]
        since_ns = sorted((each.counts_ns for each in here if each.epoch == epoch), reverse=True)
        half = len(committee) // 2
        left_ns = since_ns[half] - self._lease_before(now) if len(since_ns) > half else 0
        return max(0.0, left_ns / _NS)

    def look_again_s(self, now: int) -> float:
        """When to look for silence again: as soon as a lease is over, as that node stops then."""
        longest_s, each = self.lasts.renew_s, self.by_link.values()
        heard_ns = min((one.heard_ns for one in each), default=now)
        answered_ns = min((one.counts_ns for one in each), default=now) + round(longest_s * _NS)
        left_s = (min(heard_ns, answered_ns) - self._lease_before(now)) / _NS
        return min(max(left_s, longest_s / 10), longest_s)

    def stood_still(self, now: int) -> bool:
        """Whether this process has until a moment ago: followers that it misses may have missed it.

        They are connected again in a moment.
        """
        if self.goes_on_ns is None:
            return False
        since_s = (now - self.goes_on_ns) / _NS
        # Those that were not heard in the lease that they had from then on are missed only now.
        swept = now == self._swept_ns and since_s <= 1.5 * self.lasts.lease_s
        return swept or since_s < REDIAL_LONGEST_S  # they try again so soon

    def _lease_before(self, now: int) -> int:
        return now - round(self.lasts.lease_s * _NS)

    def is_here(self, seat: register.Seated) -> bool:
        """Return whether the very agent of a table, or of a committee, is connected."""
        session = self.by_node.get(seat.node)
        if session is None or session.link is None:
            return False
        return session.hello.incarnation == seat.incarnation


def _is_end(order: p.PrepareOrder | p.Order) -> bool:
    return isinstance(order, p.Order) and isinstance(order.command, m.End)
