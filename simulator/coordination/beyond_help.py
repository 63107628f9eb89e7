"""Whether a job can go on at all: what docs/design/coordination.md promises, and no more."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from simulator.coordination.setup import address_of
from undaunted.coordinator.core import election
from undaunted.coordinator.protocol import NO_LEDGER, newer

if TYPE_CHECKING:
    from simulator.coordination.agent import Agent
    from simulator.coordination.cluster import Cluster
    from undaunted.coordinator import protocol as p


def why_beyond_help(cluster: Cluster) -> str:
    """Say why a job cannot run again, when all that will heal has healed; "" = it can."""
    checker, setup = cluster.checker, cluster.setup
    ledger = _remembered(cluster)
    usable = {node for node, _ in checker.alive} - checker.asked_for_exclusion
    usable -= checker.told_to_leave
    usable -= {agent.name for agent in cluster.agents.values() if cut_off_for_good(agent, cluster)}
    if len(usable) < setup.nodes:
        return f"{len(usable)} nodes are left of the {setup.nodes} it needs"
    if ledger.restarts_used >= setup.max_restarts:
        return "no restart is left"
    if setup.standalone:
        return ""
    if not election.votes_count(ledger):
        if checker.disk_lost:
            return "what only the leader knew was on a disk that is lost"
        if why := _why_not_led(cluster, usable):
            return why
    votes = [each for each in election.electing(ledger) if election.table_votes(*each)]
    pending = [(ledger.pending, "")] if election.votes_count(ledger) else []
    for table, casting_vote in (*votes, *pending):
        voters = [seat for seat in table if _has_vote(seat, ledger, cluster)]
        if table and not election.is_quorum(
            {election.voter(seat) for seat in voters}, table, casting_vote
        ):
            return f"{len(voters)} are left of a table of {len(table)}, which is no quorum"
    return ""


def _remembered(cluster: Cluster) -> p.Ledger:
    """The newest ledger; the newest that an agent knows, if a disk is lost."""
    newest = cluster.checker.ledger
    if not cluster.checker.disk_lost:
        return newest
    alive = [each for each in cluster.agents.values() if each.seat in cluster.checker.alive]
    known = [each.follower.knows.ledger for each in alive if each.follower.knows.ledger]
    return reduce(lambda one, other: other if newer(other, one) else one, known, NO_LEDGER)


def _has_vote(seat: p.Seat, ledger: p.Ledger, cluster: Cluster) -> bool:
    """Whether a member lives, and knows that it may vote."""
    if election.voter(seat) not in cluster.checker.alive:
        return False
    first_vote = ledger.before and not election.table_votes(ledger.before, ledger.before_vote)
    return not first_vote or cluster.agents[seat.node].knows_round >= ledger.round


def cut_off_for_good(agent: Agent, cluster: Cluster) -> bool:
    """Whether an agent has no leader and can never find one: no agent that it can ask knows one.

    It asks the members it knows of, they those they know of, and so on. It was cut off too long, or
    was started again on a disk on which nothing is written about the members.
    """
    alive = [each for each in cluster.agents.values() if each.seat in cluster.checker.alive]
    found = {address_of(each.name) for each in alive if each.follows}
    if agent.follows or not found or cluster.setup.standalone:
        return False
    count = 0
    while count < len(found):  # whoever knows one that has found the leader finds it as well
        count = len(found)
        found |= {address_of(each.name) for each in alive if _known(each, cluster) & found}
    return address_of(agent.name) not in found


def _known(agent: Agent, cluster: Cluster) -> set[str]:
    """Where an agent looks for the leader."""
    follower = agent.follower
    seats = (*follower.knows.table, *follower.knows.pending)
    ends = {*follower.config.endpoints, cluster.setup.endpoint, follower.search.last}
    return ends | {seat.address for seat in seats}


def _why_not_led(cluster: Cluster, usable: set[str]) -> str:
    """The same where nobody can take over: it was the first node that led, or one named by it.

    One that was named and cut off does not know; the first node would if it was started again.
    """
    checker, first = cluster.checker, cluster.setup.names[0]
    leader, by = checker.ledger.leader or first, checker.led_by
    named = by is not None and by[0] != leader
    leads = leader in usable if leader == first and not named else by in checker.alive
    return "" if leads else f"nobody can take over from {leader}, which is lost"
