"""A launcher's part in a job whose leader is elected in etcd."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from undaunted.coordinator.core import election
from undaunted.coordinator.core.leader import State as LeaderState
from undaunted.coordinator.etcd.campaigning import Campaigning
from undaunted.coordinator.etcd.place import access, parse_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.core.leader import Leader
    from undaunted.coordinator.protocol import Ledger
    from undaunted.coordinator.service.leading import Listener
    from undaunted.fault_tolerance.run_config import RunConfig


class Candidacy:
    """Leads the job while this launcher holds the lease in etcd; tells the follower who does.

    Args:
        config: the run; its nodes have a store.
        address: of this launcher.
        incarnation: of this launcher.
        listener: of this node; its leader and its follower are told who leads.
        lead: begins to lead, with an epoch and the ledger of the leader before.
        give_up: ends this launcher.
        say: shows a line.

    Raises:
        ValueError: etcd cannot be used as it is set up.
    """

    def __init__(
        self,
        config: RunConfig,
        address: str,
        incarnation: str,
        listener: Listener,
        lead: Callable[[int, Ledger], None],
        give_up: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        nodes = config.nodes
        assert nodes is not None
        self._node, self._incarnation = config.node, incarnation
        self._listener = listener
        self._begin_to_lead, self._give_up, self._say = lead, give_up, say
        self._leader: Leader | None = None
        self._campaigning = Campaigning(
            parse_place(nodes.store),
            access(os.environ),
            config.run_id,
            nodes.lease_s,
            address,
            incarnation,
            self,
        )

    # --- what the launcher wants ----------------------------------------------------------------

    def begin(self) -> None:
        """Find out who leads, or lead."""
        self._campaigning.begin()

    def keep(self, ledger: Ledger) -> None:
        """Have the ledger written to etcd."""
        self._campaigning.keep(ledger)

    def node_is_done(self) -> None:
        """This node does not take part any more; it goes on leading if others need that."""
        if self._listener.leading is None:
            self._campaigning.withdraw()

    def leading_is_over(self) -> None:
        """The leader here has nothing more to do; unless the job has ended, there must be one."""
        if self._leader is not None and self._leader.state is LeaderState.DEPOSED:
            self._campaigning.step_down()

    async def close(self) -> None:
        """Give the lead to others; leave nothing in etcd of a job that is over."""
        over = self._leader is not None and self._leader.state is LeaderState.ENDED
        await self._campaigning.close(erase=over)

    # --- what the campaign says (see `campaigning.Launcher`) ------------------------------------

    def lead(self, epoch: int, ledger: Ledger) -> None:
        """Serve the job from now on."""
        if ledger.leader not in {"", self._node}:
            before = ledger.leader
            self._say(f"this node takes over the coordination of the job from node {before}")
        following = self._listener.following
        promised = 0 if following is None else following.follower.knows.promised
        if promised >= epoch:  # an etcd that has lost everything
            epoch = election.next_epoch(promised, self._incarnation)
        self._begin_to_lead(epoch, ledger)
        leading = self._listener.leading
        self._leader = None if leading is None else leading.leader

    def depose(self, reason: str) -> None:
        """Serve it no more."""
        self._say(f"this node coordinates the job no more: {reason}")
        if self._listener.leading is not None:
            self._listener.leading.deposed(reason)

    def persisted(self, version: int) -> None:
        """A ledger is in etcd."""
        if self._listener.leading is not None:
            self._listener.leading.persisted(version)

    def leader_at(self, address: str, reason: str) -> None:
        """Another one leads, or nobody."""
        if self._listener.following is not None:
            self._listener.following.leader_at(address, reason)

    def give_up(self, reason: str) -> None:
        """This launcher cannot take part."""
        self._give_up(reason)

    def say(self, text: str) -> None:
        """Show a line."""
        self._say(text)
