"""The leader's side of coordination: serves the job policy to the followers.

Knows connections, leases, acknowledgements and the ledger; what to do about a failure is the
policy's business. No clock, socket or thread in here.

States::

    RECOVERING  leads a job that had begun before: waits for the members of the last table
    LEADING     the policy decides
    DEPOSED     another node leads with a later epoch
    ENDED       the policy has ended the job; waits until every follower has heard of it
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import election, translation
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core.policy import JobPolicy
from undaunted.coordinator.core.sessions import Session, Sessions

_NS = 1_000_000_000
# A leader that was restarted waits so long beyond a lease for its members; one that took over waits
# less, since members that granted it come at once.
RECOVER_AFTER_RESTART_S = 5.0
RECOVER_AFTER_TAKEOVER_S = 2.0
# Beyond the time for which followers go on without a leader: until their ranks are certainly gone.
FENCE_MARGIN_S = 5.0
PROBE_S = 1.0
# Members that are not here, of whom so many are asked at a time whom they follow.
ASK_AT_ONCE = 8
# How long followers may take to hear of the end.
LINGER_S = 3.0
# What ranks of a round that is over get between SIGTERM and SIGKILL.
DRAIN_GRACE_S = 2.0


class State(enum.Enum):
    """See the module's documentation."""

    RECOVERING = enum.auto()
    LEADING = enum.auto()
    DEPOSED = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True)
