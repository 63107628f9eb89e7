"""Who may lead a job, and when a leader may start a round: pure rules over ledgers.

Voters are the members of a table, by node and incarnation. docs/design/coordination.md, "Loss of
the leader", says why two leaders can never start rounds that both run.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from undaunted.coordinator.protocol import Ledger, Seat

# Fewer members cannot outvote the one that led.
FEWEST_VOTERS = 3

Voter = tuple[str, str]  # node, incarnation

# Epochs that one agent takes differ from those of another one by what is left over from this.
_EPOCHS = 4096


def voter(seat: Seat) -> Voter:
    """Who votes for a seat."""
    return (seat.node, seat.incarnation)


def next_epoch(after: int, who: str) -> int:
    """The first epoch later than ``after`` that ``who`` takes, and hardly anybody else."""
    mine = zlib.crc32(who.encode()) % _EPOCHS
    return after + 1 + (mine - after - 1) % _EPOCHS


def votes_count(ledger: Ledger) -> bool:
    """Whether members may take over, so that a leader needs a quorum for what it does.

    They may not when the leader has a host of its own, when there are too few of them, or when one
    of them cannot be reached by the others.
    """
    table = ledger.table
    listening = all(seat.address for seat in table)
    return ledger.casting_vote != "" and len(table) >= FEWEST_VOTERS and listening


def is_quorum(present: Collection[Voter], table: Iterable[Seat], casting_vote: str) -> bool:
    """More than half of the table, or exactly half with the node that has the casting vote."""
    voters = [voter(seat) for seat in table]
    there = [each for each in voters if each in present]
    if 2 * len(there) == len(voters):
        return any(node == casting_vote for node, _ in there)
    return 2 * len(there) > len(voters)


def may_start(present: Collection[Voter], ledger: Ledger) -> bool:
    """Whether a leader whose ``ledger`` these voters have acknowledged may start what it prepared.

    That every member of the prepared table is among them is asked for elsewhere.
    """
    return not votes_count(ledger) or is_quorum(present, ledger.table, ledger.casting_vote)


def may_lead(grants: Mapping[Voter, Ledger], newest: Ledger) -> bool:
    """Whether these voters, each with the ledger it knows, can make somebody the leader.

    ``newest`` is the newest of all those ledgers. A table in it that was prepared counts as well,
    unless one of its members is here and has not started it: by granting, it never will.
    """
    if not votes_count(newest) or not is_quorum(grants, newest.table, newest.casting_vote):
        return False
    if newest.pending_round <= newest.round:
        return True
    for seat in newest.pending:
        known = grants.get(voter(seat))
        if known is not None and known.round < newest.pending_round:
            return True
    return is_quorum(grants, newest.pending, newest.leader)


def turn(me: Voter, missing: Collection[Voter], table: Iterable[Seat]) -> int:
    """How many of those who miss the leader come before me in the order of group ranks."""
    order = [voter(seat) for seat in sorted(table, key=lambda seat: seat.group_rank)]
    before = order[: order.index(me)] if me in order else order
    return sum(1 for each in before if each in missing)
