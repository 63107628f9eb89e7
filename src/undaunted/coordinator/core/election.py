"""Who may lead a job, and when a leader may start a round: pure rules over ledgers.

Voters are the members of a table, by node and incarnation. docs/design/coordination.md, "Loss of
the leader", says why two leaders can never start rounds that both run.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from undaunted.coordinator.protocol import Ledger, MissAnswer, Seat

# Fewer members cannot outvote the one that led.
FEWEST_VOTERS = 3

Voter = tuple[str, str]  # node, incarnation

# No two agents take the same epoch, as a rule: an agent's epochs have one remainder modulo this.
_EPOCHS = 1 << 20


def voter(seat: Seat) -> Voter:
    """The voter of a seat."""
    return (seat.node, seat.incarnation)


@dataclass(frozen=True, slots=True)
class Electorate:
    """The voters of a table.

    Attributes:
        seats: by voter, in the order of group ranks.
        listening: others can reach all of them.
    """

    seats: dict[Voter, Seat]
    listening: bool


_TABLES_KEPT = 4
_electorates: dict[int, tuple[tuple[Seat, ...], Electorate]] = {}  # by identity of the table


def electorate(table: tuple[Seat, ...]) -> Electorate:
    """Return the voters of a table; those of the last few tables are kept."""
    kept = _electorates.get(id(table))
    if kept is not None:
        return kept[1]
    seats = {voter(seat): seat for seat in sorted(table, key=lambda seat: seat.group_rank)}
    found = Electorate(seats, all(seat.address for seat in table))
    while len(_electorates) >= _TABLES_KEPT:
        _electorates.pop(next(iter(_electorates)), None)
    _electorates[id(table)] = (table, found)  # as long as it is kept here, the identity is its own
    return found


def next_epoch(after: int, who: str) -> int:
    """The first epoch later than ``after`` that ``who`` takes, and hardly anybody else."""
    mine = zlib.crc32(who.encode()) % _EPOCHS
    return after + 1 + (mine - after - 1) % _EPOCHS


def votes_count(ledger: Ledger) -> bool:
    """Whether members may take over, so that a leader needs a quorum for what it does.

    They may not when the leader has a host of its own, when there are too few of them, or when one
    of them cannot be reached by the others.
    """
    return table_votes(ledger.table, ledger.casting_vote)


def table_votes(table: tuple[Seat, ...], casting_vote: str) -> bool:
    """Whether the members of a table have votes, see `votes_count`."""
    if casting_vote == "" or len(table) < FEWEST_VOTERS:
        return False
    return electorate(table).listening


def electing(ledger: Ledger) -> tuple[tuple[tuple[Seat, ...], str], ...]:
    """The tables of whose members a leader needs a quorum, each with the casting vote."""
    return (ledger.table, ledger.casting_vote), (ledger.before, ledger.before_vote)


def led_by_others(ledger: Ledger, node: str) -> bool:
    """Whether members of the table, if any lives, have a leader or will find one without ``node``.

    Members have votes, or the lead was handed over to one of them.
    """
    return votes_count(ledger) or ledger.leader not in ("", node)


def is_quorum(present: Collection[Voter], table: tuple[Seat, ...], casting_vote: str) -> bool:
    """Whether voters are more than half of a table, or half of it with the casting vote."""
    seats = electorate(table).seats
    return is_enough([each for each in present if each in seats], len(table), casting_vote)


def is_enough(members: Collection[Voter], of: int, casting_vote: str) -> bool:
    """Whether members are more than half of ``of``, or half of it with the casting vote."""
    if 2 * len(members) == of:
        return any(node == casting_vote for node, _ in members)
    return 2 * len(members) > of


def may_start(present: Collection[Voter], ledger: Ledger) -> bool:
    """Whether a leader whose ``ledger`` these voters have acknowledged may start what it prepared.

    Every member of the prepared table has to be among them as well: `Preparation.complete`.
    """
    return not lacking(present, ledger)


def lacking(present: Collection[Voter], ledger: Ledger) -> tuple[Seat, ...]:
    """The first table of which these voters are no quorum, () = there is none."""
    for table, vote in electing(ledger):
        if table_votes(table, vote) and not is_quorum(present, table, vote):
            return table
    return ()


def may_lead(grants: Mapping[Voter, Ledger], newest: Ledger) -> bool:
    """Whether these voters, each with the ledger it knows, can make somebody the leader.

    ``newest`` is the newest of all those ledgers. A table in it that was prepared counts as well,
    unless one of its members is here and has not started it: by granting, it never will.
    """
    if not votes_count(newest) or not may_start(grants, newest):
        return False
    if newest.pending_round <= newest.round:
        return True
    for seat in newest.pending:
        known = grants.get(voter(seat))
        if known is not None and known.round < newest.pending_round:
            return True
    return is_quorum(grants, newest.pending, newest.leader)


def goes_on(ledger: Ledger, answers: Mapping[Voter, MissAnswer]) -> bool:
    """Whether the members that have answered go on with the job: they are enough, or have a leader.

    Without votes one of them is enough.
    """
    followed = any(not answer.lost for answer in answers.values())
    return followed or (bool(answers) and may_start(answers, ledger))


def turn(me: Voter, missing: Collection[Voter], table: tuple[Seat, ...]) -> int:
    """How many of the members that miss the leader come before ``me`` by group rank."""
    seats = electorate(table).seats
    mine = seats[me].group_rank if me in seats else len(seats)
    return sum(1 for each in missing if each in seats and seats[each].group_rank < mine)
