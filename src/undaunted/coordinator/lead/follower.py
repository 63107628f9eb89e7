"""A node's side of coordination: one state machine per agent.

It finds the leader, keeps a lease with it, sends reports until they are acknowledged, hands each
order on once, and, when the leader is gone, finds out with the other members who takes over. No
clock, socket or thread in here.

States::

    SEEKING    no leader has welcomed this node yet
    FOLLOWING  a leader has; the lease is renewed
    AWAY       the leader is gone: connect again, and see `Absence`
    ENDED      the job is over for this node
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.text import format_duration
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.absence import Absence
from undaunted.coordinator.lead.knowledge import Knowledge
from undaunted.coordinator.lead.times import (
    ENDS_AFTER_LEASES,
    OUTLIVE_S,
    REDIAL_FIRST_S,
    REDIAL_GRANTED_S,
    REDIAL_LONGEST_S,
    REFUSED_FOR_S,
    SEEK_QUIETLY_S,
    Durations,
)
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.placement import name_some

_NS = 1_000_000_000
_SAY_WAIT_S = 60.0  # between two lines about a coordinator that is waited for
# Why ranks are stopped, if the job is to end after that; see `messages.Stop`.
ENDS = ("preempted", "requested", "deadline")
# Reports of one round that are kept for a leader who takes over.
KEPT_REPORTS = 64
_durations = lru_cache(maxsize=8)(Durations)

if TYPE_CHECKING:
    from collections.abc import Sequence


class FollowerState(enum.Enum):
    """See the module's documentation."""

    SEEKING = enum.auto()
    FOLLOWING = enum.auto()
    AWAY = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True)
