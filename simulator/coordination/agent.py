"""An agent as a simulated process: the cores of follower, leader and node, and what joins them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.coordination.ranks import NodeEvent, RankEnded, Ranks
from simulator.coordination.server import Server
from simulator.coordination.setup import ASK_TIMEOUT_NS, READY, address_of
from simulator.virtual import messages as s
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import follower_messages as f
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core.follower import Follower, FollowerState
from undaunted.coordinator.core.progress import Iterations
from undaunted.fault_tolerance.agent import node as n
from undaunted.fault_tolerance.agent.node import Node, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.coordination.cluster import Cluster
    from undaunted.coordinator.core.leader import Leader

_NS = 1_000_000_000
_HANDSHAKE_NS = 5 * _NS
_EVIDENCE_NS = _NS // 5


class Agent:
    """One incarnation of the launcher of a node.

    Attributes:
        seat: node and incarnation.
        outcome: how the job ended for it, "" = it has not.
        ranks: of the last round.
        busy_until: when the last table it was given will have been taken in.
    """

    def __init__(self, cluster: Cluster, config: f.FollowerConfig, leader: Leader | None) -> None:
        self.name = config.node
        self.seat = (config.node, config.incarnation)
        self.outcome = ""
        self.ranks: Ranks | None = None
        self.busy_until = 0
        self.follower = Follower(config)
        self.node = Node()
        self._cluster = cluster
        self._slots = config.slots
        self._server: Server | None = None
        self._waits: Server | None = None  # the launcher, for the leader here
        self._first_leader = leader
        self._dials: dict[int, int] = {}  # connection to link
        self._link: dict[int, int] = {}  # link to connection
        self._dialing = 0
        self._serves: set[int] = set()  # connections of followers
        self._victim = False
        self._verdict = ""
        self._timer_rounds: dict[str, int] = {}
        self._take: dict[type, Callable[[Any, int, list[s.Command]], None]] = {
            s.Started: self._started,
            s.Received: self._received,
            s.TimerFired: self._timer,
            s.Told: self._told,
            s.Accepted: self._accepted,
            s.Asked: self._asked,
            s.Answered: self._answered,
            s.Connected: self._connected,
            s.ConnectFailed: self._connect_failed,
            s.Closed: self._closed,
        }

    @property
    def leads(self) -> bool:
        """Whether the leader runs here."""
        return self._server is not None

    @property
    def follows(self) -> int:
        """Epoch of the leader it follows now, 0 = none."""
        follower = self.follower
        return follower.knows.epoch if follower.state is FollowerState.FOLLOWING else 0

    @property
    def knows_round(self) -> int:
        """The last round it knows to have begun, whether or not it had a part in it; -1 = none."""
        ledger = self.follower.knows.ledger
        return -1 if ledger is None else ledger.round

    # --- events ---------------------------------------------------------------------------------

    def handle(self, event: s.Event, now: int) -> list[s.Command]:
        """See `simulator.virtual.network.Process`."""
        out: list[s.Command] = []
        self._take[type(event)](event, now, out)
        if self._server is not None and self._server.over:
            self._server = None
            self._serves.clear()
        if self.outcome and not any(isinstance(command, s.Exit) for command in out):
            self._exit_if_over(out)
        return out

    def _started(self, _event: s.Started, now: int, out: list[s.Command]) -> None:
        out.append(s.Listen(address_of(self.name)))
        if self._first_leader is not None:
            self._lead(self._first_leader, now, out)
        self._follow(f.Begin(), now, out)

    def _received(self, event: s.Received, now: int, out: list[s.Command]) -> None:
        connection, message = event.connection, event.message
        link = self._dials.get(connection)
        if link is not None:
            if message is READY:
                out.append(s.CancelTimer("handshake"))
                self._follow(f.Opened(link), now, out)
            else:
                self._follow(f.Received(link, message), now, out)
        elif connection in self._serves:
            if self._server is not None:
                out += self._server.received(connection, message, now)
        elif isinstance(message, p.Hello):
            self._greeted(connection, message, now, out)

    def _greeted(self, connection: int, hello: p.Hello, now: int, out: list[s.Command]) -> None:
        if self._server is None:
            reason = f"node {self.name} does not coordinate the job"
            refused = p.Refused(reason=reason, leader=self.follower.leader)
            out += [s.Send(connection, refused), s.Close(connection)]
            return
        self._serves.add(connection)
        out += self._server.received(connection, hello, now)

    def _accepted(self, event: s.Accepted, _now: int, out: list[s.Command]) -> None:
        out.append(s.Send(event.connection, READY))

    def _asked(self, event: s.Asked, now: int, out: list[s.Command]) -> None:
        self._follow(f.Asked(event.question, event.message), now, out)

    def _answered(self, event: s.Answered, now: int, out: list[s.Command]) -> None:
        kind, _, rest = event.label.partition(" ")
        if kind == "follower":
            self._follow(f.Answered(rest, event.message), now, out)
        elif self._server is not None:
            out += self._server.answered(event, now)

    def _connected(self, event: s.Connected, _now: int, out: list[s.Command]) -> None:
        link = int(event.label.removeprefix("dial "))
        if link != self._dialing:  # hung up before it stood
            out.append(s.Close(event.connection))
            return
        self._dials[event.connection] = link
        self._link[link] = event.connection

    def _connect_failed(self, event: s.ConnectFailed, now: int, out: list[s.Command]) -> None:
        link = int(event.label.removeprefix("dial "))
        self._follow(f.Closed(link, event.reason), now, out)

    def _closed(self, event: s.Closed, now: int, out: list[s.Command]) -> None:
        connection = event.connection
        link = self._dials.pop(connection, None)
        if link is not None:
            del self._link[link]
            self._follow(f.Closed(link, event.reason), now, out)
        elif connection in self._serves:
            self._serves.discard(connection)
            if self._server is not None:
                out += self._server.closed(connection, event.reason, now)

    def _timer(self, event: s.TimerFired, now: int, out: list[s.Command]) -> None:
        kind, _, rest = event.name.partition(" ")
        if kind == "follower":
            self._follow(f.TimerFired(rest), now, out)
        elif kind == "leader":
            if self._server is not None:
                out += self._server.timer(event.name, now)
        elif kind == "node":
            self._run_node(n.TimerFired(rest, self._timer_rounds[rest]), now, out)
        elif kind == "handshake":
            connection = self._link.pop(self._dialing, None)
            if connection is not None:
                del self._dials[connection]
                out.append(s.Close(connection))
            self._follow(f.Closed(self._dialing, "no answer within 5 s"), now, out)
        elif kind == "wait":
            self._exit(out)
        elif kind == "evidence":
            self._run_node(n.HangJudged(self.node.round, (0,), "rank hangs"), now, out)

    def _told(self, event: s.Told, now: int, out: list[s.Command]) -> None:
        match event.what:
            case RankEnded(round=number, local_rank=rank, code=code, victim=victim):
                if number == self.node.round:
                    self._victim = victim
                    self._run_node(n.RankExited(rank, code), now, out)
            case NodeEvent(round=number, event=happened):
                if number == self.node.round:
                    self._run_node(happened, now, out)
            case m.Preempted() | m.ExclusionRequested() as wish:
                self._report(wish, now, out)
            case f.Prepare(round=number, version=version):
                table = f.TableKnown(number, version, self.name, 1234)
                self._follow(table, now, out)

    # --- follower -------------------------------------------------------------------------------

    def _follow(self, event: f.Event, now: int, out: list[s.Command]) -> None:
        for command in self.follower.handle(event, now):
            # Most are of these kinds, which a match would find in three times the time.
            if isinstance(command, f.Send):
                if command.link in self._link:
                    out.append(s.Send(self._link[command.link], command.message))
            elif isinstance(command, f.SetTimer):
                out.append(s.SetTimer("follower " + command.name, round(command.delay_s * _NS)))
            elif isinstance(command, f.Ask):
                label = "follower " + command.node
                out.append(s.Ask(label, command.address, command.message, ASK_TIMEOUT_NS))
            elif isinstance(command, f.Answer):
                out.append(s.Answer(command.question, command.message))
            else:
                self._obey_follower(command, now, out)

    def _obey_follower(self, command: f.Command, now: int, out: list[s.Command]) -> None:
        match command:
            case f.Dial(link=link, address=address):
                self._dialing = link
                out.append(s.Connect(f"dial {link}", address, _HANDSHAKE_NS))
                out.append(s.SetTimer("handshake", _HANDSHAKE_NS))
            case f.Hangup(link=link):
                self._hang_up(link, out)
            case f.Say(text=text):
                self._cluster.note(self.name, text)
            case _:
                self._obey_about_the_job(command, now, out)

    def _obey_about_the_job(self, command: f.Command, now: int, out: list[s.Command]) -> None:
        match command:
            case f.Prepare():
                self._cluster.reserve_port(self, command)
            case f.Deliver(command=ordered):
                self._ordered(ordered, now, out)
            case f.StopRanks(round=number, grace_s=grace_s, signal=signal):
                self._run_node(n.StopRound(number, grace_s, signal), now, out)
            case f.Lead():
                leader = self._cluster.successor(self.seat, command)
                self._lead(leader, now, out)
            case f.StandDown():
                self._stand_down(out)
            case f.Leave(reason=reason):
                self._end("preempted", reason, now, out)
            case f.GiveUp(reason=reason):
                self._end("gave up", reason, now, out)

    def _hang_up(self, link: int, out: list[s.Command]) -> None:
        connection = self._link.pop(link, None)
        if link == self._dialing:
            self._dialing = 0
            out.append(s.CancelTimer("handshake"))
        if connection is not None:
            del self._dials[connection]
            out.append(s.Close(connection))

    def _ordered(self, command: m.NodeCommand, now: int, out: list[s.Command]) -> None:
        match command:
            case m.Start(round=number):
                ledger = self.follower.knows.ledger
                assert ledger is not None
                self._cluster.checker.begin(self.seat, ledger)
                self._run_node(n.StartRound(number, self._slots), now, out)
            case m.Stop(round=number, grace_s=grace_s, signal=signal):
                self._run_node(n.StopRound(number, grace_s, signal), now, out)
            case m.End(outcome=outcome, reason=reason):
                self._end(outcome.value, reason, now, out)
            case m.Decided(reason=text) | m.Blamed(line=text) | m.Say(text=text):
                self._cluster.note(self.name, f"{type(command).__name__.lower()}: {text}")

    # --- leader ---------------------------------------------------------------------------------

    def _lead(self, leader: Leader, now: int, out: list[s.Command]) -> None:
        self._stand_down(out)
        self._server = Server(self._cluster, self.name, leader)
        self._cluster.checker.leads(self.seat, leader.epoch, takeover=bool(leader.lost))
        out += self._server.begin(now)

    def _stand_down(self, out: list[s.Command]) -> None:
        if self._server is not None:
            out += self._server.drop()
            self._server = None
            self._serves.clear()

    # --- node -----------------------------------------------------------------------------------

    def _run_node(self, event: n.Event, now: int, out: list[s.Command]) -> None:
        if isinstance(event, n.StopRound) and self.ranks is not None:
            self._cluster.checker.stopping(self.seat, event.round)
        for command in self.node.handle(event):
            self._obey_node(command, now, out)

    def _obey_node(self, command: n.Command, now: int, out: list[s.Command]) -> None:
        number, ranks = self.node.round, self.ranks
        match command:
            case n.Spawn():
                self._victim, self._verdict = False, ""
                self.ranks = Ranks(self._cluster, self, number, self._slots)
                self.ranks.spawn()
            case n.SetTimer(name=name, delay_s=delay_s):
                self._timer_rounds[name] = number
                out.append(s.SetTimer(f"node {name}", round(delay_s * _NS)))
            case n.SignalRanks(local_ranks=local, signal=signal) if ranks is not None:
                ranks.signal(local, signal)
            case n.SignalTree(signal=signal) if ranks is not None:
                ranks.signal_all(signal)
            case n.GatherEvidence():
                out.append(s.SetTimer("evidence", _EVIDENCE_NS))
            case n.JudgeCrash(final=final):
                self._judge(now, out, final=final)
            case n.ReportFailed(detail=detail):
                text = f"node {self.name}: {detail}"
                failed = m.NodeFailed(self.name, number, text, victim=self._victim)
                self._report(failed, now, out)
            case n.ReportFinished():
                self._report(m.NodeFinished(self.name, number), now, out)
            case n.ReportStopped(all_ok=all_ok):
                stopped = m.NodeStopped(
                    self.name,
                    number,
                    all_ok=all_ok,
                    iterations=Iterations(last=now // _NS),
                    verdict=self._verdict,
                    victim=self._victim,
                )
                self._report(stopped, now, out)

    def _judge(self, now: int, out: list[s.Command], *, final: bool) -> None:
        if self._victim and not final:
            self._run_node(n.CrashUnclear(), now, out)
        else:
            self._verdict = f"a rank of node {self.name} failed"

    def _report(self, event: m.NodeEvent, now: int, out: list[s.Command]) -> None:
        self._follow(f.Tell(event), now, out)

    # --- the end --------------------------------------------------------------------------------

    def _end(self, outcome: str, reason: str, now: int, out: list[s.Command]) -> None:
        self.outcome = outcome
        self._cluster.ended(self, reason)
        if self.node.state is not State.IDLE:
            self._run_node(n.StopRound(self.node.round, 2.0, 15), now, out)

    def _exit_if_over(self, out: list[s.Command]) -> None:
        if self.follower.state is not FollowerState.ENDED:
            return
        if self.node.state is not State.IDLE:
            return  # as long as processes are left
        server = self._server
        if self._waits is not None and self._waits is server:
            return
        if server is None or not server.is_needed:
            self._exit(out)
        else:
            self._waits = server
            out.append(s.SetTimer("wait", round((server.leader.linger_s + 1) * _NS)))

    def _exit(self, out: list[s.Command]) -> None:
        out.append(s.Exit())
        self._cluster.exited(self)
