"""The leader's side of coordination: serves the job policy to the followers.

Knows connections, leases and epochs; what to do about a failure is the policy's business. No clock,
socket or thread in here.

States::

    RECOVERING    leads a job that had begun before: waits for the members of the last table
    LEADING       the policy decides
    HANDING_OVER  its node leaves the job: another one has been told to lead, and decides
    DEPOSED       another node leads with a later epoch
    ENDED         the policy has ended the job; waits until every follower has heard of it
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.recent import Recent
from undaunted.base.text import format_duration
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.fence import Preparation
from undaunted.coordinator.lead.record import Record
from undaunted.coordinator.lead.sessions import Session, Sessions
from undaunted.coordinator.lead.times import (
    AFTER_RESTART_S,
    HEARD_S,
    LINGER_LEASES,
    LINGER_S,
    LONGEST_GRACE_S,
    STAY_S,
    Durations,
)
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.placement import name_some
from undaunted.coordinator.policy.policy import STOP_MARGIN_S, JobPolicy, PolicyState

if TYPE_CHECKING:
    from collections.abc import Collection

_NS = 1_000_000_000
_REMEMBERED = m.Memory.__struct_fields__
# The fields of a ledger that people have ordered.
ORDERED = ("excluded", "limits", "stop")
# So many members that are not here are asked at a time.
ASK_AT_ONCE = 8
# A launcher has ended if nobody has listened at its address so often in a row.
ENDED_TIMES = 3
# The words to a launcher of an earlier start of this job: before the first round, and after it.
STARTS_AGAIN = (
    "this is another start of the job; launchers of an earlier one go on only with a majority of "
    "their committee, or with the one that led them without one"
)
STARTED_AGAIN = (
    "the job was started again, and runs without this launcher of its earlier start; start it "
    "again with the same command if this node is to take part"
)
# Why a leader whose store does not answer stops the round.
UNHELD = (
    "etcd does not answer the node of the coordinator, and half of the nodes, or more, are missing "
    "or may go on without it"
)
# Why it leads no more, if its node leaves.
LEFT = "the node of the coordinator has left the job"
# How much longer it stays, at most, for followers that came back with ranks of the job.
DRAINS_S = LONGEST_GRACE_S + STOP_MARGIN_S
# Orders of people that are kept for the job that is adopted, at most.
ORDERS_KEPT = 64
# After these the ranks of a node do not go on as if nothing had been.
_OVER = m.NodeFailed | m.NodeStopped | m.NodeFinished


class LeaderState(enum.Enum):
    """See the module's documentation."""

    RECOVERING = enum.auto()
    LEADING = enum.auto()
    HANDING_OVER = enum.auto()
    DEPOSED = enum.auto()
    ENDED = enum.auto()