class Follower:
    """See the module's documentation. Feed events to `handle`, carry out what it returns."""

    config: c.FollowerConfig
    state: FollowerState = FollowerState.SEEKING
    knows: Knowledge = field(init=False)
    round: int = -1  # the last one in which this node took part
    running: bool = False
    _stopped: int = -1  # the last round that it has stopped without an order
    _replaceable: bool = False  # the job can go on without this node, see protocol.Started
    _absence: Absence | None = None
    _lease: Lease = field(init=False)
    _counted_until_ns: int = 0  # until then the leader that was lost may count on this node
    # Until then a majority of the committee counts on the leader, as that has said; where there is
    # none, the end of the last lease.
    _majority_end_ns: int = 0
    _idle_ns: int = 0  # since then neither a leader nor a running rank
    # the connection
    _link: int = 0  # number of the last one
    _open: bool = False  # it stands
    _address: str = ""  # where it goes
    _tables: bool = False  # a leader wants those of the ledger as well
    search: Search = field(init=False)  # for a leader
    _why: str = "not tried yet"  # what the last one ended with
    _gone: str = ""  # what the absence of a leader began with
    _event_ns: int = 0  # when the last event was handled
    _stood_s: float = 0.0  # for how long this process has stood still since a leader was heard
    _asks_until_ns: int = 0  # it has stood still, and asks the leader whether the job has gone on
    # orders and reports
    _last_order: int = 0
    _reports: Reports = field(init=False)
    _told_to_stop: m.Preempted | None = None  # by a signal to the launcher
    _ends: str = ""  # why the job is to end once this round is stopped, "" = it is not to end
    _gone_on: int = 0  # orders to go on after a hang of others, in this round

    def __post_init__(self) -> None:
        """A leader says later what the lease really is."""
        self.knows = Knowledge(self.config.node, self.config.incarnation)
        self.search = Search(self.config)
        self._reports = Reports()
        self._lease = Lease(self.config.lease_s)

    def handle(self, event: c.FollowerEvent, now: int) -> list[c.FollowerCommand]:
        """Take one event at ``now`` (monotonic, ns); return the commands it causes, in order."""
        if isinstance(event, c.Asked):
            reply, claims = self._asked(event.message, now)
            granted = isinstance(reply, p.Grant) and reply.granted and not self._open
            looks = granted and self.state is not FollowerState.ENDED
            look = [c.SetTimer("dial", REDIAL_GRANTED_S)] if looks else []
            replies = c.Answer(event.question, reply)
            return [replies, *look, *claims, *self._join_other(event.message, now)]
        if self.state is FollowerState.ENDED:
            return []
        self._look_at_clock(now)
        match event:
            case c.Received(link=link, message=message):
                return self._received(message, now) if link == self._link else []
            case c.TimerFired(name=name):
                return self._timer(name, now)
            case c.Begin():
                self._idle_ns = now
                return [c.SetTimer("giveup", self.search.limit_s), *self._dial()]
            case c.Opened(link=link):
                return self._opened(now) if link == self._link else []
            case c.Closed(link=link):
                return self._closed(event, now) if link == self._link else []
            case c.Answered():
                return self._answered(event, now)
            case c.Tell(event=happened):
                return self._tell(happened, now)
            case c.TableKnown():
                return self._table_known(event)
            case c.LeaderAt():
                return self._leader_at(event, now)

    @property
    def leader(self) -> str:
        """Address of the leader that is followed, or has ended the job; "" = there is none."""
        return self._address if self.state in (FollowerState.FOLLOWING, FollowerState.ENDED) else ""

    @property
    def lease_s(self) -> float:
        """Return how long a lease is."""
        return self._lease.seconds

    def ranks_outlive_s(self, now: int) -> float:
        """For how long ranks here may live if this process stands still; 0 = there are none.

        They are gone before others take their places, see `Durations.stopped_s`: those of the
        leader's node too, where another one may lead.
        """
        if not self.running:
            return 0.0
        others = self.config.store != "" or p.has_committee(self.knows.ledger)
        leads = self._address == self.config.address
        soon = self._is_fenced or (others if leads else self._replaceable)
        away_s = 0.0 if soon else self.config.away_timeout_s
        outlive_s = self._lease.seconds + away_s + OUTLIVE_S
        if not self._is_fenced:
            return outlive_s
        left_s = max(0.0, (self._majority_end_ns - now) / _NS)
        return min(outlive_s, left_s + self._lease.lasts.grace_s)

    def lease_left_s(self, now: int) -> float | None:
        """Return the seconds that are left of the lease; less than 0 while the leader is gone.

        None = there was no leader yet.
        """
        seeks = self.state is FollowerState.SEEKING
        return None if seeks else self._lease.left_s(self._lease.sent_ns, now)

    def _look_at_clock(self, now: int) -> None:
        """Notice that this process stood still: a lease is renewed every third of it."""
        gap_s, self._event_ns = (now - self._event_ns) / _NS, now
        if self.state is FollowerState.FOLLOWING and 2 * gap_s > self._lease.seconds:
            self._stood_s = gap_s
            self._asks_until_ns = now + round(self._lease.lasts.asks_after_pause_s * _NS)

    # --- the connection -------------------------------------------------------------------------

    def _dial(self) -> list[c.FollowerCommand]:
        self._link += 1
        self._open = False
        known = self.knows.ledger
        self._address = self.search.address(known.table, known.pending, known.committee)
        return [c.Dial(self._link, self._address)] if self._address else []

    def _replaced(self, event: c.LeaderAt, now: int) -> list[c.FollowerCommand]:
        """Another one leads than the one that is followed, which may be silent: follow that."""
        if event.address in ("", self._address) or event.epoch <= self.knows.epoch:
            return []
        # That one may not know yet, and is not to take this for the loss of a node.
        told = c.Send(self._link, p.TakenOver(epoch=event.epoch))
        hangup = c.Hangup(self._link)
        self._forget_link()
        self._why = f"the job is led from {event.address}"
        since_ns = self._lease.until_ns  # it may not hear of this
        lost = self._lost(now, reset=True, leader=event.address, counted_until_ns=since_ns)
        return [told, hangup, *lost]

    def _leader_at(self, event: c.LeaderAt, now: int) -> list[c.FollowerCommand]:
        """The store knows better than any list of addresses."""
        self.search.elected = event.address
        if self.state is FollowerState.FOLLOWING:
            return self._replaced(event, now)
        if not event.address:
            self._why = event.reason or self._why
            return []
        if self._open and event.address == self._address:
            return []
        self.search.first = [event.address]
        return [c.Hangup(self._link), *self._dial()]

    def _opened(self, now: int) -> list[c.FollowerCommand]:
        self._open, self._lease.opened_ns = True, now
        config, knows = self.config, self.knows
        hello = p.Hello(
            node=config.node,
            incarnation=config.incarnation,
            slots=config.slots,
            address=config.address,
            infra_rank=config.infra_rank,
            domain=config.domain,
            group=config.group,
            round=self.round,
            running=self.running,
            last_order=self._last_order,
            ledger=p.brief(knows.told) if knows.told and not self._tables else knows.told,
            brief=not self._tables,
            tables=knows.tables.of(knows.ledger) if knows.told else (),
            promised=knows.promised,
            settings=config.settings,
            program=config.program,
            stops_s=self.leader_stops_s(now),
            leader_ended=self._leader_ended,
        )
        return [c.Send(self._link, hello), c.SetTimer("welcome", self._lease.seconds)]

    def _closed(self, event: c.Closed, now: int, *, told: bool = False) -> list[c.FollowerCommand]:
        """``told``: see `_lost`."""
        self._forget_link()
        self._why = event.reason
        if self.state is FollowerState.FOLLOWING:
            return self._lost(now, reset=not event.silent, told=told)
        if self._absence is not None and event.ended and self._address == self.search.last:
            claims = self._absence.leader_ended(now)
            claims += self._missed(lost=True, ended=self._address)
            return [*claims, c.SetTimer("dial", self.search.pause_s())]
        missed = self._missed() if self._address == self.search.elected else []
        seeking, idle_s = self.state is FollowerState.SEEKING, (now - self._idle_ns) / _NS
        # Its own launcher of before has the name for a lease.
        patience_s = max(REFUSED_FOR_S, 2 * self._lease.seconds)
        if seeking and event.refused and idle_s >= patience_s:
            return self._end(c.GiveUp(event.reason))
        line = self.search.to_say(self._why, idle_s) if seeking else ""
        says = [c.Say(line)] if line else []
        return [*says, *missed, c.SetTimer("dial", self.search.pause_s())]

    def _missed(self, *, lost: bool = False, ended: str = "") -> list[c.FollowerCommand]:
        """With a store, another launcher may lead from now on."""
        if not self.config.store:
            return []
        ledger = self.knows.ledger
        seats = sorted(ledger.table, key=lambda seat: seat.group_rank)
        others = [register.voter(seat) for seat in seats if seat.node != ledger.leader]
        turn = others.index(self.knows.me) if self.knows.me in others else None
        return [c.Missed(lost, ended, turn)]

    def leader_stops_s(self, now: int) -> float:
        """For how long ranks of the leader's node may live, if all have lost it as this node has.

        0 = there is a leader, or none was lost.
        """
        if self._absence is None or not self.config.store:
            return 0.0
        return max(0.0, (self._counted_until_ns - now) / _NS) + self._lease.lasts.stopped_s

    @property
    def _leader_ended(self) -> bool | None:
        """See `protocol.Hello`."""
        absence = self._absence
        if absence is None:
            return None
        if absence.replaced:
            return False
        here = self.knows.agreed and self._address == self.search.last
        return absence.saw_end or here or None

    def _end(self, last: c.Leave | c.GiveUp) -> list[c.FollowerCommand]:
        self.state, self._address = FollowerState.ENDED, ""
        return [c.Hangup(self._link), last]

    def _forget_link(self) -> None:
        self._link += 1  # what still comes from the old one is not for us
        self._open = False

    # --- what a leader says ---------------------------------------------------------------------

    def _received(self, message: p.Message, now: int) -> list[c.FollowerCommand]:
        if isinstance(message, p.Welcome):
            return self._welcomed(message, now)
        if isinstance(message, p.Refused):
            return self._refused(message, now)
        if not isinstance(message, p.TO_FOLLOWERS):
            return []
        if isinstance(message, p.Learn):
            return self._learn(message, now)
        if not self._follows(message.epoch):
            return []
        match message:
            case p.Beat():
                return self._beat(message, now)
            case p.HandOver():
                return self._succeed(message, now)
            case p.PrepareOrder() | p.Order():
                return self._ordered(message, now)
        return []

    def _follows(self, epoch: int) -> bool:
        return self.state is FollowerState.FOLLOWING and epoch == self.knows.epoch

    def _learn(self, learn: p.Learn, now: int) -> list[c.FollowerCommand]:
        # Also where it is not taken: the leader may refer to its tables from now on.
        ledger = self.knows.tables.filled(learn)
        if ledger is None:
            closed = c.Closed(self._link, "it refers to a table that this node does not know")
            return [c.Hangup(self._link), *self._closed(closed, now)]
        if not self._follows(learn.epoch):
            return []
        agreed = self.knows.agreed
        self.knows.vote.written(learn.epoch, ledger)
        # How long a majority counts on a leader is only heard once it has agreed to that one.
        return self._renew(now) if self.knows.agreed and not agreed else []

    def _beat(self, beat: p.Beat, now: int) -> list[c.FollowerCommand]:
        self._reports.acknowledge(beat.acknowledged)
        longer = self._lease.answered(beat.sent)
        # A leader that was started again, say, and is cut off may not be the only one.
        if self.knows.agreed and beat.sent == self._lease.sent_ns:
            seconds = self._lease.seconds
            lasts_s = seconds if beat.majority_s is None else min(seconds, beat.majority_s)
            self._majority_end_ns = beat.sent + round(lasts_s * _NS)
        if self._lease.left_s(beat.sent, now) > 0:
            self._stood_s, self._asks_until_ns = 0.0, 0
        can_be = beat.replaceable and not self._replaceable  # the leader waits to hear it back
        self._replaceable = self._replaceable or can_be
        # The leader counts on the committee for all nodes, so it is to know at once.
        says = (longer and self.knows.votes) or can_be
        return [c.Send(self._link, self._renewal(0))] if says else []

    def _welcomed(self, welcome: p.Welcome, now: int) -> list[c.FollowerCommand]:
        knows = self.knows
        if welcome.epoch < knows.promised:
            return []  # it knows from Hello what was promised, and takes a later epoch
        back, new = self.state is FollowerState.AWAY, welcome.epoch != knows.epoch
        self.state, self._tables = FollowerState.FOLLOWING, False
        self._absence, self._gone, self._stood_s = None, "", 0.0
        knows.promised = knows.epoch = welcome.epoch
        self._lease.welcomed(welcome.lease_s)
        self.search.found()
        commands: list[c.FollowerCommand] = []
        if new and welcome.leader != self.config.node:
            commands.append(c.StandDown())
        if self.config.store:
            commands.append(c.Found())
        if back:
            commands.append(
                c.Say(f"following the coordinator on {welcome.leader or self._address}")
            )
        again = self._reports.to_send(new_leader=new)
        commands += [c.Send(self._link, report) for report in again]
        left_s = max(0.0, self._lease.left_s(self._lease.sent_ns, now))
        timers = [c.SetTimer("silence", left_s), c.SetTimer("minority", self._majority_left_s(now))]
        return [*commands, *self._renew(now), *timers]

    def _refused(self, refused: p.Refused, now: int) -> list[c.FollowerCommand]:
        if refused.tables:
            self._tables, self.search.first = True, [self._address]
            return [c.Hangup(self._link), *self._dial()]
        if refused.leader and refused.leader != self._address:
            self.search.first = [refused.leader]
        if refused.final:
            return self._end(c.GiveUp(refused.reason))
        if self.state is FollowerState.FOLLOWING and refused.leader:
            return self._sent_on(refused, now)
        closed = c.Closed(self._link, refused.reason, refused=refused.taken)
        return [c.Hangup(self._link), *self._closed(closed, now, told=True)]

    def _sent_on(self, refused: p.Refused, now: int) -> list[c.FollowerCommand]:
        """The leader that is followed says who leads from now on, and need not be replaced."""
        hangup = c.Hangup(self._link)
        self._forget_link()
        self._why = refused.reason
        return [hangup, *self._lost(now, reset=True, leader=refused.leader)]

    def _ordered(self, order: p.PrepareOrder | p.Order, now: int) -> list[c.FollowerCommand]:
        if order.number <= self._last_order:
            return []  # carried out before the connection broke
        if isinstance(order, p.PrepareOrder):
            self._last_order = order.number
            return self._prepare(order)
        match order.command, order.change:
            case m.Start() as start, p.Started() as change:
                if not self.knows.started(order.epoch, start.round, change):
                    return []  # it comes again after its table, once members agree to the leader
                self._last_order = order.number
                start = msgspec.structs.replace(start, epoch=order.epoch)
                return self._start(start, replaceable=change.replaceable, now=now)
            case m.Stop(round=number) as stop, p.Stopped() as change:
                self.knows.stopped(order.epoch, number, change)
                self._ends = stop.reason if stop.agree in ENDS else ""
            case m.GoOn(), _:
                self._gone_on += 1
                self._reports.forget_hang()
            case m.End(), _:
                self.state = FollowerState.ENDED
                return [c.Deliver(order.command), c.Hangup(self._link)]
        self._last_order = order.number
        return [c.Deliver(order.command)]

    def _prepare(self, order: p.PrepareOrder) -> list[c.FollowerCommand]:
        ledger = self.knows.ledger
        if (ledger.epoch, ledger.version) != (order.epoch, order.version):
            return []  # it has been replaced by another one, which is prepared next
        if self.knows.is_mine(ledger.pending, order.seat):
            return [c.Prepare(ledger.pending_round, ledger.version, order.seat)]
        return self._table_known(c.TableKnown(ledger.pending_round, ledger.version))

    def _start(self, start: m.Start, *, replaceable: bool, now: int) -> list[c.FollowerCommand]:
        if not self.knows.is_mine(self.knows.ledger.table, start.group_rank):
            return []
        self.round, self.running, self._replaceable = start.round, True, replaceable
        self._gone_on, self._ends = 0, ""
        self._reports.forget_before(self.round)
        # The leader waits to hear that it has begun.
        look = c.SetTimer("minority", self._lease.lasts.claims_after_silence_s)
        return [c.Deliver(start), *self._renew(now), look]

    def _table_known(self, event: c.TableKnown) -> list[c.FollowerCommand]:
        if self.state is not FollowerState.FOLLOWING:
            return []
        known = p.Prepared(
            epoch=self.knows.epoch,
            version=event.version,
            round=event.round,
            master_addr=event.master_addr,
            master_port=event.master_port,
        )
        return [c.Send(self._link, known)]

    # --- what the node says ---------------------------------------------------------------------

    def _tell(self, event: m.NodeEvent, now: int) -> list[c.FollowerCommand]:
        if isinstance(event, m.HangSuspected | m.NodeFailed):
            event = msgspec.structs.replace(event, gone_on=self._gone_on)
        report = self._reports.add(event)
        if isinstance(event, m.Preempted):
            self._told_to_stop = event
        if isinstance(event, m.NodeStopped) and event.round == self.round:
            self.running = False
            self._idle_ns = now
        if self.state is FollowerState.FOLLOWING:
            return [c.Send(self._link, report)]
        if self._told_to_stop is not None:
            return self._leave_alone(event)
        return [] if self.running else [c.SetTimer("giveup", self._patience_s)]

    def _leave_alone(self, event: m.NodeEvent) -> list[c.FollowerCommand]:
        """The launcher was told to stop while there is no leader to say what follows."""
        assert self._told_to_stop is not None
        reason = f"the launcher received {self._told_to_stop.signal_name}"
        if not self.running:
            return self._end(c.Leave(reason))
        if not isinstance(event, m.Preempted):
            return []
        return [c.StopRanks(self.round, reason, self.config.term_timeout_s, event.signal)]

    # --- timers ---------------------------------------------------------------------------------

    def _timer(self, name: str, now: int) -> list[c.FollowerCommand]:
        absence = self._absence
        match name:
            case "dial" if not self._open and self.state is not FollowerState.FOLLOWING:
                return self._dial()
            case "renew" if self.state is FollowerState.FOLLOWING:
                over = self._lease.left_s(self._lease.sent_ns, now) <= 0  # it was suspended
                return self._silence(now) if over else self._renew(now)
            case "welcome" if self._open and self.state is not FollowerState.FOLLOWING:
                return self._not_welcomed(now)
            case "silence" if self.state is FollowerState.FOLLOWING:
                return self._silence(now)
            case "giveup":
                return self._give_up(now)
            case "waits":
                return self._still_waits(now)
            case "ask" if absence is not None:
                return absence.ask(now)
            case "minority" if absence is not None:
                return self._minority(absence, now)
            case "minority" if self.running and self.state is FollowerState.FOLLOWING:
                return self._look_at_majority(now)
            case "claim" if absence is not None and self._told_to_stop is None:
                return self._lead(absence.claim(now))
        return []

    def _renew(self, now: int) -> list[c.FollowerCommand]:
        lasts = self._lease.lasts
        stops_soon = self._is_fenced and self._majority_left_s(now) < lasts.lease_s / 2
        often = self.knows.votes or (self.running and stops_soon)
        again_s = lasts.keeper_renews_s if often else lasts.renew_s
        return [c.Send(self._link, self._renewal(now)), c.SetTimer("renew", again_s)]

    def _renewal(self, sent: int) -> p.Renew:
        """``sent``: 0 = only to say which one was answered."""
        return p.Renew(
            epoch=self.knows.epoch,
            sent=sent,
            round=self.knows.ledger.round,
            replaceable=self._replaceable,
            answered=self._lease.sent_ns,
        )

    def _not_welcomed(self, now: int) -> list[c.FollowerCommand]:
        """The connection stands, and nobody says anything: that host may be gone meanwhile."""
        if (left_s := self._lease.left_s(self._lease.opened_ns, now)) > 0:
            return [c.SetTimer("welcome", left_s)]
        closed = c.Closed(self._link, f"it has not answered for {self._lease.seconds:g} s")
        return [c.Hangup(self._link), *self._closed(closed, now)]

    def _silence(self, now: int) -> list[c.FollowerCommand]:
        if (left_s := self._lease.left_s(self._lease.sent_ns, now)) > 0:
            return [c.SetTimer("silence", left_s)]
        if (left_s := (self._asks_until_ns - now) / _NS) > 0:
            return [c.SetTimer("silence", left_s), *self._renew(now)]
        knows = self.knows
        miss = p.Miss(node=knows.node, incarnation=knows.incarnation, epoch=knows.epoch)
        hangup: list[c.FollowerCommand] = [c.Send(self._link, miss), c.Hangup(self._link)]
        self._forget_link()
        self._why = f"it has not answered for {self._lease.seconds:g} s"
        return [*hangup, *self._lost(now, reset=False)]

    def _give_up(self, now: int) -> list[c.FollowerCommand]:
        limit_s = self._patience_s
        if self.state is FollowerState.FOLLOWING or self.running:
            return [c.SetTimer("giveup", limit_s)]
        left_s = limit_s - (now - self._idle_ns) / _NS
        if left_s > 0:
            return [c.SetTimer("giveup", left_s)]
        return self._end_alone(self.search.in_vain(self._gone or self._why))

    def _end_alone(self, reason: str) -> list[c.FollowerCommand]:
        gives_up = c.GiveUp(reason, lost=self.search.ever_found)
        return self._end(c.Leave(self._ends) if self._ends else gives_up)

    @property
    def _patience_s(self) -> float:
        """How long a leader is looked for. If the job is to end, long enough for a successor."""
        return ENDS_AFTER_LEASES * self._lease.seconds if self._ends else self.search.limit_s

    # --- the leader is gone ---------------------------------------------------------------------

    def _lost(
        self,
        now: int,
        *,
        reset: bool,
        leader: str = "",
        told: bool = False,
        counted_until_ns: int = 0,
    ) -> list[c.FollowerCommand]:
        """Do without a leader.

        Args:
            now: see `handle`.
            reset: the connection was ended, rather than nothing was heard.
            leader: address of the one that leads instead, as the one before has said.
            told: it was said that another one leads.
            counted_until_ns: until then it may count on this node; 0 = not any more.
        """
        self.search.begin(self._address)
        self._counted_until_ns = counted_until_ns
        reset = reset and now < self._lease.until_ns
        since_ns = now if reset else self._lease.until_ns
        absence = self._absent(since_ns, now, reset=reset)
        absence.replaced = told or leader != ""
        if leader:
            self.search.first = [leader]
            absence.expect("", now)
        self._gone = f"the coordinator at {self._address} is gone: {self._why}"
        if self._stood_s:
            stood = format_duration(self._stood_s)
            self._gone = (
                f"the agent of node {self.config.node}, or its machine, stood still for {stood}, "
                "and the others may go on without it"
            )
        goes_on = self.running and absence.stop_ns > now and not self._reports.tell_of_end
        said = c.Say(self._gone + ("; the ranks go on" if goes_on else ""))
        waits = [] if self.running else self._say_wait()
        giveup = c.SetTimer("giveup", self._patience_s)
        missed = self._missed(lost=not told and not leader)
        return [said, *missed, *waits, giveup, *self._dial(), *absence.begin(now)]

    def _absent(self, since_ns: int, now: int, *, reset: bool) -> Absence:
        self.state, self._idle_ns = FollowerState.AWAY, now
        stop_ns = self._stop_ns(since_ns, reset=reset)
        until_ns, lasts = self._lease.until_ns, self._lease.lasts
        self._absence = Absence(self.knows, since_ns, reset, stop_ns, until_ns, lasts)
        return self._absence

    def _stop_ns(self, since_ns: int, *, reset: bool) -> int:
        """When the ranks of this node are stopped if no leader is found.

        Before others take their place, which a leader that has ended does not do. A reset that is
        heard of late does not make the lease longer: others may have lost that leader earlier.
        """
        if self._is_fenced:
            after_reset_ns = round(self._lease.lasts.stops_after_reset_s * _NS) if reset else 0
            return min(since_ns + after_reset_ns, self._majority_end_ns)
        if self._replaceable and (self.config.store or not reset):
            return self._lease.until_ns
        return since_ns + round(self.config.away_timeout_s * _NS)

    @property
    def _is_fenced(self) -> bool:
        """Whether others may take over, and so count on the end of its ranks with the lease."""
        ledger = self.knows.ledger
        return ledger.fenced and self.knows.has_seat(ledger.table)

    def _majority_left_s(self, now: int) -> float:
        """For how long a majority of the committee counts on the leader, as far as is known."""
        return max(0.0, (max(self._majority_end_ns, self._asks_until_ns) - now) / _NS)

    def _look_at_majority(self, now: int) -> list[c.FollowerCommand]:
        """Stop the ranks when others may take their places, though there is a leader here."""
        if not self._is_fenced:
            return []
        # The leader, if it is heard, says first what it lacks.
        lasts = self._lease.lasts
        ends_ns = max(self._majority_end_ns, self._asks_until_ns)
        if (left_s := lasts.claims_after_silence_s + (ends_ns - now) / _NS) > 0:
            return [c.SetTimer("minority", left_s)]
        silent_s = (now - self._lease.sent_ns) / _NS
        if silent_s < lasts.lease_s / 2:
            return self._stop_ranks("too few nodes follow the coordinator", now)
        silent = f"it has not answered for {silent_s:.1f} s; the job may go on without this node"
        return self._stop_ranks(f"the coordinator at {self._address} is gone: {silent}", now)

    def _minority(self, absence: Absence, now: int) -> list[c.FollowerCommand]:
        if not self.running:
            return []
        if not self._stood_s:
            self._gone += self._why_stopped(absence)
        return self._stop_ranks(self._gone, now)

    def _stop_ranks(self, reason: str, now: int) -> list[c.FollowerCommand]:
        if not self.running or self._stopped == self.round:
            return []
        self._stopped = self.round
        failed = m.NodeFailed(self.config.node, self.round, reason, victim=True, cut_off=True)
        stop = c.StopRanks(self.round, reason, self._lease.lasts.grace_s)
        said = [c.Say(f"the ranks are stopped: {reason}"), *self._say_wait()]
        return [*said, stop, *self._tell(failed, now)]

    def _say_wait(self) -> list[c.FollowerCommand]:
        """Say until when the same coordinator is waited for, where there will be no other one."""
        if not self._waits_for_the_same:
            return []
        left = format_duration(self._patience_s)
        what = "its launcher" if self.knows.ledger.leader else "undaunted coordinator"
        remedy = f"start {what} on {self.search.last.rpartition(':')[0]} again"
        line = f"waiting up to {left} for the coordinator: no other node takes its place; {remedy}"
        return [c.Say(line), c.SetTimer("waits", _SAY_WAIT_S)]

    def _still_waits(self, now: int) -> list[c.FollowerCommand]:
        left_s = self._patience_s - (0 if self.running else (now - self._idle_ns) / _NS)
        if not self._waits_for_the_same or left_s < 1:
            return []
        line = f"still waiting for the coordinator: {format_duration(left_s)} left"
        return [c.Say(line), c.SetTimer("waits", _SAY_WAIT_S)]

    @property
    def _waits_for_the_same(self) -> bool:
        others = p.has_committee(self.knows.ledger) or self.knows.votes or self.config.store
        return self.state is FollowerState.AWAY and not others and not self._ends

    def _why_stopped(self, absence: Absence) -> str:
        if self._is_fenced and absence.reset:
            return "; too few nodes can be reached to go on without it"
        replaced = self._is_fenced or absence.stop_ns <= self._lease.until_ns
        return "; the job may go on without this node" if replaced else ""

    def _answered(self, answered: c.Answered, now: int) -> list[c.FollowerCommand]:
        if self._absence is None:
            return []
        commands = self._lead(self._absence.answered(answered, now))
        if ended := self._absence.ended_nodes:
            reason = f"the launchers of {name_some(ended)} have ended, and too few others are left"
            return self._end_alone(f"{reason} to go on; start this one again as well")
        match answered.message:
            case p.MissAnswer(lost=False, round=-1) if p.has_committee(self.knows.ledger):
                pass  # it follows who begins the job anew, and takes nobody of this start
            case p.Grant(granted=False, successor=node) if node not in ("", self.config.node):
                if not self._open:
                    self.search.first = self.knows.addresses(node)
                    commands.append(c.SetTimer("dial", REDIAL_GRANTED_S))
            case p.MissAnswer(lost=False, leader=leader) if leader and not self._open:
                self.search.first = [leader]
                commands.append(c.SetTimer("dial", 0.0))
        return commands

    def _succeed(self, message: p.HandOver, now: int) -> list[c.FollowerCommand]:
        """The leader's node leaves, and has chosen this one to lead."""
        self.knows.learn(message.ledger)
        epoch = self.knows.promised = self.knows.later_epoch()
        done = c.Send(self._link, p.TakenOver(epoch=message.epoch))
        lead = c.Lead(epoch, message.ledger, message.ledger.leader)
        absence = self._absent(now, now, reset=True)
        self._gone = f"the coordinator at {self._address} has left the job"
        return [done, *self._lead([lead]), *absence.begin(now, leads=True)]

    def _lead(self, commands: list[c.FollowerCommand]) -> list[c.FollowerCommand]:
        """If this node has been made the leader, follow it."""
        if not any(isinstance(command, c.Lead) for command in commands):
            return commands
        hangup = c.Hangup(self._link)
        self._forget_link()
        self.search.first = [self.config.address]
        return [hangup, *commands, c.SetTimer("dial", 0.0)]

    # --- what other members ask -----------------------------------------------------------------

    def _asked(
        self, question: p.Miss | p.Claim, now: int
    ) -> tuple[p.MissAnswer | p.Grant, list[c.FollowerCommand]]:
        if isinstance(question, p.Claim):
            return self._consider(question, now), []
        knows, absence = self.knows, self._absence
        claims = [] if absence is None else absence.asked(question, now)
        answer = p.MissAnswer(
            node=knows.node,
            incarnation=knows.incarnation,
            epoch=knows.epoch,
            lost=self.state in (FollowerState.AWAY, FollowerState.SEEKING),
            leader=self.leader,
            round=knows.ledger.round,
            ledger_epoch=knows.ledger.epoch,
        )
        return answer, claims

    def _join_other(self, question: p.Miss | p.Claim, now: int) -> list[c.FollowerCommand]:
        """The job may be led from elsewhere, by a leader nobody here has heard of: follow that."""
        follows = self.state is FollowerState.FOLLOWING
        if not isinstance(question, p.Miss) or not self.knows.should_join(
            question, follows=follows
        ):
            return []
        if self.state is FollowerState.ENDED or (self._open and not follows):
            return []
        commands: list[c.FollowerCommand] = []
        if follows:
            hangup = c.Hangup(self._link)
            self._forget_link()
            self._why = f"the job is led from {question.leader}, where round {question.round} runs"
            commands = [hangup, c.StandDown(), *self._lost(now, reset=True, told=True)]
        self.search.first = [question.leader]
        return [*commands, c.SetTimer("dial", 0.0)]

    def _consider(self, claim: p.Claim, now: int) -> p.Grant:
        absence = self._absence
        leaderless = absence is not None and absence.may_grant(claim.node, now)
        grant = self.knows.consider(claim, leaderless=leaderless)
        if absence is None:
            return grant
        if not grant.granted:
            return msgspec.structs.replace(grant, successor=absence.successor(now))
        absence.expect(claim.node, now)
        keepers = register.members(claim.ledger)  # this one may not know them yet
        self.search.expect(keepers.get((claim.node, claim.incarnation)))
        stops_s, others_stop_s = absence.stop_s(now)
        return msgspec.structs.replace(grant, stops_s=stops_s, others_stop_s=others_stop_s)


