"""Orders of a job of several nodes: they come from a leader, which may be this node.

Everything about connections, leases and elections is in `undaunted.coordinator`; here an agent's
reports become messages and messages become orders. Where the nodes have a store, etcd says which
launcher leads (`coordinator.etcd.candidacy`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.deadline import wait_for
from undaunted.base.timers import Timers
from undaunted.coordinator.etcd.candidacy import Candidacy, Launcher
from undaunted.coordinator.etcd.store import parse_store
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.follower import Follower, FollowerState
from undaunted.coordinator.lead.leader import LeaderState
from undaunted.coordinator.lead.times import (
    ANSWER_S,
    REDIAL_FIRST_S,
    REDIAL_LONGEST_S,
    SEEK_QUIETLY_S,
    Durations,
)
from undaunted.coordinator.policy import messages as job
from undaunted.coordinator.policy.placement import name_some
from undaunted.coordinator.protocol import Answer, Miss
from undaunted.coordinator.service.asking import (
    anew,
    answer_of,
    goes_on,
    led_by_others,
    left_behind,
    living,
)
from undaunted.coordinator.service.following import Following
from undaunted.coordinator.service.leading import Leading
from undaunted.coordinator.service.participant import Participant
from undaunted.coordinator.service.register import RegisterError
from undaunted.coordinator.wire.address import (
    LOOK_UP_S,
    Address,
    first_own_address,
    is_here,
    own_address,
    parse_address,
)
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.credentials import TlsError, TokenError
from undaunted.coordinator.wire.sockets import resolve
from undaunted.fault_tolerance import cycle_info, job_access
from undaunted.fault_tolerance.agent.status import of_follower, of_leader
from undaunted.fault_tolerance.control_socket import JobStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from undaunted.base.recent import Recent
    from undaunted.coordinator.protocol import Ledger
    from undaunted.coordinator.wire.network import Network
    from undaunted.fault_tolerance.agent.inprocess import InProcess
    from undaunted.fault_tolerance.agent.surroundings import Surroundings
    from undaunted.fault_tolerance.agent.tasks import Turns
    from undaunted.fault_tolerance.nodes_config import Nodes
    from undaunted.fault_tolerance.run_config import RunConfig

_NS = 1_000_000_000
_HOST_AGAIN_S = 1.0
_PAST_S = 5.0  # launchers of a job do not start at the same moment
_MOST_EARLY = 64


class SharedOrders:
    """One node's part in the coordination of its job; see `orders.Orders`.

    Args:
        config: the run; ``config.nodes`` is not None.
        surroundings: network, disk and chance.
        turns: of the agent.
        obey: carries out an order.
        reserve: reserves a port for the store of rank 0, returns its number; raises OSError.
        say: shows a line.
        inprocess: goes along with what nodes say to each other.
    """

    def __init__(
        self,
        config: RunConfig,
        surroundings: Surroundings,
        turns: Turns,
        obey: Callable[[job.Command], None],
        reserve: Callable[[], int],
        say: Callable[[str], None],
        inprocess: InProcess,
    ) -> None:
        assert config.nodes is not None
        self._surroundings = surroundings
        self._config, self._nodes = config, config.nodes
        self._turns, self._obey, self._reserve, self._say = turns, obey, reserve, say
        self._inprocess = inprocess
        self._cycle_info = cycle_info.of(config.cycle_info, say)
        self._incarnation = self._surroundings.incarnation
        self._settings = job_access.settings(config, config.nodes)
        self._network: Network | None = None  # before it is known how others reach this machine
        self._participant = Participant()
        self._timers = Timers()
        self._tasks: set[asyncio.Task[None]] = set()
        self._endpoint = next(iter(self._nodes.endpoints), "")
        self._ledger = self._surroundings.ledger(self._endpoint, say)
        self._wanted_port = int(self._endpoint.rpartition(":")[2] or 0)
        self._address = ""  # where the others reach this launcher
        self._not_listening = ""  # why this host does not serve, and nobody else does
        self._knows_who_listens = False
        # Orders of people, before this node looks for the leader.
        self._early: deque[job.NodeEvent] = deque(maxlen=_MOST_EARLY)
        self._candidacy: Candidacy | None = None  # where etcd says who leads
        self._over = False
        self._goes_on = False  # the job, under another leader than this node
        self._led = asyncio.Event()  # the others do not need the leader here any more

    # --- what the agent calls -------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Return whether this node leads the job now."""
        return self._participant.leading is not None

    @property
    def follower(self) -> Follower | None:
        """The follower of this node, None = it does not look for a leader yet."""
        following = self._participant.following
        return None if following is None else following.follower

    @property
    def members(self) -> frozenset[str]:
        """Nodes of the last round, as the follower here knows it."""
        table = () if self.follower is None else self.follower.knows.ledger.table
        return frozenset(seat.node for seat in table)

    @property
    def ranks_outlive_s(self) -> float:
        """For how long ranks here may live if this process stands still, 0 = there is no limit."""
        follower = self.follower
        return 0.0 if follower is None else follower.ranks_outlive_s(self._reach.now_ns())

    def status(self) -> JobStatus:
        """Return what the leader knows, if it is here; else what this node has heard."""
        leading, following = self._participant.leading, self._participant.following
        if leading is not None:
            return of_leader(leading.leader, self._reach.now_ns(), leading.pause_left_s)
        if following is not None:
            return of_follower(following.follower, self._reach.now_ns())
        return JobStatus(role="follower", state="starting")

    def recent(self) -> dict[str, Recent]:
        """Return what follower, leader and policy have done, as far as they are here."""
        leading, following = self._participant.leading, self._participant.following
        found = {} if following is None else {"follower": following.recent}
        if leading is not None:
            found |= {"leader": leading.recent, "policy": leading.leader.recent}
        return found

    def serve_questions(self, answer: Callable[[bytes, str], Awaitable[bytes]]) -> None:
        """Answer questions that come over the port."""
        self._participant.serve_questions(self._config.node, answer)

    async def pass_on(self, order: bytes, by: str) -> bool:
        """Have another node report it, where this one leads."""
        leading = self._participant.leading
        return leading is not None and isinstance(await leading.pass_on_order(order, by), Answer)

    async def join(self) -> None:
        """Listen, lead if this is the host, and look for the leader."""
        try:
            await self._begin()
        except (WireError, TokenError, TlsError, RegisterError, ValueError) as error:
            self._leave(job.Outcome.FAILED, str(error))

    async def _begin(self) -> None:
        await self._find_own_place()
        network = self._network = await self._surroundings.network(self._nodes)
        port = await self._listen()
        address = self._address = str(Address(self._nodes.address, port))
        if self._nodes.store:
            self._let_etcd_decide(address)
            return
        attempt = job_access.attempt(os.environ)
        known = await left_behind(self._ledger, self._config.run_id, network, self._say, attempt)
        members = [seat.address for seat in known.table if seat.address and known.run_id]
        led = led_by_others(known, self._config.node)
        may_lead = self._nodes.is_host and not led
        if may_lead and port == self._wanted_port:
            self._lead_as_host(known)
        self._follow(address, [*self._nodes.endpoints, *members])
        if may_lead and port != self._wanted_port:
            self._try_again_to_host(known)
        elif self._nodes.is_host and led:
            self._look_at_members_again(known)

    async def _find_own_place(self) -> None:
        """Wait until it is known whether the endpoint is here, and how others reach this machine.

        The name of a machine that is still to come may not be known yet.

        Raises:
            WireError: it is not known in time.
        """
        nodes, loop = self._nodes, asyncio.get_running_loop()
        endpoints = parse_store(nodes.store).endpoints if nodes.store else nodes.endpoints[:1]
        limit_s, pause_s, said = nodes.first_round_timeout_s, REDIAL_FIRST_S, ""
        began = loop.time()
        while not nodes.address or (nodes.is_host is None and not nodes.store):
            asked = (_unknown(endpoint, not nodes.address) for endpoint in endpoints)
            problem, *others = await asyncio.gather(*asked)
            if problem and all(others):
                waited_s = loop.time() - began
                if waited_s >= limit_s:
                    where = nodes.store or f"--rdzv-endpoint {', '.join(nodes.endpoints)}"
                    raise WireError(f"no coordinator for {limit_s:g} s ({where}): {problem}")
                if waited_s >= SEEK_QUIETLY_S and problem != said:
                    said = problem
                    self._say(f"looking for the coordinator (up to {limit_s:g} s): {problem}")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, REDIAL_LONGEST_S)
                continue
            nodes = await asyncio.to_thread(_placed, nodes, endpoints)
            left_s = max(limit_s - (loop.time() - began), nodes.lease_s)
            self._nodes = msgspec.structs.replace(nodes, first_round_timeout_s=left_s)

    def post(self, event: job.NodeEvent) -> None:
        """Report something to the leader."""
        if self._participant.following is not None:
            self._participant.following.tell(event)
        elif isinstance(event, job.NodeUnhealthy):
            self._leave(job.Outcome.EXCLUDED, f"this node is unhealthy: {event.reason}")
        elif isinstance(event, job.Preempted):
            self._leave(job.Outcome.PREEMPTED, f"the launcher received {event.signal_name}")
        else:
            self._early.append(event)

    async def close(self) -> None:
        """Release what it holds; a leader first lets the others know how they go on, or end."""
        self._timers.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._participant.following is not None:
            await self._participant.following.close()
        leading = self._participant.leading
        if leading is not None and leading.is_needed:
            with contextlib.suppress(TimeoutError):
                await wait_for(self._led.wait(), leading.leader.linger_s + 1)
        await self._participant.close("the launcher ends")
        self._ledger.close(remove=self._over and not self._goes_on)
        if self._candidacy is not None:
            await self._candidacy.close()
        if self._cycle_info is not None:
            self._cycle_info.close()

    # --- set-up ---------------------------------------------------------------------------------

    async def _listen(self) -> int:
        """Listen where the others expect it; on another port where two processes share a host."""
        if self._nodes.beside_host:
            return await self._listen_on(0)
        try:
            return await self._listen_on(self._wanted_port)
        except WireError as error:
            if error.number != errno.EADDRINUSE:
                raise
        return await self._listen_on(0)

    @property
    def _reach(self) -> Network:
        assert self._network is not None
        return self._network

    async def _listen_on(self, port: int) -> int:
        nodes = self._nodes.max_nodes
        return await self._participant.listen(self._reach, port, nodes=nodes, say=self._say)

    def _try_again_to_host(self, known: Ledger) -> None:
        """Somebody has the port: a launcher or coordinator of this job, or what ends in a moment.

        Two launchers may share a host; one serves both. It is another job's if it never welcomes.
        """
        self._timers.set("host", _HOST_AGAIN_S, lambda: self._start(self._host_again(known)))

    def _look_at_members_again(self, known: Ledger, since_ns: int = 0) -> None:
        """Members of the earlier start live: they find a leader, or too few of them are left.

        ``since_ns``: they are too few since then, 0 = they were enough.
        """
        again = partial(self._begin_anew_if_too_few, known, since_ns)
        self._timers.set("host", self._nodes.lease_s / 2, lambda: self._start(again()))

    async def _begin_anew_if_too_few(self, known: Ledger, since_ns: int) -> None:
        """Lead the job from its beginning, once they were too few for a while."""
        answers = await living(known, self._reach)
        if not self._seeks:
            return
        now = self._reach.now_ns()
        since_ns = 0 if goes_on(known, answers) else since_ns or now
        lease_s = self._nodes.lease_s
        if not since_ns or now - since_ns < round((lease_s + Durations(lease_s).elected_s) * _NS):
            self._look_at_members_again(known, since_ns)
            return
        left = name_some(node for node, _ in answers) or "none"
        all_of = {*map(register.voter, known.table), *register.members(known)}
        of = f"{len(answers)} of {len(all_of)} launchers of round {known.round}"
        self._say(f"the job begins anew: {of} are left ({left}), too few to go on")
        if self._participant.port == self._wanted_port:
            self._lead_as_host(anew(known))
        else:
            await self._host_again(anew(known))

    @property
    def _seeks(self) -> bool:
        following = self._participant.following
        return following is not None and following.follower.state is FollowerState.SEEKING

    async def _host_again(self, known: Ledger) -> None:
        if not self._seeks:
            self._not_listening, self._knows_who_listens = "", False
            return
        try:
            await self._listen_on(self._wanted_port)
        except WireError as error:
            await self._say_not_listening(error)
            self._try_again_to_host(known)
        else:
            self._not_listening, self._knows_who_listens = "", False
            if self._seeks:  # it may have found a leader while it waited for the port
                self._lead_as_host(known)

    async def _say_not_listening(self, error: WireError) -> None:
        if self._knows_who_listens:
            return
        self._knows_who_listens = True
        why = os.strerror(error.number).lower() if error.number else str(error)
        self._not_listening = f"cannot listen at {self._endpoint}: {why}"
        if error.number == errno.EADDRINUSE and await self._is_refused():
            self._not_listening = (
                ""  # the port is that of a coordinator; why not, is said as elsewhere
            )
            return
        remedy = "End what has the port, or give all launchers another one (--rdzv-endpoint)"
        self._say(f"{self._not_listening}; trying again every second. {remedy}")

    async def _is_refused(self) -> bool:
        """Whether a coordinator listens at the endpoint that does not want this launcher."""
        question = Miss(node="", incarnation="", epoch=0)
        try:
            await answer_of(self._endpoint, question, self._reach, timeout_s=ANSWER_S)
        except WireError as error:
            return error.refused
        return False

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _let_etcd_decide(self, address: str) -> None:
        launcher = Launcher(
            self._config.node,
            self._incarnation,
            address,
            self._config.run_id,
            job_access.attempt(os.environ),
            self._nodes.lease_s,
        )
        self._candidacy = Candidacy(
            launcher,
            self._surroundings.register(self._nodes, address),
            self._participant,
            self._reach,
            self._lead,
            self.give_up,
            self._say,
        )
        self._follow(address, [])
        self._candidacy.begin()

    def _lead_as_host(self, known: Ledger) -> None:
        nodes = self._nodes
        if nodes.min_nodes < nodes.max_nodes < register.FEWEST:
            self._say(
                f"if node {self._config.node} is lost, no other one takes over: it takes "
                f"{register.FEWEST} launchers, --coordinator-store, or undaunted coordinator on "
                "another host"
            )
        self._lead(register.next_epoch(known.epoch, self._incarnation), known, "")

    def _lead(
        self,
        epoch: int,
        ledger: Ledger,
        lost: str,
        silent: tuple[str, ...] = (),
        stops_s: float = 0.0,
        others_stop_s: float | None = None,
    ) -> None:
        nodes = self._nodes
        self._led.clear()
        config = job_access.leader_config(
            self._config,
            nodes,
            self._surroundings.policy(nodes),
            self._incarnation,
            node=self._config.node,
            takeover=nodes.takeover and not nodes.store,
            address=self._address,
            endpoints=self._elsewhere(),
            store=bool(nodes.store),
            program=Path(self._config.target).name,
        )
        about = (ledger, epoch, lost, silent, stops_s, others_stop_s)
        leader = self._surroundings.leader(config, *about)
        leading = Leading(
            leader,
            self._reach,
            keep=(self._candidacy or self._ledger).keep,
            done=lambda _: self._leading_done(leading),  # the follower finds its successor
            watch=None if self._cycle_info is None else self._cycle_info.follow(leader),
            say=self._say,
            beside=self._inprocess.beside_leader,
        )
        self._participant.lead(leading)

    def _elsewhere(self) -> tuple[str, ...]:
        """Endpoints at which another launcher may lead the same job."""
        nodes = self._nodes
        if nodes.store or not nodes.takeover:
            return ()
        return tuple(nodes.endpoints[1:] if nodes.is_host else nodes.endpoints)

    def _follow(self, address: str, endpoints: list[str]) -> None:
        config, nodes = self._config, self._nodes
        follower = Follower(
            c.FollowerConfig(
                node=config.node,
                incarnation=self._incarnation,
                slots=config.nproc_per_node,
                endpoints=tuple(dict.fromkeys(endpoints)),
                address=address if nodes.takeover or nodes.store else "",
                infra_rank=nodes.infra_rank,
                domain=nodes.domain,
                group=nodes.group,
                lease_s=nodes.lease_s,
                away_timeout_s=nodes.away_timeout_s,
                term_timeout_s=config.term_timeout_s,
                give_up_s=nodes.join_timeout_s,
                first_give_up_s=nodes.first_round_timeout_s,
                store=nodes.store,
                settings=self._settings,
                program=Path(config.target).name,
            )
        )
        self._participant.following = Following(follower, self._reach, self, self._inprocess)
        self._participant.following.begin()
        while self._early:
            self._participant.following.tell(self._early.popleft())
        self._timers.set("past", _PAST_S, lambda: self._start(self._look_at_past()))

    async def _look_at_past(self) -> None:
        """Nobody answers: perhaps the job is over."""
        if not self._seeks:
            return
        if ended := await asyncio.to_thread(self._surroundings.last_end):
            self._say(ended)

    # --- what the follower wants (see `following.Node`) -----------------------------------------

    def prepare(self, command: c.Prepare) -> None:
        """Reserve what the round needs of this node, in the agent's turn."""
        self._turns.take(partial(self._prepare, command))

    def deliver(self, command: job.NodeCommand) -> None:
        """Carry out what the leader says, in the agent's turn."""
        self._turns.take(partial(self._take, command))

    def stop_ranks(self, stop: c.StopRanks) -> None:
        """Stop the round as if the leader had said so."""
        node = self._config.node
        order = job.Stop(node, stop.round, stop.reason, stop.grace_s, stop.signal)
        self._turns.take(partial(self._obey, order))

    def lead(self, command: c.Lead) -> None:
        """Take over."""
        self._say(f"this node takes over the coordination of the job from node {command.lost}")
        stops = (command.stops_s, command.others_stop_s)
        self._lead(command.epoch, command.ledger, command.lost, command.silent, *stops)

    def stand_down(self) -> None:
        """Somebody else leads."""
        self._participant.stand_down()

    def missed(self, missed: c.Missed) -> None:
        """The leader cannot be reached: this node may be the next one."""
        if self._candidacy is not None:
            self._candidacy.missed(missed)

    def found(self) -> None:
        """There is a leader."""
        if self._candidacy is not None:
            self._candidacy.found()

    def leave(self, reason: str) -> None:
        """End, since the launcher got a signal to stop."""
        self._leave(job.Outcome.PREEMPTED, reason)

    def give_up(self, reason: str, *, lost: bool = False) -> None:
        """End, since there is nobody to follow, or nobody any more."""
        reasons = filter(None, (reason, self._not_listening))
        outcome = job.Outcome.TOO_FEW_NODES if lost else job.Outcome.FAILED
        self._leave(outcome, "; ".join(reasons))

    def say(self, text: str) -> None:
        """Show a line."""
        self._say(text)

    # --- leaves ---------------------------------------------------------------------------------

    def _take(self, command: job.NodeCommand) -> None:
        if isinstance(command, job.End):
            self._over = True
            command = msgspec.structs.replace(command, round=self._last_round())
        if self._over and self._candidacy is not None:
            self._candidacy.node_is_done()
        self._obey(command)

    def _prepare(self, table: c.Prepare) -> None:
        """Reserve what the table needs of this node, and acknowledge it; refuse it otherwise."""
        address, port = "", 0
        if table.group_rank == 0:
            try:
                port = self._reserve()
            except OSError as error:
                problem = error.strerror or str(error)
                self.post(job.NodeUnhealthy(self._config.node, self._last_round(), problem))
                return
            address = self._nodes.address
        assert self._participant.following is not None
        known = c.TableKnown(table.round, table.version, address, port)
        self._participant.following.table_known(known)

    def _leave(self, outcome: job.Outcome, reason: str) -> None:
        """End without an order."""
        end = job.End(self._config.node, outcome, reason, self._last_round(), alone=True)
        self._turns.take(partial(self._obey, end))

    def _last_round(self) -> int:
        following = self._participant.following
        return -1 if following is None else following.follower.knows.ledger.round

    def _leading_done(self, leading: Leading) -> None:
        if self._participant.leading is not leading:
            return
        self._participant.leading = None
        self._goes_on = leading.leader.state is LeaderState.DEPOSED
        if self._candidacy is not None:
            self._candidacy.leading_is_over()
        self._led.set()


async def _unknown(endpoint: str, route: bool) -> str:
    """Why the name of an endpoint cannot be looked up, "" = it can; ``route``: and reached."""
    address = parse_address(endpoint)
    try:
        await resolve(address, LOOK_UP_S)
    except OSError as error:
        return str(error)
    try:
        if route:
            await asyncio.to_thread(own_address, *address)
    except OSError as error:
        return f"there is no route to {endpoint}: {error.strerror or error}"
    return ""


def _placed(nodes: Nodes, endpoints: Sequence[str]) -> Nodes:
    """Return what the launcher knows of the other nodes, once a name of these endpoints is known.

    Raises:
        WireError: they cannot be reached from here, and will not be.
    """
    here = is_here(parse_address(nodes.endpoints[0]).host) if nodes.endpoints else False
    is_host = here if nodes.is_host is None else nodes.is_host
    try:
        address = nodes.address or first_own_address(endpoints)
    except OSError as error:
        raise WireError(f"{', '.join(endpoints)}: {error.strerror or error}") from None
    beside_host = bool(here) and not is_host
    return msgspec.structs.replace(nodes, address=address, is_host=is_host, beside_host=beside_host)