class Leader:
    """See the module's documentation. Feed events to `handle`, carry out what it returns.

    Attributes:
        config: what it knows.
        made: what it was made of.
        lost: node of the leader that was replaced, "" = this is not a take-over.
        state: see the module's documentation.
        policy: the job's; another one once this leader has recovered.
        linger_s: how long it stays after the end of the job, or after its node has left, at most.
        recent: events and commands of the policy.
    """

    def __init__(
        self,
        config: c.LeaderConfig,
        ledger: p.Ledger | None = None,
        epoch: int = 1,
        lost: str = "",
        silent: Collection[str] = (),
        stops_s: float = 0.0,
        others_stop_s: float | None = None,
    ) -> None:
        """Take over what a ledger says.

        Args:
            config: what it knows.
            ledger: of the job as the leader before has left it; None: the job begins. One without a
                run id: it begins anew, as no launcher of what was left answers.
            epoch: its own; later than every earlier one.
            lost: see the attributes.
            silent: members that are not waited for, since they did not answer before a take-over.
            stops_s: for how long ranks of the node of the leader that was replaced may live.
            others_stop_s: see `messages.Lead`.
        """
        self.config = config
        self.made: dict[str, Any] = {
            "config": config,
            "ledger": ledger or p.Ledger(run_id=""),
            "epoch": epoch,
            "lost": lost,
            "silent": tuple(silent),
            "stops_s": stops_s,
            "others_stop_s": others_stop_s,
        }
        self.lost = lost
        self.linger_s = LINGER_S
        self._record = Record(config, self.made["ledger"], epoch)
        self._lasts = Durations(config.lease_s)
        self._sessions = Sessions(self._lasts)
        self._preparation = Preparation(config, self._record, self._sessions, lost, stops_s)
        self._preparation.others_stop_s = others_stop_s
        self.policy = JobPolicy(config.policy)
        self.recent = Recent({"config": config.policy})
        self._has_quorum = True  # as far as the policy has been told
        self._unheld_ns: int | None = None  # since when the store does not hear of it
        self._dismissed = False  # the job is over for its own node
        self._handled_ns: int | None = None  # when the last event was
        # After it stood still: for the policy, once it is known whether this one still leads.
        self._undecided: list[m.Event] | None = None
        self._decides_ns = 0  # at the latest, where no other one can lead
        self._stood_s = 0.0
        self._held_again = False  # the store has heard of this one since then
        self.state = LeaderState.RECOVERING if self._record.inherited else LeaderState.LEADING
        # while it recovers
        self._not_awaited = {lost, *silent}
        self._adopted: p.Ledger | None = None  # what a follower has brought
        self._early: list[tuple[Session, p.Report]] = []  # reports for the policy of the job
        self._unheard: list[m.NodeEvent] = []  # others, that the policy before it had not heard
        # Orders that were carried out before there was a job, and who was excluded so.
        self._ordered: deque[m.Ordered] = deque(maxlen=ORDERS_KEPT)
        self._excluded: dict[str, str] = {}
        # other leaders
        self._asked = 0  # members that are not here, one after the other
        self._ended: dict[str, int] = {}  # how often in a row nobody listened at their addresses
        # launchers of other starts: when each has come first and last
        self._turned_away: dict[register.Voter, tuple[int, int]] = {}
        self._leaves = False  # so it waits for a round that runs without it
        self._successor: Session | None = None  # the next leader, which has been told

    @property
    def ledger(self) -> p.Ledger:
        """The ledger: what is known of the job."""
        return self._record.ledger

    def heard(self) -> dict[str, int]:
        """Return when each node that is connected was heard of last."""
        return {each.node: each.heard_ns for each in self._sessions.connected()}

    def addresses(self) -> dict[str, str]:
        """The address of each node that is connected, "" = none; of a lost member as well."""
        seats = {seat.node: seat.address for seat in self.ledger.table}
        return seats | {each.node: each.hello.address for each in self._sessions.connected()}

    @property
    def epoch(self) -> int:
        """The epoch it leads under."""
        return self._record.epoch

    def handle(self, event: c.LeaderEvent, now: int) -> list[c.LeaderCommand]:
        """Take one event at ``now`` (monotonic, ns); return the commands it causes, in order."""
        if self.state is LeaderState.DEPOSED:
            return []
        if self.state is LeaderState.HANDING_OVER:
            return self._handing_over(event)
        noticed = self._look_at_clock(now)
        return [*noticed, *self._take(event, now), *self._decide_late(now)]

    def _take(self, event: c.LeaderEvent, now: int) -> list[c.LeaderCommand]:
        match event:
            case c.Begin():
                return self._begin(now)
            case c.Received(link=link, message=p.Hello() as hello):
                return self._hello(link, hello, now)
            case c.Received(link=link, message=message):
                return self._received(link, message, now)
            case c.Closed(link=link, reason=reason, silent=silent):
                session = self._sessions.by_link.get(link)
                return [] if session is None else self._lose([session], reason, now, silent=silent)
            case c.Answered():
                return self._answered(event, now)
            case c.Persisted(version=version):
                self._record.kept = max(self._record.kept, version)
                asks = self._ask_committee() if self._may_replace else []
                return asks + self._look_at_start(now)
            case c.Holds(held=held):
                return self._holds(now, held=held)
            case c.Deposed(reason=reason):
                return self._stand_down(reason, "")
            case c.TimerFired():
                return self._timer(event, now)
        return []

    def _begin(self, now: int) -> list[c.LeaderCommand]:
        self._preparation.began_ns = now
        lease = c.SetTimer("lease", self._lasts.renew_s)
        if self.state is LeaderState.RECOVERING:
            return [lease, *self._keep_epoch(), self._recovery_timer()]
        return [lease, *self._ask_absent()]

    # --- the policy -----------------------------------------------------------------------------

    def _feed(self, event: m.Event, now: int) -> list[c.LeaderCommand]:
        """Tell the policy what has happened; end, or leave, if that is what it decides."""
        if self._undecided is not None:
            self._undecided.append(event)
            return []
        commands = self._decide(event, now)
        if self.policy.ended and self.state is LeaderState.LEADING:
            self.state = LeaderState.ENDED
            more = self._more_may_come(now)
            linger_s = LINGER_LEASES * self.config.lease_s if more else LINGER_S
            self.linger_s = linger_s + DRAINS_S
            commands += [c.SetTimer("linger", linger_s), *self._done_if_all_gone(now)]
        return commands + self._leave_if_dismissed()

    def _look_at_start(self, now: int) -> list[c.LeaderCommand]:
        """Something that a start may wait for has happened."""
        return self._start_if_ready(now) + self._leave_if_dismissed()

    def _decide(self, event: m.Event, now: int) -> list[c.LeaderCommand]:
        """Tell the policy what has happened; carry out what it makes of that."""
        commands: list[c.LeaderCommand] = []
        decided = self.policy.handle(event)
        self.recent.note(now, event, decided)
        if isinstance(event, m.Ordered) and self.policy.round < 0 and not _is_refused(decided):
            self._ordered.append(event)
        if isinstance(event, m.TableAccepted) and self.policy.running:
            self._preparation.start(replaceable=self._more_than_needed)
            commands.append(self._record.persist())
        for command in decided:
            commands += self._obey(command, now)
        if self._more_than_needed and not self._record.replaceable:
            self._record.replaceable = True
            commands += [
                send for each in self._sessions.connected() for send in each.beat(self._record)
            ]
        if not self.policy.preparing:
            self._preparation.call_off()
        if not self._preparation.under_way:
            commands += self._note_down()
        # The version that is being acknowledged stays; the start writes the rest.
        return commands + self._start_if_ready(now)

    def _note_down(self) -> list[c.LeaderCommand]:
        """Write down what the policy has changed; all hear at once of what was ordered."""
        known = self.ledger
        commands: list[c.LeaderCommand] = [*self._record.catch_up(self.policy)]
        if any(getattr(self.ledger, name) != getattr(known, name) for name in ORDERED):
            commands += self._sessions.learn(self._record)
        return commands

    def _start_if_ready(self, now: int) -> list[c.LeaderCommand]:
        """Start the table that is being prepared, unless something is missing yet."""
        preparation = self._preparation
        if not preparation.complete or self._undecided is not None:
            return []
        if not preparation.may_start(now):
            return [each for line in preparation.say(now) for each in self._tell_all(line)]
        commands = self._decide(preparation.accepted, now)
        if not self.policy.running:
            return commands  # others belong into it as well
        table = {seat.node for seat in self.ledger.table}
        # Spares get no order.
        return commands + self._sessions.learn(self._record, but=table)

    @property
    def _more_than_needed(self) -> bool:
        """Whether the job can go on without one of the nodes that are there."""
        return len(self.policy.roster.here) > self.policy.config.min_nodes

    def _obey(self, command: m.Command, now: int) -> list[c.LeaderCommand]:
        match command:
            case m.Prepare():  # the next leader is to know all that this one does
                noted = self._record.catch_up(self.policy)
                self._record.replace(self._chosen(now))
                return [*noted, *self._preparation.begin(command, now)]
            case m.SetTimer(name=name, round=number, delay_s=delay_s):
                return [c.SetTimer(f"policy {name}", delay_s, number)]
            case m.Decided() | m.Blamed() | m.Advised() | m.Slow() | m.Say() | m.NewLimits():
                return self._tell_all(command)
            case m.Stop():
                self._record.stop(self.policy)
            case m.End(node=node):
                self._dismissed = self._dismissed or node == self.config.node
        session = self._sessions.by_node.get(command.node)
        if session is None:
            return []  # it may never have come back
        if isinstance(command, m.Start):
            session.replaceable = self._record.replaceable
        return session.order(self._record.order(command))

    def _tell_all(self, note: m.Note) -> list[c.LeaderCommand]:
        order = self._record.order(note)
        return [send for each in self._sessions.connected() for send in each.order(order)]

    # --- followers come and go ------------------------------------------------------------------

    def _hello(self, link: int, hello: p.Hello, now: int) -> list[c.LeaderCommand]:
        if self._lacks_tables(hello):
            refused = p.Refused(reason="the coordinator asks for all it knows", tables=True)
            return [c.Send(link, refused), c.Close(link)]
        if self._is_of_other_start(hello, now):
            return self._turn_away(link, hello, now)
        if self._is_of_other_job(hello):
            reason = (
                f"job {self.config.run_id} runs {self.config.program} already, and node "
                f"{hello.node} was started with {hello.program}; give each job its own --rdzv-id"
            )
            return [c.Send(link, p.Refused(reason=reason, final=True)), c.Close(link)]
        known = self._sessions.by_node.get(hello.node)
        same = known is not None and known.hello.incarnation == hello.incarnation
        if known is not None and known.link is not None and not same:
            reason = (
                f"node {hello.node} has an agent already, which is heard of; give each launcher of "
                "the job its own --node-name"
            )
            return [c.Send(link, p.Refused(reason=reason, taken=True)), c.Close(link)]
        commands = self._catch_up(hello, now)
        if self.state is LeaderState.DEPOSED:
            refused = p.Refused(reason="another node leads the job")
            return [*commands, c.Send(link, refused), c.Close(link)]
        if known is not None and same:
            return commands + self._returned(known, link, hello, now)
        return commands + self._newcomer(link, hello, now)

    def _lacks_tables(self, hello: p.Hello) -> bool:
        """Whether this leader may have to go on from tables that a launcher has not sent."""
        known, ours = hello.ledger, self.ledger
        if known is None or not hello.brief or self.policy.round >= 0:
            return False
        return known.birth != ours.birth or p.newer(known, ours) or self._has_missed(known)

    def _is_of_other_start(self, hello: p.Hello, now: int) -> bool:
        """Whether a launcher is of another start of this job, which does not go on here.

        It does where nothing has begun yet, if its members have no votes, or enough are here; not
        after the scheduler has started the job again.
        """
        if hello.ledger is None:
            return False
        known, ours, who = self._newest(hello.ledger), self.ledger, (hello.node, hello.incarnation)
        if known.round < 0 or known.birth == ours.birth:
            return False
        if ours.round >= 0:
            return who not in map(register.voter, ours.table)
        over = self.policy.ended and self.policy.stop_ordered is None
        if over or known.attempt < self.config.attempt or self._is_replaced(known):
            return True
        since_ns = now - round(self.config.lease_s * _NS)
        lately = {each for each, (_, last) in self._turned_away.items() if last >= since_ns}
        here = {*self._sessions.voters, *lately, who}
        if self._is_erased:
            return 2 * sum(register.voter(seat) in here for seat in known.table) < len(known.table)
        return bool(register.lacking(here, known)) or self._is_kept_elsewhere(known, hello)

    def _is_kept_elsewhere(self, known: p.Ledger, hello: p.Hello) -> bool:
        """Whether another launcher keeps the register of a job alone, and may go on with it.

        It has not if it was one of this node, or if who comes was with it when it ended.
        """
        if self.config.store or p.has_committee(known):
            return False
        if hello.leader_ended is None or known is not hello.ledger:
            return known.leader not in {"", self.config.node}
        return not hello.leader_ended

    def _is_replaced(self, known: p.Ledger) -> bool:
        """With a store: whether a ledger is of a start that ended before what was left there."""
        left = self.made["ledger"]
        later = (left.epoch, left.version) >= (known.epoch, known.version)
        return self.config.store and later and known.birth != left.birth

    def _newest(self, known: p.Ledger) -> p.Ledger:
        """The ledger that a launcher knows, or that was left of its start, if that is newer.

        It shows that this start goes on, of which no launcher had answered.
        """
        left = msgspec.structs.replace(self.made["ledger"], run_id=self.config.run_id)
        same = known.birth == left.birth and self.ledger.round < 0
        return left if same and p.newer(left, known) and not p.has_committee(left) else known

    @property
    def _is_erased(self) -> bool:
        """With a store: whether nothing was left there, as after the end of a job.

        A launcher that comes with a round may have missed the end. If half of that round come,
        though, the store has lost what it kept.
        """
        return self.config.store and self.made["ledger"] == p.NO_LEDGER

    def _is_of_other_job(self, hello: p.Hello) -> bool:
        """Whether a launcher that comes to a running job was started with another program.

        It would wait as a spare, and end with the outcome of a job that is not its own.
        """
        new = hello.ledger is None and self.ledger.round >= 0
        known = "" not in (hello.program, self.config.program)
        return new and known and hello.program != self.config.program

    def _turn_away(self, link: int, hello: p.Hello, now: int) -> list[c.LeaderCommand]:
        """Refuse a launcher of another start.

        For good if it is of an earlier attempt. Also once a round of this start has begun, and that
        launcher has had the time to find a leader of the other one.
        """
        who = (hello.node, hello.incarnation)
        first_ns, _ = self._turned_away.get(who, (now, now))
        self._turned_away[who] = first_ns, now
        in_vain = now - first_ns >= round((self.config.lease_s + self._lasts.elected_s) * _NS)
        begun = self.ledger.round >= 0 and self._is_confirmed
        final = in_vain and (begun or self.config.store)
        if hello.ledger is not None and hello.ledger.attempt < self.config.attempt:
            final = True  # the scheduler has ended the earlier start
        refused = p.Refused(reason=STARTED_AGAIN if final else STARTS_AGAIN, final=final)
        return [c.Send(link, refused), c.Close(link)]

    def _catch_up(self, hello: p.Hello, now: int) -> list[c.LeaderCommand]:
        """Learn from a follower that knows of later rounds or epochs than this leader."""
        commands: list[c.LeaderCommand] = []
        known, promised = hello.ledger, hello.promised
        unbegun = self.policy.ended and self.policy.round < 0  # the end is final
        if known is not None and not unbegun:
            known = self._newest(known)
            promised = max(promised, known.epoch)
            missed = p.further(known, self.ledger) or self._has_missed(known)
            if self.policy.round < 0 and (missed or self._is_behind(known)):
                if self._is_kept_elsewhere(known, hello):
                    return self._stand_down("another node leads the job", "")
                commands += self._adopt(known)
            elif missed and (known.birth == self.ledger.birth or known.epoch > self.epoch):
                # Others have gone on without this leader.
                return self._stand_down("another node leads the job", "")
            elif self._is_behind(known) and p.has_committee(self.ledger):
                return self._stand_down("a member knows more of the job", "")
        if promised > self.epoch:
            commands += self._take_epoch(
                register.next_epoch(promised, self.config.incarnation), now
            )
        return commands

    def _is_behind(self, known: p.Ledger) -> bool:
        """Whether a member knows more of the round than this leader, to whom no quorum agrees."""
        ours = self.ledger
        same = known.round >= 0 and (known.birth, known.round) == (ours.birth, ours.round)
        return same and not self._record.agreed and p.newer(known, ours)

    def _has_missed(self, known: p.Ledger) -> bool:
        """Whether members have gone on with this job while this leader waits for them.

        Members without votes follow any leader, so that an older epoch may have a later round: this
        one's host had lost its disk, and what it knows comes from a node that was cut off. So it
        goes on from the newest that any of them brings.
        """
        ours, adopted = self.ledger, self._adopted
        waits = self.state is LeaderState.RECOVERING and not p.has_committee(ours)
        later = known.round > ours.round or (adopted is not None and p.newer(known, adopted))
        return waits and known.birth == ours.birth and later

    def _adopt(self, ledger: p.Ledger) -> list[c.LeaderCommand]:
        """Go on from a ledger: the job that was taken for a new one had begun before."""
        self._adopted = ledger
        self._record.adopt(ledger)
        self._preparation.call_off()
        self._excluded |= self.policy.roster.excluded
        self.policy, self._has_quorum = JobPolicy(self.config.policy), True
        self.recent = Recent({"config": self.config.policy})
        if self._undecided is not None:  # who is here is seen anew
            self._unheard += [each for each in self._undecided if isinstance(each, m.NodeEvent)]
            self._undecided = []
        self.state = LeaderState.RECOVERING if self._record.inherited else LeaderState.LEADING
        # Also for followers of what had been adopted before.
        told = self._sessions.learn(self._record)
        older = [
            order for each in self._sessions.by_node.values() for order in self._drain_older(each)
        ]
        return [*self._keep_epoch(), *told, *older, self._recovery_timer()]

    def _keep_epoch(self) -> list[c.LeaderCommand]:
        """Have the epoch written down before followers learn it; the next one here is later."""
        return [self._record.persist()] if self._record.agreed else []

    def _take_epoch(self, epoch: int, now: int) -> list[c.LeaderCommand]:
        """Lead with a later epoch: followers are welcomed anew."""
        self._record.take_epoch(epoch)
        commands: list[c.LeaderCommand] = [self._record.persist()]
        for session in self._sessions.by_node.values():
            session.number_from(epoch)
            commands += self._welcome(session)
        return commands + self._preparation.begin_again(now)

    def _agree(self, now: int) -> list[c.LeaderCommand]:
        """Go on once enough members follow under the leader's epoch."""
        if self._record.agreed:
            return []
        following = {each.voter for each in self._sessions.connected() if each.epoch == self.epoch}
        if not self._record.agree(following):
            return []
        told = [send for each in self._sessions.connected() for send in each.again(self._record)]
        return [self._record.persist(), *told, *self._preparation.begin_again(now)]

    def _newcomer(self, link: int, hello: p.Hello, now: int) -> list[c.LeaderCommand]:
        session = Session(hello, link, now)
        self._preparation.joins(session, now)
        session.number_from(self.epoch)
        self._sessions.add(session)
        return self._welcome(session) + self._admit(session, now)

    def _returned(
        self, session: Session, link: int, hello: p.Hello, now: int
    ) -> list[c.LeaderCommand]:
        was_lost = session.link is None
        commands = self._sessions.reconnect(session, link)
        session.introduced(hello, now)
        commands += self._welcome(session)
        if was_lost or self.state is LeaderState.RECOVERING:
            return commands + self._admit(session, now)
        return commands + self._preparation.returned(session)

    def _welcome(self, session: Session) -> list[c.LeaderCommand]:
        """Welcome a follower, and send it the ledger and its orders under this epoch."""
        own = self.config
        welcome = p.Welcome(
            epoch=self.epoch, leader=own.node, lease_s=own.lease_s, settings=own.settings
        )
        return session.send(welcome) + session.again(self._record)

    def _admit(self, session: Session, now: int) -> list[c.LeaderCommand]:
        """Offer a node to the policy, once nothing runs on it any more."""
        if self.state is LeaderState.RECOVERING:
            return self._recover(now) if self._all_are_back() else self._drain_older(session)
        if session.node in self._missed:
            return []  # its ranks may go on, see `_decide_late`
        if session.hello.running:
            return self._drain(session) + self._feed(m.NodeReturns(session.node), now)
        session.draining, version = False, self.ledger.version
        commands = self._feed(m.NodeJoined(session.info), now)
        if self.ledger.version == version:
            commands += self._preparation.joined(session)
        return commands + self._look_at_quorum(now)

    def _lose(
        self, sessions: list[Session], reason: str, now: int, *, silent: bool
    ) -> list[c.LeaderCommand]:
        for session in sessions:
            self._sessions.disconnect(session, silent=silent)
        if self.state is LeaderState.ENDED:
            return self._done_if_all_gone(now)
        for session in sessions:
            session.orders.clear()
        if self.state is LeaderState.RECOVERING:
            return []
        commands = self._look_at_quorum(now)  # if it is this node that is cut off, that is why
        for node in [each.node for each in sessions]:
            commands += self._feed(self._loss(node, reason, now), now)
        asks = [] if self._undecided is None else self._ask_absent()
        return [*commands, *asks, *self._look_at_committee(now)]

    def _loss(self, node: str, reason: str, now: int) -> m.NodeLost:
        """The loss of a node; one that this leader misses since it stood still is not to blame."""
        lost = f"node {node} is lost: {reason}"
        if not self._sessions.stood_still(now):
            return m.NodeLost(node, lost)
        return m.NodeLost(node, f"{self._stood}; {lost}", returns=True, culprit=self.config.node)

    def _drain(self, session: Session) -> list[c.LeaderCommand]:
        """Have a follower stop what it runs: that is no part of the job any more."""
        if session.draining:
            return []  # it got that order while the leader recovered
        session.draining = True
        reason = "the coordinator had lost this node, and its round is over"
        stop = m.Stop(session.node, session.hello.round, reason, LONGEST_GRACE_S)
        return session.order(self._record.order(stop))

    def _drain_older(self, session: Session) -> list[c.LeaderCommand]:
        """Do so, for a leader that recovers, if it is a round that is certainly over."""
        hello = session.hello
        older = hello.running and hello.round < self._record.ledger.round
        return self._drain(session) if older else []

    def _look_at_quorum(self, now: int) -> list[c.LeaderCommand]:
        """Tell the policy when a quorum is lost or regained."""
        if self.state is not LeaderState.LEADING:
            return []
        had, here = self._has_quorum, self._sessions.voters
        lacking = self._record.lacking(here)
        self._has_quorum = not lacking and not self._may_be_replaced(here, now)
        if self._has_quorum == had:
            return []
        if self._has_quorum:
            return self._feed(m.QuorumRegained(), now)
        reason = self._who_is_needed(lacking) if lacking else UNHELD
        if self._undecided is not None or self._sessions.stood_still(now):
            reason = f"{self._stood}; {reason}"
        lost = m.QuorumLost(reason, self._lasts.grace_s, counts=bool(lacking))
        return self._feed(lost, now)

    # --- this process stood still ---------------------------------------------------------------

    # For so long that followers may have lost it, or for longer than a lease: then nobody counts on
    # this leader any more, unless all stood still. All that has come meanwhile, as the end of
    # connections, says nothing about the others: they may follow another leader, or look for this
    # one. So nothing is decided before enough of them have renewed their leases, or too few are
    # left; where no other one can lead, before those that have lost it had the time to come back.

    def _look_at_clock(self, now: int) -> list[c.LeaderCommand]:
        before, self._handled_ns = self._handled_ns, now
        stood_s = 0.0 if before is None else (now - before) / _NS
        if stood_s <= 2 * self._lasts.renew_s:
            return []
        self._sessions.goes_on_ns, self._stood_s = now, stood_s
        leads = self.state in {LeaderState.LEADING, LeaderState.RECOVERING}
        if not leads or (self._others_may_lead and stood_s <= self.config.lease_s):
            return []
        if self._undecided is None:
            self._undecided, self._decides_ns = [], now + self._come_back_ns
        else:
            self._decides_ns += round(stood_s * _NS)
        self._held_again = False
        own = self._sessions.by_node.get(self.config.node)
        if own is None or not self._others_may_lead:
            return []
        said = m.Say(f"{self._stood}: another node may coordinate the job by now")
        return own.order(self._record.order(said))

    @property
    def _stood(self) -> str:
        node = self.config.node
        who = f"the agent of node {node}, or its machine," if node else "the coordinator"
        return f"{who} stood still for {format_duration(self._stood_s)}"

    @property
    def _others_may_lead(self) -> bool:
        """Whether another launcher may lead a job of this one, if this one is not heard of."""
        begun = self.ledger.round >= 0
        return self.config.store or (begun and bool(register.members(self.ledger)))

    @property
    def _missed(self) -> set[str]:
        """Nodes that this leader has lost since it stood still, before that is decided about."""
        return {event.node for event in self._undecided or () if isinstance(event, m.NodeLost)}

    def _decide_late(self, now: int) -> list[c.LeaderCommand]:
        """Tell the policy what has happened since then, once it is known whether this one leads.

        Nodes that have come back, and whose ranks run, were not lost.
        """
        undecided, missed = self._undecided, self._missed
        if undecided is None or not (self._is_counted_on(now) or not self._has_quorum):
            return []
        self._undecided = None
        reported = {event.node for event in undecided if isinstance(event, _OVER)}
        back = [each for each in self._sessions.connected() if each.node in missed]
        well = {each.node for each in back if self._goes_on(each) and each.node not in reported}
        # The others are away because of this one: that is the cause of all.
        undecided.sort(key=lambda event: not isinstance(event, m.QuorumLost))
        commands: list[c.LeaderCommand] = []
        for event in undecided:
            if not isinstance(event, m.NodeLost) or event.node not in well:
                commands += self._feed(event, now)
        for session in back:
            if session.node not in well:
                commands += self._admit(session, now)
        if well and well == missed:
            said = f"{self._stood}; all nodes follow the coordinator again, and the ranks go on"
            commands += self._tell_all(m.Say(said))
        return commands + self._look_at_start(now)

    def _goes_on(self, session: Session) -> bool:
        """Whether the ranks of the round that runs still run on this node."""
        hello, number = session.hello, self.policy.round
        seated = filter(self._sessions.is_here, self.ledger.table)
        is_member = session.node in {seat.node for seat in seated}
        return self.policy.running and is_member and hello.running and hello.round == number

    def _is_counted_on(self, now: int) -> bool:
        """Whether no other one can lead, as enough have said within a lease that they follow."""
        if not self._others_may_lead:
            return self._are_back(now)
        counting = self._sessions.counting(now)
        if not self.config.store:
            return not self._record.lacking(counting)
        table = self.ledger.table
        followed = 2 * sum(register.voter(seat) in counting for seat in table) > len(table)
        return self._held_again or (followed and len(table) > 1)

    def _are_back(self, now: int) -> bool:
        """Whether all follow that this leader had as it stood still, or had the time to come back.

        That is as long as after a restart.
        """
        goes_on_ns, here = self._sessions.goes_on_ns or 0, self._sessions.connected()
        if now >= self._decides_ns:
            return True
        if self.state is LeaderState.RECOVERING or not self._missed <= {each.node for each in here}:
            return False
        return all(each.epoch == self.epoch and each.counts_ns >= goes_on_ns for each in here)

    @property
    def _come_back_ns(self) -> int:
        return round((self.config.lease_s + AFTER_RESTART_S) * _NS)

    def _holds(self, now: int, *, held: bool) -> list[c.LeaderCommand]:
        """Others can see in the store that this leader is there, or not any more."""
        if held == (self._unheld_ns is None):
            return []
        self._unheld_ns = None if held else now
        self._held_again = held
        away_s = self.config.away_timeout_s
        timers: list[c.LeaderCommand] = [] if held else [c.SetTimer("unheld", away_s)]
        return [*timers, *self._look_at_quorum(now)]

    def _may_be_replaced(self, present: Collection[register.Voter], now: int) -> bool:
        """Whether another launcher may lead, and start a round once ranks here had time to stop.

        Not as long as more than half of the members follow this one: the other one waits for half
        of them, see `Preparation`. If there is one member, it goes by the ledger.
        """
        if self._unheld_ns is None:
            return False
        if now - self._unheld_ns >= round(self.config.away_timeout_s * _NS):
            return True
        table = self.ledger.table
        if len(table) == 1:
            return self.ledger.replaceable
        here = sum(register.voter(seat) in present for seat in table)
        return bool(table) and 2 * here <= len(table)

    def _who_is_needed(self, committee: tuple[register.Member, ...]) -> str:
        """Say how many launchers of a committee are here, and what to do about the others."""
        gone = [each.node for each in committee if not self._sessions.is_here(each)]
        needed, here = len(committee) // 2 + 1, len(committee) - len(gone)
        are, wait = "is" if here == 1 else "are", format_duration(self.config.policy.join_timeout_s)
        return (
            f"{here} of the {len(committee)} launchers of the committee {are} here, {needed} are "
            f"needed (missing: {name_some(gone)}). Reconnect them within {wait}, or end this "
            "launcher and start the job again"
        )

    # --- the committee --------------------------------------------------------------------------

    # It changes one at a time, and not while a table is being confirmed, which it goes along with.

    def _chosen(self, now: int) -> tuple[register.Member, ...]:
        """Choose who keeps the register: members of before, and others where these are gone."""
        committee, connected = self.ledger.committee, len(self._sessions.by_link)
        if not self.config.takeover:
            return ()
        full = len(committee) == register.MOST or len(committee) + 2 > connected
        if full and committee and all(map(self._stays, committee)):
            return committee
        here: dict[register.Voter, tuple[register.Member, str]] = {}
        own = (self.config.node, self.config.incarnation)
        # By name: who claims first after a loss should not depend on who came first.
        connected_by_name = sorted(
            self._sessions.connected(), key=lambda each: (each.voter != own, each.hello.node)
        )
        for each in connected_by_name:
            hello = each.hello
            if hello.address and not each.leaves:
                member = register.Member(hello.node, hello.incarnation, hello.address)
                here[each.voter] = member, hello.domain or hello.node
        return register.choose(self.ledger.committee, here, self._may_return(now))

    def _may_return(self, now: int) -> list[register.Voter]:
        """Members of the committee that are away for a short time only."""
        since_ns = now - round((self.config.lease_s + self._lasts.stopped_s) * _NS)
        away = (self._sessions.by_node.get(each.node) for each in self.ledger.committee)
        recent = [
            each.voter
            for each in away
            if each is not None and each.heard_ns > since_ns and each.silent and not each.leaves
        ]
        if self._preparation.began_ns > since_ns:  # they may not have come yet
            came, gone = self._sessions.by_node, self.lost if not self.made["stops_s"] else ""
            never = (each for each in self.ledger.committee if each.node not in came)
            recent += [register.voter(each) for each in never if each.node != gone]
        return recent

    def _stays(self, member: register.Member) -> bool:
        is_here = self._sessions.is_here(member)
        return is_here and not self._sessions.by_node[member.node].leaves

    @property
    def _may_replace(self) -> bool:
        """Whether others may be asked to keep the register, without a table."""
        return self._is_confirmed and self.ledger.round >= 0 and not self._preparation.under_way

    def _look_at_committee(self, now: int) -> list[c.LeaderCommand]:
        """Between two tables: have others keep the register where a member of it is gone."""
        if not self._may_replace:
            return []
        replaced = not self.ledger.before and self._record.replace(self._chosen(now))
        return [*([self._record.persist()] if replaced else []), *self._ask_committee()]

    def _settle(self) -> list[c.LeaderCommand]:
        """Leave the committee before, once the present one has taken its place."""
        if not self.ledger.before or not self._may_replace:
            return []
        former = self._sessions.taken(self.ledger)
        if not self._record.settle(former):
            return []
        left = former.keys() - register.members(self.ledger).keys()
        by_node = self._sessions.by_node
        told = [send for node, _ in sorted(left) for send in by_node[node].learn(self._record)]
        return [self._record.persist(), *told, *self._ask_committee()]

    def _ask_committee(self) -> list[c.LeaderCommand]:
        """Have those take the ledger that keep it, and have not."""
        if not self._record.may_grow:
            return []
        taken = self._sessions.taken(self.ledger)
        asked = [who[0] for who, version in taken.items() if version < self._record.config]
        commands: list[c.LeaderCommand] = []
        if asked and self._record.grown == self._record.config:
            # All are to know that this leader keeps it alone no more.
            commands += self._sessions.learn(self._record, but=asked)
        order = p.PrepareOrder(number=0, epoch=self.epoch, version=self.ledger.version)
        for node in asked:
            session = self._sessions.by_node[node]
            commands += [*session.learn(self._record), *session.order(order)]
        return commands

    # --- recovery -------------------------------------------------------------------------------

    def _recover(self, now: int) -> list[c.LeaderCommand]:
        """Go on with the round of the ledger; who is not here is lost."""
        if self.state is not LeaderState.RECOVERING:
            return []
        self.state = LeaderState.LEADING
        self.policy = self._restored_policy()
        commands: list[c.LeaderCommand] = [self._record.persist()]
        for lost in self._losses(now):
            commands += self._feed(lost, now)
        for session in self._newcomers():
            commands += self._admit(session, now)
        early, self._early = self._early, []
        for session, report in early:
            commands += self._reported(session, report, now)
        if self.policy.stop_ordered is not None:
            commands += self._feed(self.policy.stop_ordered, now)
        unheard, self._unheard = self._unheard, []
        ordered = [msgspec.structs.replace(each, round=self.policy.round) for each in self._ordered]
        self._ordered.clear()
        for event in (*unheard, *self._idle_members(), *ordered):
            commands += self._feed(event, now)
        return commands + self._look_at_quorum(now)

    def _recovery_timer(self) -> c.LeaderCommand:
        """How long members are waited for."""
        # With a store, members hear of a new leader at once.
        restarted_s = self.config.lease_s + (0 if self.config.store else AFTER_RESTART_S)
        return c.SetTimer("recover", self._lasts.after_take_over_s if self.lost else restarted_s)

    def _all_are_back(self) -> bool:
        """Whether nobody is waited for any more."""
        is_here, table = self._sessions.is_here, self.ledger.table
        too_few = len(self._sessions.by_link) < len(table) - len(self._not_awaited)
        if too_few or self._record.lacking(self._sessions.voters):
            return False
        return all(is_here(seat) for seat in table if seat.node not in self._not_awaited)

    def _restored_policy(self) -> JobPolicy:
        """The job policy, with the round of the ledger running."""
        ledger = self.ledger
        memory = m.Memory(**{name: getattr(ledger, name) for name in _REMEMBERED})
        excluded = {**ledger.excluded, **self._excluded}
        known: dict[str, Any] = {
            "round": ledger.round,
            "prepared": ledger.pending_round,
            "nodes": [self._info(seat) for seat in ledger.table],
            "memory": msgspec.structs.replace(memory, excluded=excluded),
        }
        self.recent = Recent({"config": self.config.policy, "restored": known})
        return JobPolicy.restored(self.config.policy, **known)

    def _losses(self, now: int) -> list[m.NodeLost]:
        """Members that are not here, and why."""
        missing = [seat for seat in self.ledger.table if not self._sessions.is_here(seat)]
        return [self._loss(seat.node, self._why_not_here(seat), now) for seat in missing]

    def _why_not_here(self, seat: p.Seat) -> str:
        session = self._sessions.by_node.get(seat.node)
        if session is not None and session.link is not None:
            return "its launcher was started again"
        if seat.node == self.lost:
            return "it led the job, and the others cannot reach it any more"
        return "it has not come back"

    def _info(self, seat: p.Seat) -> m.NodeInfo:
        session = self._sessions.by_node.get(seat.node)
        return m.NodeInfo(seat.node, seat.slots) if session is None else session.info

    def _newcomers(self) -> list[Session]:
        """Connected agents that are no members."""
        members = {seat.node for seat in self.ledger.table if self._sessions.is_here(seat)}
        return [each for each in self._sessions.connected() if each.node not in members]

    def _idle_members(self) -> list[m.Event]:
        """Nothing of the round runs on these members, whether or not they have said so."""
        ledger = self.ledger
        members = {seat.node for seat in ledger.table if self._sessions.is_here(seat)}
        events: list[m.Event] = []
        for session in self._sessions.connected():
            node, hello = session.node, session.hello
            if node in members and not (hello.running and hello.round == ledger.round):
                text = f"the ranks of node {node} were stopped while there was no coordinator"
                events.append(m.NodeFailed(node, ledger.round, text, victim=True))
                events.append(m.NodeStopped(node, ledger.round))
        return events

    # --- what followers say ---------------------------------------------------------------------

    def _received(self, link: int, message: p.Message, now: int) -> list[c.LeaderCommand]:
        session = self._sessions.by_link.get(link)
        if session is None:
            return []
        session.heard_ns = now
        match message:
            case p.Renew():
                return self._renewed(session, message, now)
            case p.Miss():
                return self._give_up([session], "it has heard nothing of its coordinator", now)
            case p.TakenOver(epoch=epoch) if epoch > self.epoch and self.config.store:
                return self._stand_down("another node leads the job", "")
            case p.Prepared(epoch=epoch) if epoch == self.epoch:
                self._preparation.acknowledged(session, message)
                return self._settle() + self._look_at_start(now)
            case p.Report() if self.state is LeaderState.RECOVERING:
                self._early.append((session, message))
            case p.Report():
                return self._reported(session, message, now)
        return []

    def _renewed(self, session: Session, renew: p.Renew, now: int) -> list[c.LeaderCommand]:
        session.epoch = renew.epoch
        session.renewed(renew, now)
        agreed = self._agree(now)
        session.replaceable = renew.replaceable and renew.round == self.ledger.round
        asks = renew.sent or not renew.answered
        if not asks:
            return agreed
        majority_s = self._sessions.majority_s(self.ledger, self.epoch, now)
        return agreed + session.beat(self._record, renew.sent, majority_s)

    def _reported(self, session: Session, report: p.Report, now: int) -> list[c.LeaderCommand]:
        event = report.event
        if report.number <= session.reported or event.node != session.node:
            return []  # sent again before it was acknowledged, or of another node
        session.reported = report.number
        if isinstance(event, m.NodeStopped):
            session.stopped = event.round
        if isinstance(event, m.NodeFailed) and event.cut_off and self._was_lost_in(event.round):
            event = msgspec.structs.replace(event, cut_off=False)  # a victim of that leader's loss
        commands = session.beat(self._record)
        if isinstance(event, m.Preempted):  # others keep the register before it goes
            session.leaves = True
            commands += self._look_at_committee(now)
        draining, late = session.draining, session.node in self._missed
        over = isinstance(event, m.NodeStopped) and event.round == session.hello.round
        if over and (draining or late):
            session.hello = msgspec.structs.replace(session.hello, running=False)
            commands += self._admit(session, now)
        return commands if draining else commands + self._feed(event, now)

    def _was_lost_in(self, number: int) -> bool:
        """Whether this leader has replaced another one that was lost in a round."""
        return self.lost != "" and number <= self.made["ledger"].round

    # --- timers ---------------------------------------------------------------------------------

    def _timer(self, event: c.TimerFired, now: int) -> list[c.LeaderCommand]:
        match event.name:
            case "lease":
                commands = [*self._expire(now), *self._ask_absent(), *self._look_at_committee(now)]
                again_s = self._sessions.look_again_s(now)
                return [*commands, c.SetTimer("lease", again_s)]
            case "recover":
                return self._recover(now)
            case "probe" if self._preparation.under_way:
                return self._probe(now)
            case "linger" if self.state is LeaderState.ENDED:
                return self._done_if_all_know(event.round)
            case "unheld":
                return self._look_at_quorum(now)
            case "leave" if self.state is LeaderState.LEADING:
                return self._stand_down(LEFT, "")
            case "policy last_call" if (left_s := self._asked_by_others_s(now)) > 0:
                return [c.SetTimer(event.name, left_s, event.round)]
            case name if name.startswith("policy ") and self.state is LeaderState.LEADING:
                name, silent = name.removeprefix("policy "), self._preparation.silent
                return self._feed(m.TimerFired(name, event.round, silent), now)
        return []

    def _expire(self, now: int) -> list[c.LeaderCommand]:
        """Lose the followers whose lease is over."""
        silent = self._sessions.silent(now)
        if not silent or self._is_cut_off(silent, now):
            return []
        reason = f"nothing was heard of it for {self.config.lease_s:g} s"
        return self._give_up(silent, reason, now)

    def _is_cut_off(self, silent: list[Session], now: int) -> bool:
        """Whether it seems that most leases end within a renewal, as this node is cut off.

        Then these nodes are not lost one by one: once a quorum is, that is the cause of all.
        """
        here, heard = self._sessions.voters, self._sessions.heard(now)
        left = here.keys() - {each.voter for each in silent}
        return self._has_quorum and self._is_too_few(heard, now) and not self._is_too_few(left, now)

    def _is_too_few(self, present: Collection[register.Voter], now: int) -> bool:
        return bool(self._record.lacking(present)) or self._may_be_replaced(present, now)

    def _give_up(self, sessions: list[Session], reason: str, now: int) -> list[c.LeaderCommand]:
        """Close connections of followers that may live; they need not be heard again."""
        closes = [c.Close(each.link) for each in sessions if each.link is not None]
        return [*closes, *self._lose(sessions, reason, now, silent=True)]

    def _probe(self, now: int) -> list[c.LeaderCommand]:
        """While a start is held up: time may have made it possible."""
        commands = self._look_at_start(now)
        if not self._preparation.under_way:
            return commands
        return [*commands, self._preparation.probe(now)]

    # --- other leaders --------------------------------------------------------------------------

    def _ask_absent(self) -> list[c.LeaderCommand]:
        """Ask some of the members that are not here: perhaps they follow a later leader.

        And, if it leads with a quorum, launchers at the endpoints: one that knows nothing of this
        job leads another one.
        """
        if self.state not in {LeaderState.LEADING, LeaderState.RECOVERING}:
            return []
        own, ledger, confirmed = self.config, self.ledger, self._is_confirmed
        miss = p.Miss(
            node=own.node,
            incarnation="",
            epoch=self.epoch,
            leader=own.address if confirmed else "",
            birth=ledger.birth,
            round=ledger.round,
        )
        asks: list[c.LeaderCommand] = [c.Ask("", each, miss) for each in own.endpoints if confirmed]
        is_here = self._sessions.is_here
        members = register.members(ledger).values() if ledger.round >= 0 else ()
        missing = [each for each in members if each.address and not is_here(each)]
        if not missing:
            return asks
        self._asked += ASK_AT_ONCE
        first = self._asked % len(missing)
        some = (missing[first:] + missing[:first])[:ASK_AT_ONCE]
        return [*asks, *(c.Ask(seat.node, seat.address, miss) for seat in some)]

    def _asked_by_others_s(self, now: int) -> float:
        """How long it takes until a leader that goes on with this job has asked at the endpoint.

        A launcher there that knows of no job, and may have lost its disk, waits for that. One that
        comes from another start may be among those that elect such a leader.
        """
        if not self.config.takeover or not self.config.node or self.ledger.round >= 0:
            return 0.0
        asked_s = self._lasts.renew_s + HEARD_S
        left_s = asked_s - (now - self._preparation.began_ns) / _NS
        if not self._turned_away:
            return left_s
        elected_s = self.config.lease_s + self._lasts.elected_s + asked_s
        since_ns = min(first_ns for first_ns, _ in self._turned_away.values())
        return max(left_s, elected_s - (now - since_ns) / _NS)

    @property
    def _is_confirmed(self) -> bool:
        """Whether a quorum is here, and has agreed to this leader."""
        return self._has_quorum and self._record.agreed and self.state is LeaderState.LEADING

    def _answered(self, answered: c.Answered, now: int) -> list[c.LeaderCommand]:
        answer = answered.message
        if isinstance(answer, p.MissAnswer) and answer.leader and self._gives_way(answer):
            return self._stand_down("another node leads the job", answer.leader)
        times = self._ended.get(answered.node, 0)
        self._ended[answered.node] = times + 1 if answered.ended else 0
        return self._end_if_alone(now)

    def _end_if_alone(self, now: int) -> list[c.LeaderCommand]:
        """End where so many of the committee have ended that no majority of it can come back.

        Once nothing runs any more.
        """
        if self._has_quorum or self.policy.state is not PolicyState.FORMING:
            return []
        keepers, is_here = register.members(self.ledger), self._sessions.is_here
        ended = [
            who
            for who, each in keepers.items()
            if self._ended.get(each.node, 0) >= ENDED_TIMES and not is_here(each)
        ]
        if not self._record.lacking(keepers.keys() - ended):
            return []
        reason = (
            f"the launchers of {name_some(node for node, _ in ended)} have ended. If the job has "
            "not ended with them, start all of it again"
        )
        return self._feed(m.QuorumLost(reason, self._lasts.grace_s, final=True), now)

    def _gives_way(self, answer: p.MissAnswer) -> bool:
        """Whether to give way to the leader that another member follows.

        The first of these that applies decides:

        1. One of the two has begun a job: that one goes on.
        2. This leader is confirmed, or the two have ledgers of different epochs: the later ledger.
        3. They know of different rounds: the later round.
        4. The later epoch, or the leader that has written the ledger of both.
        """
        ledger, epoch = self.ledger, self.epoch
        if answer.lost or answer.epoch == epoch:
            return False
        if (answer.round < 0) != (ledger.round < 0):
            return ledger.round < 0
        if self._is_confirmed or answer.ledger_epoch != ledger.epoch:
            return answer.ledger_epoch > ledger.epoch
        if answer.round != ledger.round:
            return answer.round > ledger.round
        return answer.epoch > epoch or answer.epoch == answer.ledger_epoch

    def _stand_down(self, reason: str, leader: str) -> list[c.LeaderCommand]:
        """Send all followers to ``leader``, "" = they find it themselves."""
        self.state = LeaderState.DEPOSED
        refused = p.Refused(reason=reason, leader=leader)
        commands: list[c.LeaderCommand] = []
        for link in self._sessions.by_link:
            commands += [c.Send(link, refused), c.Close(link)]
        return [*commands, c.Done(leader)]

    # --- the node of the leader leaves ----------------------------------------------------------

    # It is the only one that may lead, and gives that up with the word that makes another one the
    # leader. So nobody has to vote, and jobs go on that are too small for a vote. It names one,
    # once: if that one does not come to lead, members that have votes find another one.

    def _leave_if_dismissed(self) -> list[c.LeaderCommand]:
        """Go once a round runs without this node, whose launcher waits for that."""
        if self.state is not LeaderState.LEADING or not self._dismissed:
            return []
        if self.policy.round < 0:
            return self._stand_down(LEFT, "")
        self.linger_s = STAY_S + self.config.lease_s
        commands: list[c.LeaderCommand] = [] if self._leaves else [c.SetTimer("leave", STAY_S)]
        self._leaves = True
        if not self.policy.running or not self._has_quorum:
            return commands
        if not self.config.takeover:
            return commands + self._stand_down(LEFT, "")
        return commands + self._hand_over()

    def _hand_over(self) -> list[c.LeaderCommand]:
        """Tell one member of the round that runs to lead, if there is one."""
        ledger, is_here = self.ledger, self._sessions.is_here
        seats = [seat for seat in ledger.table if seat.address and is_here(seat)]
        others = [seat.node for seat in seats if seat.node != self.config.node]
        if not others:
            return []
        keepers = {each.node for each in ledger.committee}
        others.sort(key=lambda node: node not in keepers)
        self.state, self._successor = LeaderState.HANDING_OVER, self._sessions.by_node[others[0]]
        later = msgspec.structs.replace(ledger, leader=others[0], version=ledger.version + 1)
        return [
            c.Persist(later),  # for a launcher that is started again on this node
            *self._successor.send(p.HandOver(epoch=self.epoch, ledger=ledger)),
            c.SetTimer("leave", self.config.lease_s),
        ]

    def _handing_over(self, event: c.LeaderEvent) -> list[c.LeaderCommand]:
        """Go once the next leader has answered, or cannot any more; send others to it."""
        assert self._successor is not None
        address = self._successor.hello.address
        match event:
            case c.Received(link=link, message=p.Hello()):
                refused = p.Refused(reason="another node leads the job", leader=address)
                return [c.Send(link, refused), c.Close(link)]
            case c.Received(link=link, message=p.TakenOver()) | c.Closed(link=link):
                over = self._successor is self._sessions.by_link.get(link)
            case _:
                over = isinstance(event, c.TimerFired) and event.name == "leave"
        return self._stand_down(LEFT, address) if over else []

    # --- the end --------------------------------------------------------------------------------

    def _done_if_all_gone(self, now: int) -> list[c.LeaderCommand]:
        if self._sessions.connected() or self._more_may_come(now):
            return []
        return [c.Done()]

    def _done_if_all_know(self, waited: int) -> list[c.LeaderCommand]:
        """Stay while ranks of a follower stop that came back: it hears of the end after that."""
        drains = any(each.draining for each in self._sessions.connected())
        if drains and (waited + 1) * LINGER_S <= DRAINS_S:
            return [c.SetTimer("linger", LINGER_S, waited + 1)]
        return [c.Done()]

    def _more_may_come(self, now: int) -> bool:
        """Whether somebody who has not heard of the end may be looking for this leader."""
        since_ns = now - round(LINGER_LEASES * self.config.lease_s * _NS)
        if self._record.inherited and self._preparation.began_ns > since_ns:
            return True  # followers of the leader before
        if self._sessions.stood_still(now):
            return True  # what they have said meanwhile was not heard
        goes_on_ns = self._sessions.goes_on_ns
        if goes_on_ns is not None and goes_on_ns > since_ns - self._come_back_ns:
            since_ns = goes_on_ns - round(self._stood_s * _NS) - self._come_back_ns
        return any(each.may_return(since_ns) for each in self._sessions.by_node.values())


def _is_refused(decided: list[m.Command]) -> bool:
    """Whether an order is not carried out."""
    return any(isinstance(each, m.Say) and each.refused for each in decided)