class Leader:
    """See the module's documentation. Feed events to `handle`, carry out what it returns.

    Attributes:
        config: what it knows.
        ledger: of the job as the leader before has left it; one without a run id: the job begins.
        epoch: its own; later than every earlier one.
        lost: node of the leader that was replaced, "" = this is not a take-over.
        linger_s: how long it stays after the end of the job, at most.
    """

    config: c.LeaderConfig
    ledger: p.Ledger = field(default_factory=lambda: p.Ledger(run_id=""))
    epoch: int = 1
    lost: str = ""
    linger_s: float = LINGER_S
    state: State = field(init=False)
    policy: JobPolicy = field(init=False)
    _sessions: Sessions = field(default_factory=Sessions)
    _early: list[tuple[Session, p.Report]] = field(default_factory=list)  # while recovering
    _preparing: m.Prepare | None = None
    _doubtful: tuple[p.Seat, ...] = ()  # prepared, and perhaps started, by the leader before
    _prepared: int = 0  # version of the ledger whose table was started
    _persisted: int = 0  # version of the ledger that is known to be written down
    _awaited: set[election.Voter] = field(default_factory=set)  # have not acknowledged it yet
    _asked: int = 0
    _quorum: bool = True
    _waiting_said: bool = False
    _began_ns: int = 0
    _succeeds: bool = False  # others may still be looking for the leader before

    def __post_init__(self) -> None:
        """Take over what the ledger says."""
        self._adopt(self.ledger)

    def handle(self, event: c.Event, now: int) -> list[c.Command]:
        """Take one event at ``now`` (monotonic, ns); return the commands it causes, in order."""
        if self.state is State.DEPOSED:
            return []
        match event:
            case c.Begin():
                self._began_ns = now
                recover = [self._set_recover()] if self.state is State.RECOVERING else []
                return [c.SetTimer("lease", 0, self.config.lease_s / 3), *recover]
            case c.Received(link=link, message=p.Hello() as hello):
                return self._hello(link, hello, now)
            case c.Received(link=link, message=message):
                return self._received(link, message, now)
            case c.Closed(link=link, reason=reason):
                session = self._sessions.on(link)
                return [] if session is None else self._lose(session, reason, now)
            case c.Answered(message=p.MissAnswer() as answer):
                return self._answered(answer)
            case c.Persisted(version=version):
                self._persisted = max(self._persisted, version)
                return self._start_if_acknowledged(now)
            case c.Deposed(reason=reason):
                return self._stand_down(reason, "")
            case c.TimerFired():
                return self._timer(event, now)
        return []

    def _adopt(self, ledger: p.Ledger) -> None:
        """Go on from what ``ledger`` says, under an epoch of one's own."""
        self._succeeds = ledger.run_id != "" and ledger.round >= 0
        self.state = State.RECOVERING if self._succeeds else State.LEADING
        self.ledger = msgspec.structs.replace(
            ledger,
            run_id=self.config.run_id,
            epoch=self.epoch,
            version=ledger.version + 1,
            leader=self.config.node,
        )
        self._doubtful = ledger.pending if ledger.pending_round > ledger.round else ()
        self.policy = JobPolicy(self.config.policy)
        self._preparing, self._quorum = None, True

    # --- followers come and go ------------------------------------------------------------------

    def _hello(self, link: int, hello: p.Hello, now: int) -> list[c.Command]:
        known = self._sessions.get(hello.node)
        same = known is not None and known.hello.incarnation == hello.incarnation
        if known is not None and known.link is not None and not same:
            reason = (
                f"node {hello.node} has an agent already, which is heard of; nodes need different "
                "names"
            )
            return [c.Send(link, p.Refused(reason=reason)), c.Close(link)]
        commands = self._catch_up(hello)
        if self.state is State.DEPOSED:
            refused = p.Refused(reason="another node leads the job")
            return [*commands, c.Send(link, refused), c.Close(link)]
        if known is not None and same:
            return commands + self._returned(known, link, hello, now)
        return commands + self._newcomer(link, hello, now)

    def _catch_up(self, hello: p.Hello) -> list[c.Command]:
        """Learn from a follower that knows of later rounds or epochs than this leader."""
        commands: list[c.Command] = []
        known, promised = hello.ledger, hello.promised
        if known is not None:
            promised = max(promised, known.epoch)
            if p.further(known, self.ledger):
                if self.policy.round >= 0:  # others have gone on without this leader
                    return self._stand_down("another node leads the job", "")
                self._adopt(known)
                commands.append(self._set_recover())
        if promised > self.epoch:
            commands += self._take_epoch(election.next_epoch(promised, self.config.incarnation))
        return commands

    def _take_epoch(self, epoch: int) -> list[c.Command]:
        """Lead with a later epoch: who follows already is welcomed anew."""
        self.epoch = epoch
        self._note(epoch=epoch)
        commands: list[c.Command] = [c.Persist(self.ledger)]
        learn = self._learn()
        for session in self._sessions:
            session.number_from(epoch)
            commands += session.send(self._welcome()) + session.again(learn)
        return commands if self._preparing is None else commands + self._prepare(self._preparing)

    def _newcomer(self, link: int, hello: p.Hello, now: int) -> list[c.Command]:
        session = Session(hello, link, now)
        session.number_from(self.epoch)
        self._sessions.add(session)
        welcome = session.send(self._welcome()) + session.again(self._learn())
        return welcome + self._admit(session, now)

    def _returned(self, session: Session, link: int, hello: p.Hello, now: int) -> list[c.Command]:
        was_lost = session.link is None
        commands = self._sessions.reconnect(session, link)
        session.hello, session.heard_ns = hello, now
        commands += session.send(self._welcome()) + session.again(self._learn())
        if was_lost or self.state is State.RECOVERING:
            return commands + self._admit(session, now)
        if self._preparing is not None and session.voter in self._awaited:
            # Its acknowledgement may have been on the way in the old connection.
            commands += session.order(self._prepare_order(self._rank(session)))
        return commands

    def _rank(self, session: Session) -> int:
        """Its group rank in the table that is being prepared, -1 = none."""
        ranks = {election.voter(seat): seat.group_rank for seat in self.ledger.pending}
        return ranks.get(session.voter, -1)

    def _admit(self, session: Session, now: int) -> list[c.Command]:
        """Offer a node to the policy, once nothing runs on it any more."""
        if self.state is State.RECOVERING:
            return self._recover_if_all_back(now)
        hello = session.hello
        session.draining = hello.running
        if session.draining:
            reason = "the job has gone on without this node"
            stop = session.order(self._stop_order(hello.round, reason, DRAIN_GRACE_S))
            return stop + self._feed(m.NodeReturns(session.node), now)
        version = self.ledger.version
        commands = self._feed(m.NodeJoined(_info(hello)), now)
        if self._preparing is not None and self.ledger.version == version:
            commands += session.order(self._prepare_order(-1))  # the quorum may need it
        return commands + self._look_at_quorum(now)

    def _lose(self, session: Session, reason: str, now: int) -> list[c.Command]:
        self._sessions.disconnect(session)
        if self.state is State.ENDED:
            return self._done_if_all_gone(now)
        session.orders.clear()
        if self.state is State.RECOVERING:
            return []
        return self._feed(_lost(session.node, reason), now) + self._look_at_quorum(now)

    def _look_at_quorum(self, now: int) -> list[c.Command]:
        """Tell the policy when a quorum is lost or regained."""
        if self.state is not State.LEADING or not election.votes_count(self.ledger):
            has = True
        else:
            has = election.may_start({e.voter for e in self._sessions.connected()}, self.ledger)
        if has == self._quorum:
            return []
        self._quorum = has
        if has:
            return self._feed(m.QuorumRegained(), now)
        table = self.ledger.table
        here = sum(1 for seat in table if self._sessions.is_here(seat))
        reason = f"{here} of the {len(table)} nodes of the last round can be reached"
        return self._feed(m.QuorumLost(reason), now)

    def _welcome(self) -> p.Welcome:
        config = self.config
        return p.Welcome(epoch=self.epoch, leader=config.node, lease_s=config.lease_s)

    # --- recovery -------------------------------------------------------------------------------

    def _set_recover(self) -> c.Command:
        restarted_s = self.config.lease_s + RECOVER_AFTER_RESTART_S
        if self.config.durable:  # members hear of a new leader at once
            restarted_s = self.config.lease_s
        return c.SetTimer("recover", 0, RECOVER_AFTER_TAKEOVER_S if self.lost else restarted_s)

    def _recover_if_all_back(self, now: int) -> list[c.Command]:
        table, is_here = self.ledger.table, self._sessions.is_here
        back = all(is_here(seat) for seat in table if seat.node != self.lost)
        return self._recover(now) if back else []

    def _recover(self, now: int) -> list[c.Command]:
        """Go on with the round of the ledger; who is not here is lost."""
        if self.state is not State.RECOVERING:
            return []
        self.state = State.LEADING
        ledger = self.ledger
        self.policy = JobPolicy.restored(
            self.config.policy,
            round=ledger.round,
            prepared=ledger.pending_round,
            nodes=[self._known(seat) for seat in ledger.table],
            restarts_used=ledger.restarts_used,
            excluded=ledger.excluded,
            reached=ledger.reached,
            stalled=ledger.stalled,
        )
        commands: list[c.Command] = [c.Persist(ledger)]
        here = {seat.node for seat in ledger.table if self._sessions.is_here(seat)}
        for seat in ledger.table:
            if seat.node not in here:
                commands += self._feed(_lost(seat.node, self._why_not_here(seat)), now)
        for session in self._sessions.connected():
            if session.node not in here:
                commands += self._admit(session, now)
        early, self._early = self._early, []
        for session, report in early:
            commands += self._reported(session, report, now)
        for session in self._sessions.connected():
            running = session.hello.running and session.hello.round == ledger.round
            if session.node in here and not running:
                commands += self._not_running(session.node, now)
        return commands + self._look_at_quorum(now)

    def _why_not_here(self, seat: p.Seat) -> str:
        session = self._sessions.get(seat.node)
        if session is not None and session.link is not None:
            return "its launcher was started again"
        if seat.node == self.lost:
            return "it led the job, and the others cannot reach it any more"
        return "it has not come back"

    def _known(self, seat: p.Seat) -> m.NodeInfo:
        session = self._sessions.get(seat.node)
        return m.NodeInfo(seat.node, seat.slots) if session is None else _info(session.hello)

    def _not_running(self, node: str, now: int) -> list[c.Command]:
        """Nothing of the round runs on a member, whether or not it has said so."""
        text = f"the ranks of node {node} were stopped while there was no coordinator"
        failed = m.NodeFailed(node, self.ledger.round, text, victim=True)
        return self._feed(failed, now) + self._feed(m.NodeStopped(node, self.ledger.round), now)

    # --- what followers say ---------------------------------------------------------------------

    def _received(self, link: int, message: p.Message, now: int) -> list[c.Command]:
        session = self._sessions.on(link)
        if session is None:
            return []
        session.heard_ns = now
        match message:
            case p.Renew():
                return session.send(self._beat(session))
            case p.Prepared(epoch=epoch) if epoch == self.epoch:
                return self._acknowledged(session, message, now)
            case p.Report() if self.state is State.RECOVERING:
                self._early.append((session, message))
            case p.Report():
                return self._reported(session, message, now)
        return []

    def _acknowledged(self, session: Session, message: p.Prepared, now: int) -> list[c.Command]:
        if message.version < session.prepared:
            return []  # of an earlier table, and late
        session.prepared = message.version
        session.master = (message.master_addr, message.master_port)
        if message.version == self.ledger.version:
            self._awaited.discard(session.voter)
        return self._start_if_acknowledged(now)

    def _beat(self, session: Session) -> p.Beat:
        return p.Beat(epoch=self.epoch, acknowledged=session.reported)

    def _reported(self, session: Session, report: p.Report, now: int) -> list[c.Command]:
        if report.number <= session.reported:
            return []  # sent again before it was acknowledged
        session.reported = report.number
        commands = session.send(self._beat(session))
        if not session.draining:
            event = translation.event(session.node, report)
            return commands + (self._feed(event, now) if event is not None else [])
        if report.kind == "stopped" and report.round == session.hello.round:
            session.hello = msgspec.structs.replace(session.hello, running=False)
            commands += self._admit(session, now)
        return commands

    # --- the policy -----------------------------------------------------------------------------

    def _feed(self, event: m.Event, now: int) -> list[c.Command]:
        commands: list[c.Command] = []
        for order in self.policy.handle(event):
            commands += self._obey(order)
        if not self.policy.preparing:
            self._preparing = None  # called off: acknowledgements that still come start nothing
        commands += self._note_changes() + self._start_if_acknowledged(now)
        if self.policy.ended and self.state is State.LEADING:
            self.state = State.ENDED
            self.linger_s = 2 * self.config.lease_s if self._more_may_come(now) else LINGER_S
            commands += [c.SetTimer("linger", 0, self.linger_s), *self._done_if_all_gone(now)]
        return commands

    def _obey(self, order: m.Command) -> list[c.Command]:
        match order:
            case m.Prepare():
                return self._prepare(order)
            case m.Start():
                return self._start(order)
            case m.Stop(node=node):
                self._note_stopped()
                return self._order(
                    node, self._stop_order(order.round, order.reason, order.grace_s, order.signal)
                )
            case m.End(node=node, outcome=outcome, reason=reason):
                end = p.EndOrder(number=0, epoch=self.epoch, outcome=outcome.label, reason=reason)
                return self._order(node, end)
            case m.SetTimer(name=name, round=number, delay_s=delay_s):
                return [c.SetTimer(f"policy {name}", number, delay_s)]
            case m.Decided() | m.Blamed() | m.Remark():
                return self._tell_all(order)

    def _order(self, node: str, order: p.Order) -> list[c.Command]:
        session = self._sessions.get(node)
        return [] if session is None else session.order(order)  # it may never have come back

    def _tell_all(self, order: m.Decided | m.Blamed | m.Remark) -> list[c.Command]:
        note = self._as_note(order)
        return [send for each in self._sessions.connected() for send in each.order(note)]

    def _as_note(self, order: m.Decided | m.Blamed | m.Remark) -> p.Note:
        note = p.Note(number=0, epoch=self.epoch, kind="remark", round=self.policy.round, text="")
        match order:
            case m.Decided(round=number, action=action, reason=reason, restarts_left=left):
                changes = {"kind": "decided", "action": action, "restarts_left": left}
                return msgspec.structs.replace(note, round=number, text=reason, **changes)
            case m.Blamed(round=number, node=node, line=line, victims=victims):
                changes = {"kind": "blamed", "node": node, "victims": victims}
                return msgspec.structs.replace(note, round=number, text=line, **changes)
            case m.Remark(text=text):
                return msgspec.structs.replace(note, text=text)

    # --- a round begins and ends ----------------------------------------------------------------

    def _prepare(self, prepare: m.Prepare) -> list[c.Command]:
        self._preparing, self._waiting_said = prepare, False
        places = sorted(prepare.places, key=lambda place: place.group_rank)
        seats = tuple(self._seat(place) for place in places)
        self._note(pending_round=prepare.round, pending=seats)
        commands: list[c.Command] = [c.Persist(self.ledger), c.SetTimer("probe", 0, PROBE_S)]
        commands += self._all_learn()
        self._awaited = {election.voter(seat) for seat in seats}
        ranks = {place.node: place.group_rank for place in places}
        for session in self._sessions.connected():
            if not session.draining:
                session.orders.clear()
                order = self._prepare_order(ranks.get(session.node, -1))
                commands += session.order(order)
        return commands

    def _learn(self) -> p.Learn:
        return p.Learn(epoch=self.epoch, ledger=self.ledger)

    def _all_learn(self) -> list[c.Command]:
        """Tell all the same: the shell encodes it once."""
        learn = self._learn()
        return [command for each in self._sessions.connected() for command in each.send(learn)]

    def _seat(self, place: m.Place) -> p.Seat:
        hello = self._sessions[place.node].hello
        return p.Seat(
            node=place.node,
            incarnation=hello.incarnation,
            address=hello.address,
            group_rank=place.group_rank,
            first_rank=place.first_rank,
            slots=place.slots,
        )

    def _prepare_order(self, seat: int) -> p.PrepareOrder:
        return p.PrepareOrder(number=0, epoch=self.epoch, version=self.ledger.version, seat=seat)

    def _start_if_acknowledged(self, now: int) -> list[c.Command]:
        preparing, ledger = self._preparing, self.ledger
        if preparing is None or self.state is not State.LEADING or self._awaited:
            return []
        there = {
            each.voter for each in self._sessions.connected() if each.prepared == ledger.version
        }
        if self.config.durable and self._persisted < ledger.version:
            return []
        if not election.may_start(there, ledger) or not self._old_world_is_over(now):
            return self._say_waiting()
        first = next(seat for seat in ledger.pending if seat.group_rank == 0)
        address, port = self._sessions[first.node].master
        self._doubtful = ()
        self._preparing, self._prepared = None, ledger.version
        casting_vote = self.config.node if self.config.takeover else ""
        self.ledger = p.started(ledger, ledger.version + 1, casting_vote)
        accepted = m.TableAccepted(preparing.round, address, port)
        commands: list[c.Command] = [c.Persist(self.ledger), *self._feed(accepted, now)]
        learn = self._learn()
        table = {seat.node for seat in self.ledger.table}
        for session in self._sessions.connected():  # spares, who get no order
            if session.node not in table:
                commands += session.send(learn)
        return commands

    def _old_world_is_over(self, now: int) -> bool:
        """Where members have no votes: whether the ranks of the last table cannot all still run.

        The leader before may have started what was only prepared in the ledger it has left.
        """
        if election.votes_count(self.ledger):
            return True
        return self._is_over(self.ledger.table, now) and self._is_over(self._doubtful, now)

    def _is_over(self, table: tuple[p.Seat, ...], now: int) -> bool:
        if not table:
            return True
        known = [self._sessions.get(seat.node) for seat in table]
        # One has stopped its ranks, or a later agent of its node is there: they ended with it.
        if any(each is not None and each.link is not None and not each.draining for each in known):
            return True
        heard_ns = max(
            (each.heard_ns for each in known if each is not None), default=self._began_ns
        )
        return (now - heard_ns) / _NS >= self.config.away_timeout_s + FENCE_MARGIN_S

    def _say_waiting(self) -> list[c.Command]:
        if self._waiting_said:
            return []
        self._waiting_said = True
        names = [each.node for each in self.ledger.table if not self._sessions.is_here(each)]
        text = f"waiting to hear of {', '.join(names)}: ranks may still be running there"
        return self._tell_all(m.Remark(text))

    def _start(self, start: m.Start) -> list[c.Command]:
        order = p.StartOrder(
            number=0,
            epoch=self.epoch,
            version=self.ledger.version,
            prepared=self._prepared,
            round=start.round,
            casting_vote=self.ledger.casting_vote,
            seat=start.group_rank,
            max_restarts=start.max_restarts,
            master_addr=start.master_addr,
            master_port=start.master_port,
        )
        return self._order(start.node, order)

    def _stop_order(self, number: int, reason: str, grace_s: float, signal: int = 15) -> p.Order:
        return p.StopOrder(
            number=0,
            epoch=self.epoch,
            version=self.ledger.version,
            round=number,
            reason=reason,
            grace_s=grace_s,
            restarts_used=self.ledger.restarts_used,
            excluded=self.ledger.excluded,
            signal=signal,
        )

    # --- the ledger -----------------------------------------------------------------------------

    def _note(self, **changes: object) -> None:
        version = self.ledger.version + 1
        self.ledger = msgspec.structs.replace(self.ledger, version=version, **changes)

    def _note_stopped(self) -> None:
        """Note it once for all nodes: who has heard of it first knows no more than the others."""
        known, policy = self.ledger, self.policy
        now = p.stopped(known, known.version, policy.restarts_used, dict(policy.excluded))
        if now != known:
            self.ledger = msgspec.structs.replace(now, version=known.version + 1)

    def _note_changes(self) -> list[c.Command]:
        """Write down what the policy has changed by itself."""
        if self._preparing is not None:
            return []  # the version that is being acknowledged stays; the start writes the rest
        policy, ledger = self.policy, self.ledger
        reached, stalled = policy.progress
        known = (ledger.restarts_used, ledger.excluded, ledger.reached, ledger.stalled)
        if known == (policy.restarts_used, policy.excluded, reached, stalled):
            return []
        self._note(
            restarts_used=policy.restarts_used,
            excluded=dict(policy.excluded),
            reached=reached,
            stalled=stalled,
        )
        return [c.Persist(self.ledger)]

    # --- timers ---------------------------------------------------------------------------------

    def _timer(self, event: c.TimerFired, now: int) -> list[c.Command]:
        match event.name:
            case "lease":
                again = c.SetTimer("lease", 0, self.config.lease_s / 3)
                return [*self._expire(now), *self._ask_missing(), again]
            case "recover":
                return self._recover(now)
            case "probe" if self._preparing is not None:
                return self._probe(now)
            case "linger" if self.state is State.ENDED:
                return [c.Done()]
            case name if name.startswith("policy ") and self.state is State.LEADING:
                return self._feed(m.TimerFired(name.removeprefix("policy "), event.round), now)
        return []

    def _expire(self, now: int) -> list[c.Command]:
        """Lose the followers whose lease is over."""
        commands: list[c.Command] = []
        for session in self._sessions.silent(now - round(self.config.lease_s * _NS)):
            assert session.link is not None
            commands.append(c.Close(session.link))
            reason = f"nothing was heard of it for {self.config.lease_s:g} s"
            commands += self._lose(session, reason, now)
        return commands

    def _probe(self, now: int) -> list[c.Command]:
        """While a start is held up: time may have made it possible."""
        commands = self._start_if_acknowledged(now)
        return commands if self._preparing is None else [*commands, c.SetTimer("probe", 0, PROBE_S)]

    def _ask_missing(self) -> list[c.Command]:
        """Ask some of the members that are not here whom they follow: perhaps a later leader."""
        if self.state not in {State.LEADING, State.RECOVERING}:
            return []
        is_here = self._sessions.is_here
        missing = [seat for seat in self.ledger.table if seat.address and not is_here(seat)]
        if not missing or not election.votes_count(self.ledger):
            return []
        self._asked += ASK_AT_ONCE
        first = self._asked % len(missing)
        some = (missing[first:] + missing[:first])[:ASK_AT_ONCE]
        miss = p.Miss(node=self.config.node, incarnation="", epoch=self.epoch)
        return [c.Ask(seat.node, seat.address, miss) for seat in some]

    def _answered(self, answer: p.MissAnswer) -> list[c.Command]:
        """Stand down for a later leader; without a quorum, for any that a member follows."""
        if answer.lost or answer.epoch == self.epoch or not answer.leader:
            return []
        if answer.epoch < self.epoch and self._quorum and self.state is State.LEADING:
            return []
        return self._stand_down("another node leads the job", answer.leader)

    def _stand_down(self, reason: str, leader: str) -> list[c.Command]:
        self.state = State.DEPOSED
        refused = p.Refused(reason=reason, leader=leader)
        commands: list[c.Command] = []
        for session in self._sessions.connected():
            assert session.link is not None
            commands += [c.Send(session.link, refused), c.Close(session.link)]
        return [*commands, c.Done(leader)]

    def _done_if_all_gone(self, now: int) -> list[c.Command]:
        if self._sessions.connected() or self._more_may_come(now):
            return []
        return [c.Done()]

    def _more_may_come(self, now: int) -> bool:
        """Whether somebody who has not heard of the end may be looking for this leader."""
        young = now - self._began_ns < round(2 * self.config.lease_s * _NS)
        if self._succeeds and young:
            return True
        return any(self._may_return(each, now) for each in self._sessions)

    def _may_return(self, session: Session, now: int) -> bool:
        """Whether a follower was lost a moment ago, and has not heard of the end."""
        told = any(isinstance(order, p.EndOrder) for order in session.orders)
        recent = now - session.heard_ns < round(2 * self.config.lease_s * _NS)
        return session.link is None and recent and not told


def _info(hello: p.Hello) -> m.NodeInfo:
    return m.NodeInfo(hello.node, hello.slots, hello.infra_rank, hello.domain, hello.group)


def _lost(node: str, reason: str) -> m.NodeLost:
    return m.NodeLost(node, f"node {node} is lost: {reason}")