@dataclass(slots=True)
class Reports:
    """The reports of a node: kept until a leader has acknowledged them, and for the next leader.

    They are numbered from 1.
    """

    _kept: list[p.Report] = field(default_factory=list)
    _last: int = 0
    _acknowledged: int = 0

    def add(self, event: m.NodeEvent) -> p.Report:
        """Number what has happened, and keep it."""
        self._last += 1
        report = p.Report(number=self._last, event=event)
        if isinstance(event, m.NodeEvidence | m.NodeTimes):  # it may be long; the newest is enough
            self._kept = [each for each in self._kept if type(each.event) is not type(event)]
        self._kept = [*self._kept[-KEPT_REPORTS + 1 :], report]
        return report

    def acknowledge(self, number: int) -> None:
        """The leader has this report, and all before it."""
        self._acknowledged = max(self._acknowledged, number)

    def forget_before(self, number: int) -> None:
        """Round ``number`` begins; nobody asks for earlier ones."""
        self._kept = [each for each in self._kept if _round(each.event) >= number]

    def forget_hang(self) -> None:
        """The node goes on: a leader who takes over must not think that it has failed."""
        kinds = m.HangSuspected | m.NodeEvidence
        self._kept = [
            each
            for each in self._kept
            if not isinstance(each.event, kinds)
            and not (isinstance(each.event, m.NodeFailed) and each.event.hang)
        ]

    @property
    def tell_of_end(self) -> bool:
        """Return whether ranks of the round have failed, or all have finished."""
        return any(isinstance(each.event, m.NodeFailed | m.NodeFinished) for each in self._kept)

    def to_send(self, *, new_leader: bool) -> list[p.Report]:
        """The reports that a leader needs: all, or what has not been acknowledged."""
        return [each for each in self._kept if new_leader or each.number > self._acknowledged]


