"""The job policy: the node's reports go to it, and its orders come from there.

The agent knows the policy only through `Orders`. On one node it runs in the agent's process.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from undaunted import __version__
from undaunted.base.recent import Recent
from undaunted.base.timers import Timers
from undaunted.coordinator import epoch
from undaunted.coordinator.policy import messages as job
from undaunted.coordinator.policy.budget import FORGET
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.policy.policy import JobPolicy
from undaunted.fault_tolerance.advice import advise
from undaunted.fault_tolerance.agent.status import of_policy
from undaunted.fault_tolerance.slow_ranks.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from undaunted.fault_tolerance.agent.inprocess import InProcess
    from undaunted.fault_tolerance.agent.tasks import Turns
    from undaunted.fault_tolerance.control_socket import JobStatus
    from undaunted.fault_tolerance.cycle_info import OwnRounds
    from undaunted.fault_tolerance.run_config import RunConfig

# Timers of the policy that a node alone needs, by how their names begin.
_TIMED = ("slow", "pause", FORGET)


class Orders(Protocol):
    """The agent's connection to the job policy.

    Its maker gives it a function that carries out an order; it is called on the event loop,
    never from inside of another order or event of the node.
    """

    @property
    def leads(self) -> bool:
        """Return whether this node leads a job of several nodes; to be asked in any thread."""

    @property
    def members(self) -> frozenset[str]:
        """Nodes of the last round that was started."""

    @property
    def ranks_outlive_s(self) -> float:
        """For how long ranks here may live if this process stands still, 0 = there is no limit."""

    def status(self) -> JobStatus:
        """Return what is known of the job here."""

    def recent(self) -> dict[str, Recent]:
        """Return what the state machines here have done, by name."""

    def serve_questions(self, answer: Callable[[bytes, str], Awaitable[bytes]]) -> None:
        """Answer questions from other machines; see `Control.answer`."""

    async def pass_on(self, order: bytes, by: str) -> bool:
        """Have another node report what somebody has ordered, if this one leads; return whether.

        What only the leader's node has reported is lost with it.
        """

    async def join(self) -> None:
        """Offer this node to the job; returns when that is under way."""

    def post(self, event: job.NodeEvent) -> None:
        """Report something; returns at once. Orders that it causes come later."""

    async def close(self) -> None:
        """Release what it holds, bounded. No order comes after that."""


def find_orders(
    config: RunConfig,
    turns: Turns,
    obey: Callable[[job.Command], None],
    reserve: Callable[[], int],
    say: Callable[[str], None],
    inprocess: InProcess,
    failure: str = "",
) -> Orders:
    """Return the orders of a leader, or of the policy in this process if there is no other node.

    Args:
        config: the run.
        turns: of the agent.
        obey: carries out an order.
        reserve: reserves a port for the store of rank 0, returns its number; raises OSError.
        say: shows a line.
        inprocess: goes along with what nodes say to each other.
        failure: see `PolicyConfig.failure`.
    """
    if config.nodes is None:
        return OwnOrders(config, turns, obey, say, failure)
    from undaunted.fault_tolerance.agent.shared_orders import SharedOrders
    from undaunted.fault_tolerance.agent.surroundings import Surroundings

    surroundings = Surroundings(config, __version__, failure)
    return SharedOrders(config, surroundings, turns, obey, reserve, say, inprocess)


class OwnOrders:
    """The policy of a job of one node.

    Args:
        config: the run.
        turns: of the agent.
        obey: carries out an order.
        say: shows a line.
        failure: see `PolicyConfig.failure`.
    """

    def __init__(
        self,
        config: RunConfig,
        turns: Turns,
        obey: Callable[[job.Command], None],
        say: Callable[[str], None],
        failure: str = "",
    ) -> None:
        self._rounds: OwnRounds | None = None
        if config.cycle_info is not None:
            from undaunted.fault_tolerance.cycle_info import OwnRounds

            self._rounds = OwnRounds(config.cycle_info, say)
        self._info = job.NodeInfo(config.node, config.nproc_per_node)
        self._turns = turns
        self._timers = Timers()
        self._obey = obey
        policy = PolicyConfig(
            max_restarts=config.max_restarts,
            restart_intensity=config.restart_intensity,
            stop_timeout_s=config.stop_timeout_s,
            term_timeout_s=config.term_timeout_s,
            max_no_progress_cycles=config.ft.max_no_progress_cycles,
            min_progress_iterations=config.ft.min_progress_iterations,
            advise=advise,
            act=config.advice == "act",
            slow_ranks=config.slow_ranks,
            slow_ranks_after_s=config.slow_ranks_after_s,
            pace=Pace,
            failure=failure,
        )
        self._policy, self._recent = JobPolicy(policy), Recent({"config": policy})
        self._epoch = epoch.of_start(time.time())

    @property
    def leads(self) -> bool:
        """There is nobody to lead."""
        return False

    @property
    def ranks_outlive_s(self) -> float:
        """Nobody goes on without this node."""
        return 0.0

    @property
    def members(self) -> frozenset[str]:
        """This node."""
        return frozenset({self._info.name})

    def status(self) -> JobStatus:
        """Return what the policy knows."""
        return of_policy(self._policy, self._info.name, self._timers.left_s("pause"))

    def recent(self) -> dict[str, Recent]:
        """Return what the policy has done."""
        return {"policy": self._recent}

    def serve_questions(self, answer: Callable[[bytes, str], Awaitable[bytes]]) -> None:
        """Do nothing: a job of one node has no port."""

    async def pass_on(self, order: bytes, by: str) -> bool:
        """There is nobody else."""
        del order, by
        return False

    async def join(self) -> None:
        """Begin."""
        self.post(job.NodeJoined(self._info))

    def post(self, event: job.Event) -> None:
        """Have the policy decide about ``event`` and its orders obeyed."""
        self._turns.take(lambda: self._decide(event))

    async def close(self) -> None:
        """Complete the files about the rounds."""
        self._timers.cancel()
        if self._rounds is not None:
            self._rounds.close()

    def _decide(self, event: job.Event) -> None:
        if self._policy.ended:
            return
        orders = self._policy.handle(event)
        self._recent.note(time.monotonic_ns(), event, orders)
        for order in orders:
            match order:
                case job.Start():
                    self._carry_out(replace(order, epoch=self._epoch))
                case job.Prepare(round=number):  # nobody else needs to learn the table
                    self.post(job.TableAccepted(number, "", 0))
                case job.SetTimer(name, number, delay_s) if name.startswith(_TIMED):
                    fired = job.TimerFired(name, number)
                    self._timers.set(name, delay_s, partial(self.post, fired))
                case job.SetTimer():
                    pass  # the others are about waiting for other nodes
                case _:
                    self._carry_out(order)

    def _carry_out(self, order: job.Command) -> None:
        if self._rounds is not None:
            self._rounds.obey(order)
        self._obey(order)
