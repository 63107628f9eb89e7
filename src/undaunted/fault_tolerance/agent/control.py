"""Answers questions to this launcher, from here or another machine; see docs/design/ctl.md.

Nothing in here decides: an order becomes an event of the job policy, and its answer is what the
policy makes of it.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.deadline import wait_for
from undaunted.base.recent import all_lines
from undaunted.base.text import format_duration
from undaunted.coordinator.policy import messages as job
from undaunted.fault_tolerance import control_socket as s
from undaunted.fault_tolerance.agent import node as m
from undaunted.fault_tolerance.agent.node import LOOKS_BY_HAND
from undaunted.fault_tolerance.agent.status import (
    limits_in_force,
    limits_in_words,
    rank_status,
    recordings_of,
    stacks_of,
)
from undaunted.fault_tolerance.control_server import ControlServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.attribution.evidence import RankEvidence
    from undaunted.attribution.hang import RankObservation
    from undaunted.base.recent import Recent
    from undaunted.fault_tolerance.agent.orders import Orders
    from undaunted.fault_tolerance.agent.ranks import Ranks
    from undaunted.fault_tolerance.run_config import RunConfig

DECIDE_S = 5.0  # for what comes of an order
LOOK_S = 5.0  # for the ranks to be looked at


class Control:
    """The socket and the answers.

    Args:
        config: the run.
        version: of this launcher.
        node: its state machine.
        recent: what that has done.
        ranks: of the node.
        orders: get what is ordered, and who asks from elsewhere.
        post: takes events for the node.
        say: shows a line.
    """

    def __init__(
        self,
        config: RunConfig,
        version: str,
        node: m.Node,
        recent: Recent,
        ranks: Ranks,
        orders: Orders,
        post: Callable[[m.Event], None],
        say: Callable[[str], None],
    ) -> None:
        self._config, self._version = config, version
        self._node, self._recent = node, recent
        self._ranks = ranks
        self._orders, self._post = orders, post
        self._server = ControlServer(
            config.run_dir, config.run_id, config.node, version, self.answer, say
        )
        self._looking = asyncio.Lock()  # one look after the other
        # Who waits for what comes of an order.
        self._waiting: list[tuple[str, asyncio.Future[s.Decision]]] = []

    # --- life -----------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Begin to answer."""
        self._orders.serve_questions(self.answer)
        await self._server.open()

    async def close(self) -> None:
        """End every connection, and remove the socket."""
        await self._server.close()

    # --- answers --------------------------------------------------------------------------------

    async def answer(self, data: bytes, by: str) -> bytes:
        """Answer one question; ``by`` names who asks. Takes 5 s at most."""
        return await s.answered(self._config.node, data, partial(self._reply, by=by))

    async def _reply(self, question: s.Question, by: str) -> bytes:
        """Return the body of the answer. What may be long is written down in a thread.

        Raises:
            ValueError: it cannot be answered; the message says why.
        """
        match question:
            case s.Status():
                return msgspec.json.encode(self._status())
            case s.Stacks():
                seen, _ = await self._look(recordings=False)
                return await asyncio.to_thread(lambda: msgspec.json.encode(stacks_of(seen)))
            case s.Flight():
                _, looked = await self._look(recordings=True)
                return await asyncio.to_thread(lambda: msgspec.json.encode(recordings_of(looked)))
            case s.Dump():
                kept = {name: one.copy() for name, one in self._machines().items()}
                return await asyncio.to_thread(all_lines, kept, s.MOST_ANSWERED // 2)
            case _:
                return msgspec.json.encode(await self._order(question, by))

    def _status(self) -> s.NodeStatus:
        ranks, now_ns = self._ranks.now(), time.monotonic_ns()
        return s.NodeStatus(
            node=self._config.node,
            pid=os.getpid(),
            version=self._version,
            run_id=self._config.run_id,
            state=self._node.state.name.lower(),
            round=self._node.round,
            job=self._orders.status(),
            ranks=[rank_status(each, now_ns) for each in ranks],
            limits=limits_in_force(ranks),
        )

    def _machines(self) -> dict[str, Recent]:
        return {"node": self._recent, **self._orders.recent()}

    async def _look(self, *, recordings: bool) -> tuple[list[RankEvidence], list[RankObservation]]:
        """Have the node look at its ranks; what it sees for itself at this moment does as well."""
        async with self._looking:
            if self._node.state is m.State.IDLE:
                return [], []
            if self._node.state not in LOOKS_BY_HAND:
                raise ValueError(f"no ranks can be looked at: {self._standing}")
            looked = self._ranks.next_look()
            self._post(m.LookByHand(self._node.round, recordings))
            try:
                return await wait_for(looked, LOOK_S)
            except TimeoutError:
                raise ValueError(f"the ranks were not looked at within {LOOK_S:g} s") from None

    # --- orders ---------------------------------------------------------------------------------

    async def _order(self, order: s.Order, by: str) -> s.Decision:
        """Have the job policy decide, and wait for what it says about that."""
        loop = asyncio.get_running_loop()
        decided: asyncio.Future[s.Decision] = loop.create_future()
        self._waiting.append((by, decided))
        reporting = loop.create_task(self._report(order, by, decided))
        try:
            # By itself: where the order ends the job, the answer is sent before the launcher goes.
            return await decided
        finally:
            reporting.cancel()
            self._waiting.remove((by, decided))

    async def _report(self, order: s.Order, by: str, decided: asyncio.Future[s.Decision]) -> None:
        """Tell the leader, from another node if this one leads; it has 5 s then."""
        try:
            passed_on = await self._orders.pass_on(msgspec.json.encode(order), by)
            if not passed_on and not decided.done():
                self._orders.post(self._event_of(order, by))
            await asyncio.wait([decided], timeout=DECIDE_S)
        finally:
            _settle(decided, self._nothing_yet(order))

    def _nothing_yet(self, order: s.Order) -> s.Decision:
        asked = self._orders.status()
        line = f"passed on; nothing has come of it within {DECIDE_S:g} s: {self._standing}"
        if asked.role == "follower":
            only = " if no other round has begun" if isinstance(order, s.Restart) else ""
            line += f"; {_leader_of(asked)}. The order is kept: the leader, this one or the next, "
            line += f"carries it out when it can{only}, and all launchers say so"
        alone = f"; SIGTERM ends this launcher alone (pid {os.getpid()})"
        return s.Decision(line + alone * isinstance(order, s.Stop), done=False)

    def _event_of(self, order: s.Order, by: str) -> job.NodeEvent:
        # Of the job: this node need not have been in its last round.
        node, number = self._config.node, max(self._node.round, self._orders.status().round)
        match order:
            case s.Restart(save=save):
                return job.RestartOrdered(node, number, by, save)
            case s.Stop(save=save):
                return job.StopOrdered(node, number, by, save)
            case s.NoOthers(why=why):
                return job.StopOrdered(node, number, by, few=why)
            case s.Exclude(target=target, save=save):
                return job.ExclusionOrdered(node, number, target, by, save)
            case s.Limits(limits=limits):
                return job.LimitsOrdered(node, number, limits, by)

    def take_command(self, order: job.Command) -> None:
        """The job policy has decided something; if that answers a question, pass it on."""
        match order:
            case job.Decided(by=by) | job.NewLimits(by=by) | job.Say(by=by) | job.End(by=by):
                refused = isinstance(order, job.Say) and order.refused
                decision = s.Decision(_line_of(order), done=not refused)
                for asker, waiter in self._waiting:
                    if asker == by:
                        _settle(waiter, decision)

    @property
    def _standing(self) -> str:
        what = f"node {self._config.node} is {self._node.state.name.lower()}"
        return f"{what}, round {self._node.round}" if self._node.round >= 0 else what


# --- leaves ---------------------------------------------------------------------------------------


def _settle(waiter: asyncio.Future[s.Decision], decision: s.Decision) -> None:
    if not waiter.done():
        waiter.set_result(decision)


def _leader_of(known: s.JobStatus) -> str:
    if known.heard_s is None:
        return "no leader has been found yet"
    return f"the leader, {known.leader}, was last heard of {format_duration(known.heard_s)} ago"


def _line_of(order: job.Decided | job.NewLimits | job.Say | job.End) -> str:
    match order:
        case job.Decided(round=number, action=action, reason=reason, restarts_left=left):
            follows = "the job ends" if action == "end" else "another round follows"
            return f"round {number} is stopped, {follows} ({left} restarts left): {reason}"
        case job.NewLimits(limits=limits, by=by):
            return f"limits of all ranks by {by}: {limits_in_words(limits)}"
        case job.Say(text=text) | job.End(reason=text):
            return text
