"""A leader that goes on with a job which had begun before: whom it waits for, whom it misses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core.policy import JobPolicy

if TYPE_CHECKING:
    from collections.abc import Collection

    from undaunted.coordinator import protocol as p
    from undaunted.coordinator.core.sessions import Session, Sessions

# A leader that was restarted waits so long beyond a lease for its members; one that took over waits
# less, since members that granted it come at once.
AFTER_RESTART_S = 5.0
AFTER_TAKEOVER_S = 2.0


class Recovery:
    """Of one leader.

    Attributes:
        early: reports that have come before the policy could be told.
    """

    def __init__(
        self, config: c.LeaderConfig, sessions: Sessions, lost: str, silent: Collection[str] = ()
    ) -> None:
        self.early: list[tuple[Session, p.Report]] = []
        self._config = config
        self._sessions = sessions
        self._lost = lost
        self._not_awaited = {lost, *silent}

    def timer(self) -> c.Command:
        """How long members are waited for."""
        restarted_s = self._config.lease_s + AFTER_RESTART_S
        if self._config.durable:  # members hear of a new leader at once
            restarted_s = self._config.lease_s
        return c.SetTimer("recover", 0, AFTER_TAKEOVER_S if self._lost else restarted_s)

    def all_back(self, ledger: p.Ledger) -> bool:
        """Whether nobody is waited for any more."""
        is_here = self._sessions.is_here
        table = ledger.table
        return all(is_here(seat) for seat in table if seat.node not in self._not_awaited)

    def policy(self, ledger: p.Ledger) -> JobPolicy:
        """The job policy, with the round of the ledger running."""
        return JobPolicy.restored(
            self._config.policy,
            round=ledger.round,
            prepared=ledger.pending_round,
            nodes=[self._known(seat) for seat in ledger.table],
            restarts_used=ledger.restarts_used,
            excluded=ledger.excluded,
            reached=ledger.reached,
            stalled=ledger.stalled,
        )

    def losses(self, ledger: p.Ledger) -> list[m.NodeLost]:
        """Members that are not here, and why."""
        missing = [seat for seat in ledger.table if not self._sessions.is_here(seat)]
        return [
            m.NodeLost(seat.node, f"node {seat.node} is lost: {self._why_not_here(seat)}")
            for seat in missing
        ]

    def newcomers(self, ledger: p.Ledger) -> list[Session]:
        """Who is here and no member."""
        members = {seat.node for seat in ledger.table if self._sessions.is_here(seat)}
        return [each for each in self._sessions.connected() if each.node not in members]

    def idle(self, ledger: p.Ledger) -> list[m.Event]:
        """Nothing of the round runs on these members, whether or not they have said so."""
        members = {seat.node for seat in ledger.table if self._sessions.is_here(seat)}
        events: list[m.Event] = []
        for session in self._sessions.connected():
            node, hello = session.node, session.hello
            if node in members and not (hello.running and hello.round == ledger.round):
                text = f"the ranks of node {node} were stopped while there was no coordinator"
                events.append(m.NodeFailed(node, ledger.round, text, victim=True))
                events.append(m.NodeStopped(node, ledger.round))
        return events

    def _why_not_here(self, seat: p.Seat) -> str:
        session = self._sessions.get(seat.node)
        if session is not None and session.link is not None:
            return "its launcher was started again"
        if seat.node == self._lost:
            return "it led the job, and the others cannot reach it any more"
        return "it has not come back"

    def _known(self, seat: p.Seat) -> m.NodeInfo:
        session = self._sessions.get(seat.node)
        return m.NodeInfo(seat.node, seat.slots) if session is None else session.info
