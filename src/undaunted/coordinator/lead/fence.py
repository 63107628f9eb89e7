"""From the choice of nodes for the next round until it may start: who has to know its table.

A round starts when every node of it has acknowledged the table, when the register holds the ledger
with it, and when no rank of the round before lives any more.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.times import AWAY_MARGIN_S, PROBE_S
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.placement import name_some

if TYPE_CHECKING:
    from undaunted.coordinator.lead.record import Record
    from undaunted.coordinator.lead.sessions import Session, Sessions

_NS = 1_000_000_000


class Preparation:
    """Prepares one round at a time.

    Args:
        config: of the leader.
        record: the ledger.
        sessions: the followers.
        lost: node of the leader before, which members have lost; "" = there was none.
        stops_s: for how long its ranks may live.

    Attributes:
        began_ns: when the leader began to lead.
        others_stop_s: from then on, ranks live so long on nodes that it has not heard of, if these
            may follow the leader before until a majority has lost that one; None = not known.
    """

    def __init__(
        self,
        config: c.LeaderConfig,
        record: Record,
        sessions: Sessions,
        lost: str,
        stops_s: float = 0.0,
    ) -> None:
        self._wanted: m.Prepare | None = None  # by the policy
        self.began_ns = 0
        self.others_stop_s: float | None = None
        self._config = config
        self._record = record
        self._sessions = sessions
        self._lost, self._stops_s = lost, stops_s
        self._elected = lost != "" and p.has_committee(record.ledger)
        self._lasts = sessions.lasts
        # Group ranks of those that have not acknowledged the table.
        self._awaited: dict[register.Voter, int] = {}
        self._told_ns = 0  # since when the ledger with the table is written
        self._waiting_said = False

    @property
    def under_way(self) -> bool:
        """Return whether there is a round to prepare."""
        return self._wanted is not None

    def begin(self, prepare: m.Prepare, now: int) -> list[c.LeaderCommand]:
        """Tell everybody the table, as soon as the ledger is of the leader's epoch."""
        self._wanted, self._waiting_said, self._told_ns = prepare, False, now
        if not self._record.agreed:
            self._awaited = {}
            return []
        seats = tuple(self._seat(place) for place in prepare.places)
        self._record.prepare(prepare.round, seats)
        commands: list[c.LeaderCommand] = [self._record.persist(), self.probe(now)]
        commands += self._sessions.learn(self._record)
        self._awaited = {register.voter(seat): seat.group_rank for seat in seats}
        for session in self._sessions.connected():
            if not session.draining:
                session.forget_round()
                commands += self._tell(session, self._awaited.get(session.voter, -1))
        return commands

    def begin_again(self, now: int) -> list[c.LeaderCommand]:
        """Tell everybody anew, under another epoch."""
        return [] if self._wanted is None else self.begin(self._wanted, now)

    def call_off(self) -> None:
        """Acknowledgements that still come start nothing."""
        self._wanted = None

    def joined(self, session: Session) -> list[c.LeaderCommand]:
        """Tell a follower that has joined since: it takes no part, but the quorum may need it."""
        return self._tell(session, -1) if self._is_told else []

    def returned(self, session: Session) -> list[c.LeaderCommand]:
        """Tell a follower again: its acknowledgement may have been lost with its connection."""
        if not self._is_told or session.voter not in self._awaited:
            return []
        return self._tell(session, self._awaited[session.voter])

    def joins(self, session: Session, now: int) -> None:
        """Take in how a follower has lost the leader before: its ranks may live for so long."""
        if self._stops_s > 0 and session.hello.stops_s > 0:
            since_s = (now - self.began_ns) / _NS
            self._stops_s = max(self._stops_s, since_s + session.hello.stops_s)

    def acknowledged(self, session: Session, message: p.Prepared) -> None:
        """Note that a follower knows a table."""
        if message.version < session.acknowledged:
            return  # of an earlier table, and late
        session.acknowledged = message.version
        session.master = (message.master_addr, message.master_port)
        if message.version == self._record.ledger.version:
            self._awaited.pop(session.voter, None)

    @property
    def complete(self) -> bool:
        """Return whether all nodes of a table have acknowledged it."""
        return self._is_told and not self._awaited

    @property
    def silent(self) -> tuple[str, ...]:
        """Nodes of the table that have not acknowledged it."""
        return tuple(sorted(node for node, _ in self._awaited))

    def may_start(self, now: int) -> bool:
        """Return whether nothing else stands against the start of a complete table."""
        return self._is_held(now) and self._is_followed(now) and self.old_world_is_over(now)

    def _is_followed(self, now: int) -> bool:
        """Whether those that acknowledged the table still count on this leader.

        It may have stood still since then, and another one may lead by now.
        """
        ledger, counting = self._record.ledger, self._sessions.counting(now)
        seated = all(register.voter(seat) in counting for seat in ledger.pending)
        return seated and not self._record.lacking(counting)

    def _is_held(self, now: int) -> bool:
        """Whether the register holds the ledger.

        A leader that keeps it alone, in a file, waits for no disk longer than a lease.
        """
        record, patience_s = self._record, inf if self._config.store else self._config.lease_s
        if not record.is_written and (now - self._told_ns) / _NS < patience_s:
            return False
        return record.holds(self._sessions.taken(record.ledger), record.ledger.version)

    @property
    def accepted(self) -> m.TableAccepted:
        """The event for the policy: a complete table may be started."""
        assert self._wanted is not None
        first = next(seat for seat in self._record.ledger.pending if seat.group_rank == 0)
        return m.TableAccepted(self._wanted.round, *self._sessions.by_node[first.node].master)

    def start(self, *, replaceable: bool) -> None:
        """Note the start. ``replaceable``: the job can go on without one of the nodes."""
        self._wanted = None
        self._record.start(replaceable=replaceable)

    def say(self, now: int) -> list[m.Say]:
        """Say once what a complete table waits for, if that takes long."""
        living = self._living(now)
        longest_s = max(living.values(), default=0)
        if self._waiting_said or longest_s < self._config.lease_s:
            return []
        self._waiting_said = True
        text = f"waiting to hear of {name_some(living)}, for {longest_s:.0f} s at most: ranks may "
        return [m.Say(text + "still be running there")]

    def probe(self, now: int) -> c.LeaderCommand:
        """Return when to look again whether a complete table may be started."""
        soonest_s = min(self._living(now).values(), default=PROBE_S)
        return c.SetTimer("probe", min(PROBE_S, soonest_s))

    # --- leaves ---------------------------------------------------------------------------------

    @property
    def _is_told(self) -> bool:
        return self._wanted is not None and self._record.agreed

    def _seat(self, place: m.Place) -> p.Seat:
        hello = self._sessions.by_node[place.node].hello
        return p.Seat(
            node=place.node,
            incarnation=hello.incarnation,
            address=hello.address,
            group_rank=place.group_rank,
            first_rank=place.first_rank,
            slots=place.slots,
        )

    def _tell(self, session: Session, seat: int) -> list[c.LeaderCommand]:
        record = self._record
        version = record.ledger.version
        order = p.PrepareOrder(number=0, epoch=record.epoch, version=version, seat=seat)
        return session.order(order)

    def old_world_is_over(self, now: int) -> bool:
        """Return whether no rank lives of the last table, or of one that may have been started.

        The leader before may have started what was only prepared in the ledger it has left.
        """
        return not self._living(now)

    def _living(self, now: int) -> dict[str, float]:
        """Nodes where ranks of the round before may still live, and for how many seconds."""
        ledger, perhaps_started = self._record.ledger, self._record.perhaps_started
        known = {"broken": self._is_broken(), "alone": self._has_stopped_alone}
        fenced = ledger.fenced
        left = {seat.node: self._left_s(seat, now, fenced=fenced, **known) for seat in ledger.table}
        fenced = ledger.pending_fenced
        for seat in perhaps_started:
            left_s = self._left_s(seat, now, fenced=fenced, **known)
            left[seat.node] = max(left.get(seat.node, 0), left_s)
        return {node: left_s for node, left_s in left.items() if left_s * _NS >= 1}

    def _left_s(self, seat: p.Seat, now: int, *, fenced: bool, broken: bool, alone: bool) -> float:
        """For how long ranks may still live there, in seconds.

        They end with their agent: nothing is left where a later agent is there, or where the
        agent has closed its connection. A connection may be closed for other reasons, so that does
        not count while all of the old world may live. An agent that hears nothing stops its ranks
        some time after the end of its lease.
        """
        session = self._sessions.by_node.get(seat.node)
        if session is None:
            return self._unheard_left_s(seat, now, fenced=fenced, alone=alone and not fenced)
        if session.hello.incarnation != seat.incarnation:
            return 0
        if session.link is not None:
            return PROBE_S if session.draining else 0
        if session.stopped >= self._record.ledger.round:
            return 0
        if not session.silent and broken:
            return 0
        soon = fenced or session.replaceable
        return self._stops_after_s(soon=soon) - (now - session.heard_ns) / _NS

    def _unheard_left_s(self, seat: p.Seat, now: int, *, fenced: bool, alone: bool) -> float:
        """For how long ranks may still live where this leader has never heard of the agent.

        It may have followed the leader before until this one has begun, as in a hand-over, so that
        all of its lease may be left; but not longer than a majority has, if that has elected.
        """
        since_s = (now - self.began_ns) / _NS
        if seat.node == self._lost and (self._elected or alone):
            return self._stops_s - since_s
        if fenced and self.others_stop_s is not None:
            return self.others_stop_s - since_s
        # With a store, who has not come here may follow the leader before, which goes on.
        soon = fenced or (self._config.store and self._record.ledger.replaceable and alone)
        return self._stops_after_s(soon=soon) - since_s

    @property
    def _has_stopped_alone(self) -> bool:
        """With a store: whether the leader before stops its ranks, see `Leader._may_be_replaced`.

        Or has: it has said so, its launcher has ended, or so many members are here that it has half
        at most.
        """
        if not self._lost or self._stops_s <= 0:
            return True
        tables = (self._record.ledger.table, self._record.perhaps_started)
        return all(map(self._is_half_here, filter(None, tables)))

    def _is_half_here(self, table: tuple[p.Seat, ...]) -> bool:
        if len(table) == 1:
            return self._record.ledger.replaceable
        here = sum(1 for seat in table if self._sessions.is_here(seat))
        return 2 * here >= len(table)

    def _stops_after_s(self, *, soon: bool) -> float:
        """From the last word of an agent until its ranks are gone."""
        stops_s = self._config.away_timeout_s + AWAY_MARGIN_S
        more_s = self._lasts.stopped_s if soon else stops_s
        return self._config.lease_s + more_s

    def _is_broken(self) -> bool:
        """Whether a node of the last table has stopped, or its agent has ended."""
        known = (self._sessions.by_node.get(seat.node) for seat in self._record.ledger.table)
        return any(
            each is not None and each.link is not None and not each.draining for each in known
        )
