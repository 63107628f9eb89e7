"""What a member does while there is no leader: ask the others, stop in time, claim in its turn.

Part of `follower.Follower`, which says when the absence begins and ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import election
from undaunted.coordinator.core import follower_messages as f

if TYPE_CHECKING:
    from collections.abc import Collection

    from undaunted.coordinator.core.knowledge import Knowledge

_NS = 1_000_000_000
# From a reset until a node without a quorum stops its ranks; without a reset it does so at once.
MINORITY_AFTER_RESET_S = 3.0
# From the end of the lease until the first member claims to lead: later than ranks of a minority
# are gone.
TAKEOVER_AFTER_SILENCE_S = 7.0
# The same from a reset: long enough to connect again. The leader is most probably gone with its
# ranks; if it lives, it has lost its quorum by then, and `Preparation` waits for their end.
TAKEOVER_AFTER_RESET_S = 0.7
# A leader that lives has noticed two thirds of a lease after the end of a member's lease that it is
# cut off from it, and so much later stopped its ranks if it has no quorum without that member.
LEADER_STOPS_S = 2.2
# Members claim one after the other, in the order of group ranks, so that one of them wins.
TURN_S = 0.5
ASK_AGAIN_S = 1.0
# Answers to a claim come within this time.
CLAIM_S = 0.9
# A member whose claim was granted has so long to lead before others claim again.
OTHER_SUCCEEDS_S = 2.0
# In a table of so many, only the first members that answer ask all.
ASK_ALL = 8
FIRST = 3
# There, the first members ask only a quarter at a time of two kinds of members: some have asked
# lately, and so have lost the leader; others did not answer twice in a row, and are probably gone.
ASKED_LATELY_S = 1.5 * ASK_AGAIN_S
SILENT_TIMES = 2
SELDOM = 4
# A launcher that answers in place of a member so often, once a second, is no step of the job's.
REPLACED_TIMES = 5
# The answer of another member counts for so long.
ANSWER_COUNTS_S = 2.5
_Answer = p.MissAnswer | p.Grant


@dataclass(slots=True)
class Absence:
    """One absence of a leader.

    Attributes:
        knows: of the node.
        since_ns: the end of the leader's lease, or the reset of the connection to it.
        reset: the connection was reset, so that the leader has most probably ended.
        stop_ns: when the ranks are stopped.
    """

    knows: Knowledge
    since_ns: int
    reset: bool
    stop_ns: int
    _missing: Missing = field(init=False)
    # Nodes whose member did not answer the last time, and how often in a row.
    _silent: dict[str, int] = field(default_factory=dict)
    _asked_ns: dict[str, int] = field(default_factory=dict)  # when the member of a node asked
    # Members in whose place a launcher has answered that knows of no round, and how often.
    _replaced: dict[election.Voter, int] = field(default_factory=dict)
    _times: int = 0  # that the others were asked
    _claim: int = 0  # epoch of a claim that is under way
    _claimed_ns: int = 0
    _due_ns: int = 0  # when the next one is made
    _grants: dict[election.Voter, p.Ledger] = field(default_factory=dict)
    _newest: p.Ledger = p.NO_LEDGER  # ledger that came with a grant
    _tried: bool = False  # a claim of this node has failed
    _lead_until_ns: int = 0  # until then, whose claim was granted may come to lead

    def __post_init__(self) -> None:
        """Nobody has answered yet."""
        self._missing = Missing(self.knows.me)

    def begin(self, now: int, *, leads: bool = False) -> list[f.Command]:
        """Ask the others, unless this node ``leads`` in a moment; have ranks stopped in time."""
        asks = [f.SetTimer("ask", ASK_AGAIN_S)] if leads else self.ask(now)
        return [*asks, f.SetTimer("minority", max(0.0, (self.stop_ns - now) / _NS))]

    def ask(self, now: int) -> list[f.Command]:
        """Ask every other member whether it has lost the leader as well."""
        knows = self.knows
        if not knows.votes:
            return self._ask_some()
        if now - self._claimed_ns >= round(CLAIM_S * _NS):
            self._claim = 0  # who has not answered to it by now will not
        self._times += 1
        miss = p.Miss(node=knows.node, incarnation=knows.incarnation, epoch=knows.epoch)
        asks: list[f.Command] = [
            f.Ask(seat.node, seat.address, miss) for seat in self._whom_to_ask(now)
        ]
        return [*asks, f.SetTimer("ask", ASK_AGAIN_S), *self._set_claim(now)]

    def _ask_some(self) -> list[f.Command]:
        """Ask a few members who leads: a node without a vote learns it from them first."""
        knows = self.knows
        table, me = knows.ledger.table, (knows.node, knows.incarnation)
        seats = [seat for seat in table if election.voter(seat) != me]
        if not seats or not election.votes_count(knows.ledger):
            return []
        first, self._times = self._times * FIRST, self._times + 1
        some = dict.fromkeys(seats[(first + i) % len(seats)] for i in range(FIRST))
        miss = p.Miss(node=knows.node, incarnation=knows.incarnation, epoch=knows.epoch)
        asks = [f.Ask(seat.node, seat.address, miss) for seat in some]
        return [*asks, f.SetTimer("ask", ASK_AGAIN_S)]

    def asked(self, miss: p.Miss, now: int) -> bool:
        """A member asks, so it has lost the leader as well; return whether a quorum has."""
        table = self.knows.ledger.table
        if len(table) > ASK_ALL and self._missing.asks(miss, table, now):
            self._silent.pop(miss.node, None)
            self._asked_ns[miss.node] = now
        return self.counts_quorum(now)

    def _whom_to_ask(self, now: int) -> list[p.Seat]:
        """In a small table everybody asks all; in a large one the first do, the others ask them."""
        me, seats = self.knows.me, election.electorate(self.knows.ledger.table).seats
        others = [seat for who, seat in seats.items() if who != me]
        if len(seats) <= ASK_ALL:
            return others
        first = list(islice((each for each in others if each.node not in self._silent), FIRST))
        if len(first) == FIRST and seats[me].group_rank > first[-1].group_rank:
            return first
        lately = now - round(ASKED_LATELY_S * _NS)
        return [
            seat
            for number, seat in enumerate(others, self._times)
            if number % SELDOM == 0
            or (
                self._asked_ns.get(seat.node, lately) <= lately
                and self._silent.get(seat.node, 0) < SILENT_TIMES
            )
        ]

    def quorum_misses(self, now: int) -> bool:
        """Whether enough members have lost the leader to replace it, as this or another says."""
        return self.counts_quorum(now) or self._missing.quorum_is_told(now)

    def counts_quorum(self, now: int) -> bool:
        """Whether enough members have told this one that they have lost the leader."""
        ledger = self.knows.ledger
        missing = self._missing.members(ledger.table, now)
        enough = election.is_enough(missing, len(ledger.table), ledger.casting_vote)
        return enough and self.knows.votes

    def answered(self, node: str, answer: p.Message | None, now: int) -> list[f.Command]:
        """Take in what another member says, or that it says nothing."""
        seats = election.electorate(self.knows.ledger.table).seats
        if isinstance(answer, _Answer) and (answer.node, answer.incarnation) in seats:
            self._silent.pop(node, None)
        else:  # nobody, or another agent of that node, which has no vote and asks nobody
            self._silent[node] = self._silent.get(node, 0) + 1
            self._note_replaced(node, answer)
        if isinstance(answer, p.MissAnswer):
            self._missing.hear(answer, self.knows.ledger.table, now)
            if answer.lost and now < self._due_ns:
                return []  # one more does not bring it forward
            return self._set_claim(now)
        return self._granted(answer, now) if isinstance(answer, p.Grant) else []

    def _note_replaced(self, node: str, answer: p.Message | None) -> None:
        """A launcher listens where one of before did, which so has ended."""
        if not isinstance(answer, p.MissAnswer) or answer.round is None:
            return
        if answer.round >= 0:
            self._replaced.clear()  # it knows how the job goes on
            return
        for who in election.electorate(self.knows.ledger.table).seats:
            if who[0] == node:
                self._replaced[who] = self._replaced.get(who, 0) + 1

    @property
    def replaced(self) -> list[str]:
        """Nodes whose members were started again, if no quorum is left without them for sure."""
        gone = {who for who, times in self._replaced.items() if times >= REPLACED_TIMES}
        if not gone:
            return []
        ledger = self.knows.ledger
        left = {election.voter(seat) for seat in (*ledger.table, *ledger.before)} - gone
        return [node for node, _ in gone] if election.lacking(left, ledger) else []

    def claim(self, now: int) -> list[f.Command]:
        """Claim to lead: it is this node's turn."""
        knows = self.knows
        if not self.counts_quorum(now) or now < self._lead_until_ns:
            return []
        if not self._tried and (left_s := self._turn_left_s(now)) > TURN_S / 2:
            return [self._claim_in(left_s, now)]  # members heard of since then come first
        self._tried = True
        knows.promised = self._claim = knows.later_epoch()
        self._claimed_ns = now
        self._grants, self._newest = {knows.me: knows.ledger}, knows.ledger
        claim = p.Claim(
            node=knows.node,
            incarnation=knows.incarnation,
            epoch=self._claim,
            ledger=knows.ledger,
        )
        asks: list[f.Command] = [
            f.Ask(seat.node, seat.address, claim) for seat in knows.electorate()
        ]
        return [*asks, *self._count(now)]

    def may_grant(self, now: int, lease_s: float) -> bool:
        """Whether a leader that has lost this member has stopped its ranks by now, if it lives."""
        after_s = 0.0 if self.reset else 2 * lease_s / 3 + LEADER_STOPS_S
        return now - self.since_ns >= round(after_s * _NS)

    def yield_to_other(self, now: int) -> None:
        """A claim of another member was granted: drop the own one."""
        self._claim = 0
        self._lead_until_ns = now + round(OTHER_SUCCEEDS_S * _NS)

    # --- leaves ---------------------------------------------------------------------------------

    def _turn_s(self, now: int) -> float:
        table = self.knows.ledger.table
        return TURN_S * election.turn(self.knows.me, self._missing.members(table, now), table)

    def _turn_left_s(self, now: int) -> float:
        after_s = TAKEOVER_AFTER_RESET_S if self.reset else TAKEOVER_AFTER_SILENCE_S
        return max(0.0, after_s + self._turn_s(now) - (now - self.since_ns) / _NS)

    def _set_claim(self, now: int) -> list[f.Command]:
        if self._claim or not self.counts_quorum(now):
            return []
        left_s = self._turn_left_s(now)
        left_s = max(left_s, self._turn_s(now)) if self._tried else left_s
        if now < self._due_ns <= now + round(left_s * _NS):
            return []  # it is set, and earlier
        return [self._claim_in(left_s, now)]

    def _claim_in(self, left_s: float, now: int) -> f.Command:
        self._due_ns = now + round(left_s * _NS)
        return f.SetTimer("claim", left_s)

    def _granted(self, grant: p.Grant, now: int) -> list[f.Command]:
        if not grant.granted:
            self.knows.learn(grant.ledger)
            self.knows.promised = max(self.knows.promised, grant.epoch)
            return []  # the others may be enough
        if not self._claim or grant.epoch != self._claim or grant.ledger is None:
            return []
        self._grants[(grant.node, grant.incarnation)] = grant.ledger
        if p.newer(grant.ledger, self._newest):
            self._newest = grant.ledger
        return self._count(now)

    def _count(self, now: int) -> list[f.Command]:
        newest = self._newest
        for known in self._grants.values():
            newest = p.settled_by(newest, known)
        if not election.may_lead(self._grants, newest):
            return []
        epoch, self._claim = self._claim, 0
        self._lead_until_ns = now + round(OTHER_SUCCEEDS_S * _NS)  # the others have a while to come
        silent = tuple(node for node, often in self._silent.items() if often >= SILENT_TIMES)
        return [f.Lead(epoch, newest, newest.leader, silent, reset=self.reset)]