def _round(event: m.NodeEvent) -> int:
    return -1 if isinstance(event, m.Preempted) else event.round


@dataclass(slots=True)
class Lease:
    """For how long a follower may count on its leader. Times are of the follower's clock, in ns.

    It begins when the follower sent what the leader has answered, not when the answer was read: the
    answer may have waited for long where this process stood still. So its end is no later than the
    leader thinks.

    Attributes:
        seconds: how long it is.
        opened_ns: when the connection was made, and the follower introduced itself.
        sent_ns: when the last message was sent that the leader has answered.
    """

    seconds: float
    opened_ns: int = 0
    sent_ns: int = 0

    def welcomed(self, seconds: float) -> None:
        """A leader has answered the introduction, or leads on under another epoch."""
        self.seconds = seconds
        self.answered(self.opened_ns)

    def answered(self, sent_ns: int) -> bool:
        """The leader has answered what was sent then; return whether the lease is longer now."""
        longer = sent_ns > self.sent_ns
        self.sent_ns = max(self.sent_ns, sent_ns)
        return longer

    @property
    def lasts(self) -> Durations:
        """The durations that follow from it."""
        return _durations(self.seconds)

    def left_s(self, since_ns: int, now: int) -> float:
        """Return how much of a lease is left that has begun then."""
        return self.seconds - (now - since_ns) / _NS

    @property
    def until_ns(self) -> int:
        """Return when it is over."""
        return self.sent_ns + round(self.seconds * _NS)


