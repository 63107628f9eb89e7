"""What a member does while there is no leader: ask the others, stop in time, claim in its turn.

Part of `follower.Follower`, which says when the absence begins and ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import election
from undaunted.coordinator.core import follower_messages as f

if TYPE_CHECKING:
    from undaunted.coordinator.core.knowledge import Knowledge

_NS = 1_000_000_000
# From the end of the lease, or from a reset, until a node without a quorum stops its ranks.
MINORITY_AFTER_S = 3.0
# From the end of the lease, or from a reset, until the first member claims to lead. Later than the
# ranks of a minority are gone; after a reset the leader is most probably gone with its ranks.
TAKEOVER_AFTER_SILENCE_S = 7.0
TAKEOVER_AFTER_RESET_S = 3.0
# Members claim one after the other, in the order of group ranks, so that one of them wins.
TURN_S = 0.5
ASK_AGAIN_S = 1.0
# Answers to a claim come within this time.
CLAIM_S = 0.9
# A member whose claim was granted has so long to lead before others claim again.
OTHER_SUCCEEDS_S = 2.0
# In a table of so many, only the first members that answer ask all.
ASK_ALL = 16
FIRST = 3
# The answer of another member counts for so long.
ANSWER_COUNTS_S = 2.5


@dataclass(slots=True)
class Absence:
    """One absence of a leader.

    Attributes:
        knows: of the node.
        since_ns: the end of the leader's lease, or the reset of the connection to it.
        reset: the connection was reset, so that the leader has most probably ended.
        away_timeout_s: as in `FollowerConfig`.
    """

    knows: Knowledge
    since_ns: int
    reset: bool
    away_timeout_s: float
    _answers: dict[str, tuple[int, p.MissAnswer]] = field(default_factory=dict)  # when, what
    _silent: set[str] = field(default_factory=set)  # members that did not answer the last time
    _claim: int = 0  # epoch of a claim that is under way
    _claimed_ns: int = 0
    _due_ns: int = 0  # when the next one is made
    _grants: dict[election.Voter, p.Ledger] = field(default_factory=dict)
    _tried: bool = False  # a claim of this node has failed
    _granted_ns: int | None = None  # a claim was granted, to another one or to this

    def begin(self, now: int) -> list[f.Command]:
        """Ask the others; set the time at which the ranks are stopped."""
        after_s = MINORITY_AFTER_S if self.knows.votes else self.away_timeout_s
        return [*self.ask(now), f.SetTimer("minority", self._left_s(after_s, now))]

    def ask(self, now: int) -> list[f.Command]:
        """Ask every other member whether it has lost the leader as well."""
        knows = self.knows
        if not knows.votes:
            return []
        if now - self._claimed_ns >= round(CLAIM_S * _NS):
            self._claim = 0  # who has not answered to it by now will not
        miss = p.Miss(node=knows.node, incarnation=knows.incarnation, epoch=knows.epoch)
        asks: list[f.Command] = [
            f.Ask(seat.node, seat.address, miss) for seat in self._whom_to_ask()
        ]
        return [*asks, f.SetTimer("ask", ASK_AGAIN_S), *self._set_claim(now)]

    def _whom_to_ask(self) -> list[p.Seat]:
        """In a small table everybody asks all; in a large one the first do, the others ask them."""
        others = [seat for seat in self.knows.table if election.voter(seat) != self.knows.me]
        if len(others) < ASK_ALL:
            return others
        heard = [seat for seat in others if seat.node not in self._silent]
        mine = next(s.group_rank for s in self.knows.table if s.node == self.knows.node)
        first = sorted(heard, key=lambda seat: seat.group_rank)[:FIRST]
        if len(first) < FIRST or mine < first[-1].group_rank:
            return others
        return first

    def quorum_misses(self, now: int) -> bool:
        """Whether enough members have lost the leader to replace it, as this or another says."""
        oldest = now - round(ANSWER_COUNTS_S * _NS)
        told = (a for at_ns, a in self._answers.values() if at_ns >= oldest)
        return self.counts_quorum(now) or any(each.lost and each.quorum for each in told)

    def counts_quorum(self, now: int) -> bool:
        """Whether enough members have told this one that they have lost the leader."""
        ledger = self.knows.ledger
        if ledger is None or not self.knows.votes:
            return False
        return election.is_quorum(self._missing(now), ledger.table, ledger.casting_vote)

    def answered(self, node: str, answer: p.Message | None, now: int) -> list[f.Command]:
        """Take in what another member says, or that it says nothing."""
        if answer is None:
            self._silent.add(node)
        else:
            self._silent.discard(node)
        if isinstance(answer, p.MissAnswer):
            self._answers[answer.node] = (now, answer)
            return self._set_claim(now)
        return self._granted(answer, now) if isinstance(answer, p.Grant) else []

    def claim(self, now: int) -> list[f.Command]:
        """It is this node's turn: claim to lead."""
        knows = self.knows
        if not self.counts_quorum(now) or self._other_may_succeed(now):
            return []
        assert knows.ledger is not None
        self._tried = True
        latest = max(knows.promised, knows.epoch)
        knows.promised = self._claim = election.next_epoch(latest, knows.incarnation)
        self._claimed_ns = now
        self._grants = {knows.me: knows.ledger}
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

    def yield_to_other(self, now: int) -> None:
        """A claim of another member was granted: drop the own one."""
        self._claim = 0
        self._granted_ns = now

    # --- leaves ---------------------------------------------------------------------------------

    def _other_may_succeed(self, now: int) -> bool:
        granted_ns = self._granted_ns
        return granted_ns is not None and now - granted_ns < round(OTHER_SUCCEEDS_S * _NS)

    def _left_s(self, after_s: float, now: int) -> float:
        return max(0.0, after_s - (now - self.since_ns) / _NS)

    def _missing(self, now: int) -> set[election.Voter]:
        """Members that have lost the leader, as far as is known; this one included."""
        oldest = now - round(ANSWER_COUNTS_S * _NS)
        fresh = [each for at_ns, each in self._answers.values() if at_ns >= oldest and each.lost]
        return {(each.node, each.incarnation) for each in fresh} | {self.knows.me}

    def _set_claim(self, now: int) -> list[f.Command]:
        if self._claim or not self.counts_quorum(now):
            return []
        after_s = TAKEOVER_AFTER_RESET_S if self.reset else TAKEOVER_AFTER_SILENCE_S
        turn_s = TURN_S * election.turn(self.knows.me, self._missing(now), self.knows.table)
        left_s = self._left_s(after_s + turn_s, now)
        left_s = max(left_s, turn_s) if self._tried else left_s
        due_ns = now + round(left_s * _NS)
        if now < self._due_ns <= due_ns:
            return []  # it is set, and earlier
        self._due_ns = due_ns
        return [f.SetTimer("claim", left_s)]

    def _granted(self, grant: p.Grant, now: int) -> list[f.Command]:
        if not grant.granted:
            self.knows.learn(grant.ledger)
            self.knows.promised = max(self.knows.promised, grant.epoch)
            return []  # the others may be enough
        if grant.epoch != self._claim or grant.ledger is None:
            return []
        self._grants[(grant.node, grant.incarnation)] = grant.ledger
        return self._count(now)

    def _count(self, now: int) -> list[f.Command]:
        newest = max(self._grants.values(), key=lambda each: (each.epoch, each.version))
        if not self._claim or not election.may_lead(self._grants, newest):
            return []
        epoch, self._claim = self._claim, 0
        self._granted_ns = now  # the others have a while to come
        return [f.Lead(epoch, newest, newest.leader)]