class Missing:
    """Which members of a table have lost the leader, by what they have answered lately.

    It is kept by one of them, during one absence. Every answer takes constant time, however large
    the job is.
    """

    def __init__(self, me: election.Voter) -> None:
        self._me = me
        self._table: tuple[p.Seat, ...] = ()
        # When members of the table have said so, the latest last.
        self._lost_ns: dict[election.Voter, int] = {}
        # When members have said that a quorum has lost the leader.
        self._quorum_ns: dict[election.Voter, int] = {}

    def hear(self, answer: p.MissAnswer, table: tuple[p.Seat, ...], now: int) -> None:
        """Take in an answer."""
        self._look_at(table)
        who = (answer.node, answer.incarnation)
        self._lost_ns.pop(who, None)
        self._quorum_ns.pop(who, None)
        if answer.lost and who in election.electorate(table).seats:
            self._lost_ns[who] = now
            if answer.quorum:
                self._quorum_ns[who] = now

    def asks(self, miss: p.Miss, table: tuple[p.Seat, ...], now: int) -> bool:
        """Take in that somebody asks; return whether it is a member, which so has lost it too."""
        self._look_at(table)
        who = (miss.node, miss.incarnation)
        if who not in election.electorate(table).seats:
            return False
        self._lost_ns.pop(who, None)
        self._lost_ns[who] = now
        return True

    def members(self, table: tuple[p.Seat, ...], now: int) -> Collection[election.Voter]:
        """Members of the table that have lost the leader."""
        self._look_at(table)
        self._lost_ns.pop(self._me, None)
        if self._me in election.electorate(table).seats:
            self._lost_ns[self._me] = now
        _forget(self._lost_ns, now)
        return self._lost_ns.keys()

    def quorum_is_told(self, now: int) -> bool:
        """Whether another member says that a quorum of them has lost the leader."""
        _forget(self._quorum_ns, now)
        return bool(self._quorum_ns)

    def _look_at(self, table: tuple[p.Seat, ...]) -> None:
        if table is not self._table:
            self._table, seats = table, election.electorate(table).seats
            self._lost_ns = {who: at for who, at in self._lost_ns.items() if who in seats}


def _forget(times_ns: dict[election.Voter, int], now: int) -> None:
    """Drop times that are too long ago; the oldest is the first."""
    oldest = now - round(ANSWER_COUNTS_S * _NS)
    while times_ns:
        who = next(iter(times_ns))
        if times_ns[who] >= oldest:
            return
        del times_ns[who]
