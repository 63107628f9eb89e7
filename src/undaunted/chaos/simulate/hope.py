"""Whether a job can go on at all: what docs/design/coordination.md promises, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.coordinator.core import election

if TYPE_CHECKING:
    from undaunted.chaos.simulate.cluster import Cluster


def why_hopeless(cluster: Cluster) -> str:
    """Say why a job cannot run again, when all that will heal has healed; "" = it can."""
    checker, setup = cluster.checker, cluster.setup
    ledger = checker.ledger
    usable = {node for node, _ in checker.alive} - checker.asked_for_exclusion
    usable -= checker.told_to_leave
    if len(usable) < setup.nodes:
        return f"{len(usable)} nodes are left of the {setup.nodes} it needs"
    if ledger.restarts_used >= setup.max_restarts:
        return "no restart is left"
    if setup.standalone:
        return ""
    if not election.votes_count(ledger):
        first = setup.names[0]
        return "" if first in usable else f"nobody can take over from {first}, which is lost"
    for table, casting_vote in ((ledger.table, ledger.casting_vote), (ledger.pending, "")):
        voters = [seat for seat in table if election.voter(seat) in checker.alive]
        if table and not election.is_quorum(
            {election.voter(seat) for seat in voters}, table, casting_vote
        ):
            return f"{len(voters)} are left of a table of {len(table)}, which is no quorum"
    return ""