@dataclass(slots=True)
class Search:
    """The search for a leader: the addresses, and the pauses between attempts.

    Attributes:
        config: of the follower.
        first: addresses to try before all others.
        elected: address of the leader, as the store says; "" = it does not.
        granted: the launcher whose claim was granted last, and which may lead by now.
        last: address of the leader that was followed last, "" = none was.
        ever_found: a leader has welcomed this node.
    """

    config: c.FollowerConfig
    first: list[str] = field(default_factory=list)
    elected: str = ""
    granted: tuple[register.Member, ...] = ()
    last: str = ""
    ever_found: bool = False
    _said: set[str] = field(default_factory=set)  # reasons; a few for each address
    _tried: int = 0
    _pause_s: float = REDIAL_FIRST_S

    def address(self, *tables: Sequence[p.Seat | register.Member]) -> str:
        """The next address: an endpoint and a member of these tables, in turns; "" = unknown."""
        if self.first:
            return self.first.pop(0)
        number, member = divmod(self._tried, 2)
        self._tried += 1
        end = self._end(number)
        known = (*tables, self.granted)
        return (self._member(number, known) if member or not end else "") or end

    def pause_s(self) -> float:
        """Return how long to wait before the next attempt."""
        if self.first:
            return 0.0
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, REDIAL_LONGEST_S)
        return pause_s

    def found(self) -> None:
        """A leader has welcomed this node."""
        self._pause_s, self.ever_found = REDIAL_FIRST_S, True

    @property
    def limit_s(self) -> float:
        """Return how long to look for one."""
        first_s = None if self.ever_found else self.config.first_give_up_s
        return self.config.give_up_s if first_s is None else first_s

    def begin(self, last: str) -> None:
        """The leader at ``last`` is gone: look there first."""
        self.first, self._tried, self.last = [self.elected or last], 0, last
        self.granted = ()

    def expect(self, claimant: register.Member | None) -> None:
        """The claim of this launcher was granted: look there first, and again and again."""
        self.granted = () if claimant is None else (claimant,)
        self.first = [each.address for each in self.granted]

    def to_say(self, why: str, idle_s: float) -> str:
        """Return a line about an attempt that has failed, "" = nothing new.

        Attempts go to several addresses in turns, which fail for different reasons.
        """
        if idle_s < SEEK_QUIETLY_S or why in self._said:
            return ""
        self._said.add(why)
        return f"looking for the coordinator (up to {self.limit_s:g} s): {why}"

    def in_vain(self, why: str) -> str:
        """Return why it was given up."""
        where = self.config.store or f"--rdzv-endpoint {', '.join(self.config.endpoints)}"
        return f"no coordinator for {self.limit_s:g} s ({where}): {why}"

    def _end(self, number: int) -> str:
        """An address that is no member's: a leader need not be one of them."""
        if self.elected:
            return self.elected
        ends = self.config.endpoints
        if self.last and not self.config.store:
            number, again = divmod(number, 2)
            if again:  # it may have been away for a moment only
                return self.last
        return ends[number % len(ends)] if ends else ""

    def _member(self, number: int, tables: Sequence[Sequence[p.Seat | register.Member]]) -> str:
        known = [table for table in tables if table]
        if not known:
            return ""
        number, which = divmod(number, len(known))
        table = known[which]
        for seat in (table[number % len(table)], table[(number + 1) % len(table)]):
            if seat.address and seat.address != self.config.address:
                return seat.address
        return ""
