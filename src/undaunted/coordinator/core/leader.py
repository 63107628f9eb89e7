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
from typing import TYPE_CHECKING

import msgspec

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import election
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core.execution import Execution
from undaunted.coordinator.core.handover import STAY_S, Handover
from undaunted.coordinator.core.policy import JobPolicy
from undaunted.coordinator.core.preparation import Preparation
from undaunted.coordinator.core.record import Record
from undaunted.coordinator.core.recovery import Recovery
from undaunted.coordinator.core.sessions import Session, Sessions
from undaunted.coordinator.core.succession import Succession

if TYPE_CHECKING:
    from collections.abc import Collection

_NS = 1_000_000_000
# Why it leads no more, if its node leaves.
LEFT = "the node of the coordinator has left the job"
# What is asked is answered within this time.
ANSWER_S = 1.0
# How long followers may take to hear of the end.
LINGER_S = 3.0
# The same, in leases, where some may still be looking for this leader.
LINGER_LEASES = 2


class State(enum.Enum):
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
        lost: node of the leader that was replaced, "" = this is not a take-over.
        state: see the module's documentation.
        linger_s: how long it stays after the end of the job, or after its node has left, at most.
    """

    def __init__(
        self,
        config: c.LeaderConfig,
        ledger: p.Ledger | None = None,
        epoch: int = 1,
        lost: str = "",
        silent: Collection[str] = (),
    ) -> None:
        """Take over what a ledger says.

        Args:
            config: what it knows.
            ledger: of the job as the leader before has left it; None, or one without a run id: the
                job begins.
            epoch: its own; later than every earlier one.
            lost: see the attributes.
            silent: members that are not waited for, since they did not answer before a take-over.
        """
        self.config = config
        self.lost = lost
        self.linger_s = LINGER_S
        self._began_ns = 0
        self._sessions = Sessions()
        self._record = Record(config, ledger or p.Ledger(run_id=""), epoch)
        self._recovery = Recovery(config, self._sessions, lost, silent)
        self._preparation = Preparation(config, self._record, self._sessions, lost)
        self._succession = Succession(config, self._record, self._sessions)
        self._handover = Handover(config, self._record, self._sessions)
        policy = JobPolicy(config.policy)
        self._job = Execution(policy, self._record, self._sessions, self._preparation)
        self.state = State.RECOVERING if self._record.inherited else State.LEADING

    @property
    def ledger(self) -> p.Ledger:
        """What is known of the job."""
        return self._record.ledger

    @property
    def epoch(self) -> int:
        """The one it leads under."""
        return self._record.epoch

    @property
    def policy(self) -> JobPolicy:
        """The job's; another one once this leader has recovered."""
        return self._job.policy

    def handle(self, event: c.Event, now: int) -> list[c.Command]:
        """Take one event at ``now`` (monotonic, ns); return the commands it causes, in order."""
        if self.state is State.DEPOSED:
            return []
        if self.state is State.HANDING_OVER:
            return self._handing_over(event)
        match event:
            case c.Begin():
                return self._begin(now)
            case c.Received(link=link, message=p.Hello() as hello):
                return self._hello(link, hello, now)
            case c.Received(link=link, message=message):
                return self._received(link, message, now)
            case c.Closed(link=link, reason=reason, silent=silent):
                session = self._sessions.on(link)
                return [] if session is None else self._lose(session, reason, now, silent=silent)
            case c.Answered(message=p.MissAnswer() as answer):
                return self._answered(answer)
            case c.Persisted(version=version):
                self._preparation.persisted(version)
                return self._start_if_ready(now)
            case c.Deposed(reason=reason):
                return self._stand_down(reason, "")
            case c.TimerFired():
                return self._timer(event, now)
        return []

    def _begin(self, now: int) -> list[c.Command]:
        self._began_ns = self._preparation.began_ns = now
        recover = [self._recovery.timer()] if self.state is State.RECOVERING else []
        asks = [] if recover else self._ask_missing()
        return [c.SetTimer("lease", 0, self.config.lease_s / 3), *recover, *asks]

    def _feed(self, event: m.Event, now: int) -> list[c.Command]:
        commands = self._job.feed(event, now)
        if self.policy.ended and self.state is State.LEADING:
            self.state = State.ENDED
            more = self._more_may_come(now)
            self.linger_s = LINGER_LEASES * self.config.lease_s if more else LINGER_S
            commands += [c.SetTimer("linger", 0, self.linger_s), *self._done_if_all_gone(now)]
        return commands + self._leave_if_dismissed()

    def _start_if_ready(self, now: int) -> list[c.Command]:
        return self._job.start_if_ready(now) + self._leave_if_dismissed()

    # --- followers come and go ------------------------------------------------------------------

    def _hello(self, link: int, hello: p.Hello, now: int) -> list[c.Command]:
        known = self._sessions.get(hello.node)
        same = known is not None and known.hello.incarnation == hello.incarnation
        if known is not None and known.link is not None and not same:
            reason = (
                f"node {hello.node} has an agent already, which is heard of; give each launcher of "
                "the job its own --node-name"
            )
            return [c.Send(link, p.Refused(reason=reason, taken=True)), c.Close(link)]
        commands = self._catch_up(hello, now)
        if self.state is State.DEPOSED:
            refused = p.Refused(reason="another node leads the job")
            return [*commands, c.Send(link, refused), c.Close(link)]
        if known is not None and same:
            return commands + self._returned(known, link, hello, now)
        return commands + self._newcomer(link, hello, now)

    def _catch_up(self, hello: p.Hello, now: int) -> list[c.Command]:
        """Learn from a follower that knows of later rounds or epochs than this leader."""
        commands: list[c.Command] = []
        known, promised = hello.ledger, hello.promised
        if known is not None:
            promised = max(promised, known.epoch)
            if p.further(known, self.ledger):
                if self.policy.round < 0:
                    commands += self._adopt(known)
                elif known.birth == self.ledger.birth or known.epoch > self.epoch:
                    # Others have gone on without this leader.
                    return self._stand_down("another node leads the job", "")
        if promised > self.epoch:
            commands += self._take_epoch(
                election.next_epoch(promised, self.config.incarnation), now
            )
        return commands

    def _adopt(self, ledger: p.Ledger) -> list[c.Command]:
        """What was taken for a new job had begun before."""
        self._record.adopt(ledger)
        self._preparation.call_off()
        self._job.policy, self._job.quorum = JobPolicy(self.config.policy), True
        self.state = State.RECOVERING if self._record.inherited else State.LEADING
        learn = self._record.learn()  # also for followers of what had been adopted before
        told = [send for each in self._sessions.connected() for send in each.send(learn)]
        older = [order for each in self._sessions for order in self._job.drain_older(each)]
        return [*told, *older, self._recovery.timer()]

    def _take_epoch(self, epoch: int, now: int) -> list[c.Command]:
        """Lead with a later epoch: who follows already is welcomed anew."""
        self._record.take_epoch(epoch)
        commands: list[c.Command] = [self._record.persist()]
        learn = self._record.learn()
        for session in self._sessions:
            session.number_from(epoch)
            commands += self._welcome(session, learn)
        return commands + self._preparation.begin_again(now)

    def _agree(self, now: int) -> list[c.Command]:
        """Go on once enough members follow under the leader's epoch."""
        if self._record.agreed:
            return []
        following = {
            each.voter: each.hello.ledger or p.NO_LEDGER
            for each in self._sessions.connected()
            if each.epoch == self.epoch
        }
        if not self._record.agree(following):
            return []
        learn = self._record.learn()
        told = [send for each in self._sessions.connected() for send in each.again(learn)]
        return [self._record.persist(), *told, *self._preparation.begin_again(now)]

    def _newcomer(self, link: int, hello: p.Hello, now: int) -> list[c.Command]:
        session = Session(hello, link, now)
        session.number_from(self.epoch)
        self._sessions.add(session)
        return self._welcome(session, self._record.learn()) + self._admit(session, now)

    def _returned(self, session: Session, link: int, hello: p.Hello, now: int) -> list[c.Command]:
        was_lost = session.link is None
        commands = self._sessions.reconnect(session, link)
        session.hello, session.heard_ns = hello, now
        commands += self._welcome(session, self._record.learn())
        if was_lost or self.state is State.RECOVERING:
            return commands + self._admit(session, now)
        return commands + self._preparation.returned(session)

    def _welcome(self, session: Session, learn: p.Learn) -> list[c.Command]:
        """What follows is sent in the name of this leader and epoch."""
        own = self.config
        welcome = p.Welcome(
            epoch=self.epoch, leader=own.node, lease_s=own.lease_s, settings=own.settings
        )
        return session.send(welcome) + session.again(learn)

    def _admit(self, session: Session, now: int) -> list[c.Command]:
        """Offer a node to the policy, once nothing runs on it any more."""
        if self.state is State.RECOVERING:
            all_back = self._recovery.all_back(self.ledger)
            return self._recover(now) if all_back else self._job.drain_older(session)
        if session.hello.running:
            return self._job.drain(session) + self._feed(m.NodeReturns(session.node), now)
        session.draining, version = False, self.ledger.version
        commands = self._feed(m.NodeJoined(session.info), now)
        if self.ledger.version == version:
            commands += self._preparation.joined(session)
        return commands + self._look_at_quorum(now)

    def _lose(self, session: Session, reason: str, now: int, *, silent: bool) -> list[c.Command]:
        self._sessions.disconnect(session, silent=silent)
        if self.state is State.ENDED:
            return self._done_if_all_gone(now)
        session.orders.clear()
        if self.state is State.RECOVERING:
            return []
        returns = self._sessions.stood_still(self.config.lease_s, now)
        lost = m.NodeLost(session.node, f"node {session.node} is lost: {reason}", returns)
        return self._feed(lost, now) + self._look_at_quorum(now)

    def _look_at_quorum(self, now: int) -> list[c.Command]:
        """Tell the policy when a quorum is lost or regained."""
        changed = self._job.look_at_quorum() if self.state is State.LEADING else None
        return [] if changed is None else self._feed(changed, now)

    # --- recovery -------------------------------------------------------------------------------

    def _recover(self, now: int) -> list[c.Command]:
        """Go on with the round of the ledger; who is not here is lost."""
        if self.state is not State.RECOVERING:
            return []
        self.state = State.LEADING
        recovery, ledger = self._recovery, self.ledger
        self._job.policy = recovery.policy(ledger)
        commands: list[c.Command] = [self._record.persist()]
        for lost in recovery.losses(ledger):
            commands += self._feed(lost, now)
        for session in recovery.newcomers(ledger):
            commands += self._admit(session, now)
        early, recovery.early = recovery.early, []
        for session, report in early:
            commands += self._reported(session, report, now)
        for event in recovery.idle(ledger):
            commands += self._feed(event, now)
        return commands + self._look_at_quorum(now)

    # --- what followers say ---------------------------------------------------------------------

    def _received(self, link: int, message: p.Message, now: int) -> list[c.Command]:
        session = self._sessions.on(link)
        if session is None:
            return []
        session.heard_ns = now
        match message:
            case p.Renew():
                return self._renewed(session, message, now)
            case p.Miss():
                return self._missed(session, now)
            case p.Prepared(epoch=epoch) if epoch == self.epoch:
                self._preparation.acknowledged(session, message)
                return self._start_if_ready(now)
            case p.Report() if self.state is State.RECOVERING:
                self._recovery.early.append((session, message))
            case p.Report():
                return self._reported(session, message, now)
        return []

    def _renewed(self, session: Session, renew: p.Renew, now: int) -> list[c.Command]:
        record, session.epoch = self._record, renew.epoch
        agreed = self._agree(now)
        session.replaceable = renew.replaceable and renew.round == self.ledger.round
        if not record.confirmed(session.voter, renew.round):
            return agreed + session.beat(record, renew.sent)
        beats = [beat for each in self._sessions.connected() for beat in each.beat(record)]
        told = [record.persist(), *session.beat(record, renew.sent), *beats]
        return [*agreed, *told, *self._look_at_quorum(now)]

    def _missed(self, session: Session, now: int) -> list[c.Command]:
        """It has not heard of this leader for a lease, and looks for one."""
        assert session.link is not None
        close = c.Close(session.link)
        return [
            close,
            *self._lose(session, "it has heard nothing of its coordinator", now, silent=True),
        ]

    def _reported(self, session: Session, report: p.Report, now: int) -> list[c.Command]:
        event = report.event
        if report.number <= session.reported or event.node != session.node:
            return []  # sent again before it was acknowledged, or of another node
        session.reported = report.number
        if isinstance(event, m.NodeStopped):
            session.stopped = event.round
        commands = session.beat(self._record)
        if not session.draining:
            return commands + self._feed(event, now)
        if isinstance(event, m.NodeStopped) and event.round == session.hello.round:
            session.hello = msgspec.structs.replace(session.hello, running=False)
            commands += self._admit(session, now)
        return commands

    # --- timers ---------------------------------------------------------------------------------

    def _timer(self, event: c.TimerFired, now: int) -> list[c.Command]:
        match event.name:
            case "lease":
                again = c.SetTimer("lease", 0, self.config.lease_s / 3)
                return [*self._expire(now), *self._ask_missing(), again]
            case "recover":
                return self._recover(now)
            case "probe" if self._preparation.asked_for is not None:
                return self._probe(now)
            case "linger" if self.state is State.ENDED:
                return [c.Done()]
            case "leave" if self.state is State.LEADING:
                return self._stand_down(LEFT, "")
            case "policy last_call" if (left_s := self._asked_by_others_s(now)) > 0:
                return [c.SetTimer(event.name, event.round, left_s)]
            case name if name.startswith("policy ") and self.state is State.LEADING:
                name, silent = name.removeprefix("policy "), self._preparation.silent
                return self._feed(m.TimerFired(name, event.round, silent), now)
        return []

    def _expire(self, now: int) -> list[c.Command]:
        """Lose the followers whose lease is over."""
        commands: list[c.Command] = []
        for session in self._sessions.silent(self.config.lease_s, now):
            assert session.link is not None
            commands.append(c.Close(session.link))
            reason = f"nothing was heard of it for {self.config.lease_s:g} s"
            commands += self._lose(session, reason, now, silent=True)
        return commands

    def _probe(self, now: int) -> list[c.Command]:
        """While a start is held up: time may have made it possible."""
        commands = self._start_if_ready(now)
        if self._preparation.asked_for is None:
            return commands
        return [*commands, self._preparation.probe(now)]

    # --- other leaders --------------------------------------------------------------------------

    def _ask_missing(self) -> list[c.Command]:
        asks = self.state in {State.LEADING, State.RECOVERING}
        return self._succession.ask(sure=self._is_sure) if asks else []

    def _asked_by_others_s(self, now: int) -> float:
        """How long it takes until a leader that goes on with this job has asked at the endpoint.

        It is what a launcher there waits for that knows of no job, and may have lost its disk.
        """
        if not self.config.takeover or not self.config.node or self.ledger.round >= 0:
            return 0.0
        return self.config.lease_s / 3 + ANSWER_S - (now - self._began_ns) / _NS

    @property
    def _is_sure(self) -> bool:
        return self._job.quorum and self._record.agreed and self.state is State.LEADING

    def _answered(self, answer: p.MissAnswer) -> list[c.Command]:
        leader = self._succession.successor(answer, sure=self._is_sure)
        return self._stand_down("another node leads the job", leader) if leader else []

    def _stand_down(self, reason: str, leader: str) -> list[c.Command]:
        self.state = State.DEPOSED
        return self._succession.stand_down(reason, leader)

    # --- the node of the leader leaves ----------------------------------------------------------

    def _leave_if_dismissed(self) -> list[c.Command]:
        """Go once a round runs without this node, whose launcher waits for that."""
        if self.state is not State.LEADING or self.config.node not in self._job.dismissed:
            return []
        if self.policy.round < 0:
            return self._stand_down(LEFT, "")
        self.linger_s = STAY_S + self.config.lease_s
        commands = [] if self._handover.due else self._handover.leave()
        if not self.policy.running or not self._job.quorum:
            return commands
        if not self.config.takeover:
            return commands + self._stand_down(LEFT, "")
        told = self._handover.begin()
        if told:
            self.state = State.HANDING_OVER
        return commands + told

    def _handing_over(self, event: c.Event) -> list[c.Command]:
        """Go once the next leader has answered, or cannot any more."""
        handover = self._handover
        if isinstance(event, c.Received) and isinstance(event.message, p.Hello):
            return handover.refuse(event.link)
        return self._stand_down(LEFT, handover.address) if handover.is_over(event) else []

    # --- the end --------------------------------------------------------------------------------

    def _done_if_all_gone(self, now: int) -> list[c.Command]:
        if self._sessions.connected() or self._more_may_come(now):
            return []
        return [c.Done()]

    def _more_may_come(self, now: int) -> bool:
        """Whether somebody who has not heard of the end may be looking for this leader."""
        since_ns = now - round(LINGER_LEASES * self.config.lease_s * _NS)
        if self._record.inherited and self._began_ns > since_ns:
            return True  # followers of the leader before
        return any(each.may_return(since_ns) for each in self._sessions)
