"""A member without a leader asks the others, stops its ranks in time, and claims in its turn.

Part of `follower.Follower`, which says when the absence begins and ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.times import SOON_S

if TYPE_CHECKING:
    from collections.abc import Collection

    from undaunted.coordinator.lead.knowledge import Knowledge
    from undaunted.coordinator.lead.times import Durations

_NS = 1_000_000_000
# The next leader does not wait for a member that did not answer so often in a row.
SILENT_TIMES = 2
# A member has ended if so often, once a second, nobody listens at its address, or a launcher does
# that knows of no round.
ENDED_TIMES = 5
# A node without a vote asks so often at first, to learn soon of a leader that is elected after a
# reset.
SOON_TIMES = 8
# So many of the committee at a time; in a large job one, and never soon: all nodes ask.
ASKED_AT_ONCE = 3
LARGE = 64
_Answer = p.MissAnswer | p.Grant


@dataclass(slots=True)
class Absence:
    """One absence of a leader.

    Attributes:
        knows: of the node.
        since_ns: the end of the leader's lease, or the reset of the connection to it.
        reset: the connection was reset, so that the leader has most probably ended.
        stop_ns: when the ranks are stopped.
        until_ns: the end of the leader's lease.
        lasts: the durations.
        replaced: it was said that another one leads.
        ended: the leader's launcher has: nobody listens where it did.
        saw_end: it was followed until then, so that this node knows all that it has decided.
    """

    knows: Knowledge
    since_ns: int
    reset: bool
    stop_ns: int
    until_ns: int
    lasts: Durations
    replaced: bool = False
    ended: bool = False
    saw_end: bool = False
    _lost_by: LostBy = field(init=False)
    # Nodes whose member did not answer the last time, and how often in a row.
    _silent: dict[str, int] = field(default_factory=dict)
    # Members in whose place nobody has listened, or a launcher that knows of no round: how often.
    _gone: dict[register.Voter, int] = field(default_factory=dict)
    _times: int = 0  # that the others were asked
    _claim: register.Claim[p.Ledger] | None = None  # one that is under way
    _claimed_ns: int = 0
    _due_ns: int = 0  # when the next one is made
    # When ranks of the leader's node are gone, and those of others, as those say that have granted.
    _stops_ns: int = 0
    _others_stop_ns: int = 0
    _quorum_ns: int = 0  # since when a quorum is known to have lost the leader, 0 = it is not
    _tried: bool = False  # a claim of this node has failed
    _latest: int = 0  # epoch that somebody has promised; this node may still grant that one
    # The node whose claim was granted, this one too, may come to lead until then; "" = its name is
    # not known.
    _successor: str = ""
    _succeeds_until_ns: int = 0

    def __post_init__(self) -> None:
        """Nobody has answered yet."""
        self._lost_by = LostBy(self.knows.me, self.lasts.answer_counts_s)

    def begin(self, now: int, *, leads: bool = False) -> list[c.FollowerCommand]:
        """Ask the others, unless this node ``leads`` in a moment; have ranks stopped in time."""
        later = c.SetTimer("ask", self.lasts.ask_again_s)
        if leads:
            self.expect(self.knows.node, now)
        asks = [later] if leads else self.ask(now)
        return [*asks, c.SetTimer("minority", max(0.0, (self.stop_ns - now) / _NS))]

    def ask(self, now: int) -> list[c.FollowerCommand]:
        """Ask all others of the committee whether they have lost the leader as well."""
        knows = self.knows
        if not knows.votes:
            return self._ask_some()
        if now - self._claimed_ns >= round(self.lasts.other_succeeds_s * _NS):
            self._claim = None  # who has not answered to it by now will not
        self._times += 1
        miss = p.Miss(node=knows.node, incarnation=knows.incarnation, epoch=knows.epoch)
        asks: list[c.FollowerCommand] = [
            c.Ask(member.node, member.address, miss) for member in knows.others()
        ]
        return [*asks, c.SetTimer("ask", self.lasts.ask_again_s), *self._set_claim(now)]

    def _ask_some(self) -> list[c.FollowerCommand]:
        """Ask a few of the committee who leads: a node without a vote learns it from them first."""
        knows = self.knows
        others = knows.others()
        if not others or not p.has_committee(knows.ledger):
            return []
        large = len(knows.ledger.table) > LARGE
        at_once = 1 if large else ASKED_AT_ONCE
        first, self._times = self._times * at_once, self._times + 1
        some = dict.fromkeys(others[(first + i) % len(others)] for i in range(at_once))
        miss = p.Miss(node=knows.node, incarnation=knows.incarnation, epoch=knows.epoch)
        asks = [c.Ask(each.node, each.address, miss) for each in some]
        again_s = self.lasts.ask_again_s
        soon = self._times <= SOON_TIMES and not large
        return [*asks, c.SetTimer("ask", min(SOON_S, again_s) if soon else again_s)]

    def leader_ended(self, now: int) -> list[c.FollowerCommand]:
        """Nobody listens where the leader did: its launcher has ended, and its ranks with it."""
        if self.ended:
            return []
        self.ended = True
        followed = self.reset and now < self.until_ns and self.knows.agreed
        self.saw_end = followed and not self.replaced
        return self._set_claim(now)

    def asked(self, miss: p.Miss, now: int) -> list[c.FollowerCommand]:
        """A member asks, so it has lost the leader as well: perhaps a quorum has now."""
        if not self._lost_by.asks(miss, self._voters, now):
            return []
        self._silent.pop(miss.node, None)
        return [] if now < self._due_ns else self._set_claim(now)

    @property
    def _voters(self) -> dict[register.Voter, register.Member]:
        return register.members(self.knows.ledger)

    def counts_quorum(self, now: int) -> bool:
        """Return whether enough members have told this one that they have lost the leader."""
        missing = self._lost_by.members(self._voters, now)
        return self.knows.votes and register.is_kept_by(missing, self.knows.ledger)

    def answered(self, answered: c.Answered, now: int) -> list[c.FollowerCommand]:
        """Take in what another member says, or that it says nothing."""
        voters, node, answer = self._voters, answered.node, answered.message
        if isinstance(answer, _Answer) and (answer.node, answer.incarnation) in voters:
            self._silent.pop(node, None)
            self._gone.pop((answer.node, answer.incarnation), None)
        else:  # nobody, or another agent of that node, which has no vote and asks nobody
            self._silent[node] = self._silent.get(node, 0) + 1
            self._note_gone(node, answer, ended=answered.ended)
        if isinstance(answer, p.MissAnswer):
            self._lost_by.hear(answer, voters, now)
            if answer.lost and now < self._due_ns:
                return []  # one more does not bring it forward
            return self._set_claim(now)
        return self._granted(answer, now) if isinstance(answer, p.Grant) else []

    def _note_gone(self, node: str, answer: p.Message | None, *, ended: bool) -> None:
        """Nobody listens where a member did, or another launcher, so that it has ended."""
        if not ended and not isinstance(answer, p.MissAnswer):
            return
        if isinstance(answer, p.MissAnswer) and answer.round >= 0:
            self._gone.clear()  # it knows how the job goes on
            return
        for who in self._voters:
            if who[0] == node:
                self._gone[who] = self._gone.get(who, 0) + 1

    @property
    def ended_nodes(self) -> list[str]:
        """Nodes whose members have ended, if no majority is left without them for sure."""
        gone = {who for who, times in self._gone.items() if times >= ENDED_TIMES}
        if not gone:
            return []
        left = self._voters.keys() - gone
        return [node for node, _ in gone] if register.lacking(left, self.knows.ledger) else []

    def claim(self, now: int) -> list[c.FollowerCommand]:
        """Claim to lead: it is this node's turn."""
        knows = self.knows
        if not self.counts_quorum(now) or now < self._succeeds_until_ns:
            return []
        if not self._tried and (left_s := self._turn_left_s(now)) > self.lasts.turn_s / 2:
            return [self._claim_in(left_s, now)]  # members heard of since then come first
        self._tried = True
        epoch, ledger = knows.later_epoch(self._latest), knows.ledger
        knows.vote.claimed(epoch, ledger)
        self._claim = register.Claim(epoch, ledger, {knows.me})
        self._claimed_ns = now
        self._note_stops(self.stop_s(now), now)
        claim = p.Claim(
            node=knows.node,
            incarnation=knows.incarnation,
            epoch=epoch,
            ledger=p.brief(ledger),
        )
        asks: list[c.FollowerCommand] = [
            c.Ask(each.node, each.address, claim) for each in knows.others()
        ]
        return [*asks, *self._count(now)]

    def stop_s(self, now: int) -> tuple[float, float]:
        """Return how long the leader's ranks live, and others, if a quorum has lost it as here.

        All stop once leases of a quorum are over. A reset is noticed on both sides.
        """
        ends_ns = (self.since_ns, max(self.since_ns, self.until_ns))
        here_s, others_s = (self.lasts.stopped_s - (now - end_ns) / _NS for end_ns in ends_ns)
        return max(0.0, here_s), max(0.0, others_s)

    def _note_stops(self, stop_s: tuple[float, float], now: int) -> None:
        here_ns, others_ns = (now + round(each * _NS) for each in stop_s)
        self._stops_ns = max(self._stops_ns, here_ns)
        self._others_stop_ns = max(self._others_stop_ns, others_ns)

    def may_grant(self, claimant: str, now: int) -> bool:
        """Return whether this member counts on no leader and no other claimant.

        Claims of a moment cross each other: if members granted both, the first that is elected
        would be replaced at once.
        """
        if now < self._succeeds_until_ns and claimant != self._successor:
            return False
        return self.reset or now >= self.since_ns

    def successor(self, now: int) -> str:
        """The node that may come to lead, "" = none, or its name is not known."""
        return self._successor if now < self._succeeds_until_ns else ""

    def expect(self, successor: str, now: int) -> None:
        """A claim was granted to ``successor``, or it was named: claim nothing for a while.

        Its next claims make that no longer: others may be heard by more members.
        """
        self._claim = None
        if now < self._succeeds_until_ns and successor == self._successor:
            return
        self._successor = successor
        self._succeeds_until_ns = now + round(self.lasts.other_succeeds_s * _NS)

    # --- leaves ---------------------------------------------------------------------------------

    def _turn_s(self, now: int) -> float:
        missing = self._lost_by.members(self._voters, now)
        return self.lasts.turn_s * register.turn(self.knows.me, missing, self.knows.ledger)

    def _turn_left_s(self, now: int) -> float:
        """How long until the turn of this node, if a quorum has lost the leader.

        Turns are counted from the moment at which that is known.
        """
        lasts = self.lasts
        after_s = lasts.claims_after_reset_s if self.reset else lasts.claims_after_silence_s
        claims_ns = self.since_ns + (0 if self.ended else round(after_s * _NS))
        first_ns = max(claims_ns, self._quorum_ns or now)
        return max(0.0, self._turn_s(now) - (now - first_ns) / _NS)

    def _set_claim(self, now: int) -> list[c.FollowerCommand]:
        if not self.counts_quorum(now):
            self._quorum_ns = 0
            return []
        self._quorum_ns = self._quorum_ns or now
        if self._claim:
            return []
        left_s = self._turn_left_s(now)
        left_s = max(left_s, self._turn_s(now)) if self._tried else left_s
        if now < self._due_ns <= now + round(left_s * _NS):
            return []  # it is set, and earlier
        return [self._claim_in(left_s, now)]

    def _claim_in(self, left_s: float, now: int) -> c.FollowerCommand:
        self._due_ns = now + round(left_s * _NS)
        return c.SetTimer("claim", left_s)

    def _granted(self, grant: p.Grant, now: int) -> list[c.FollowerCommand]:
        if not grant.granted:
            self.knows.learn(grant.ledger)
            self._latest = max(self._latest, grant.epoch)
            return []  # the others may be enough
        if self._claim is None or grant.epoch != self._claim.epoch:
            return []
        self._claim.granted.add((grant.node, grant.incarnation))
        self._note_stops((grant.stops_s, grant.others_stop_s), now)
        return self._count(now)

    def _count(self, now: int) -> list[c.FollowerCommand]:
        claim = self._claim
        if claim is None or not claim.won:
            return []
        self.expect(self.knows.node, now)  # the others have a while to come
        silent = tuple(node for node, often in self._silent.items() if often >= SILENT_TIMES)
        stops_s = 0.0 if self.ended else max(0.0, (self._stops_ns - now) / _NS)
        others_s = max(0.0, (self._others_stop_ns - now) / _NS)
        return [c.Lead(claim.epoch, claim.value, claim.value.leader, silent, stops_s, others_s)]


class LostBy:
    """The members of a committee that have lost the leader, by their answers of late.

    It is kept by one of them, during one absence. Every answer takes constant time, however large
    the job is.
    """

    def __init__(self, me: register.Voter, counts_s: float) -> None:
        """``counts_s``: for how long an answer counts."""
        self._me, self._counts_ns = me, round(counts_s * _NS)
        # When members have said so, the latest last.
        self._lost_ns: dict[register.Voter, int] = {}

    def hear(self, answer: p.MissAnswer, voters: Collection[register.Voter], now: int) -> None:
        """Take in an answer."""
        who = (answer.node, answer.incarnation)
        self._lost_ns.pop(who, None)
        if answer.lost and who in voters:
            self._lost_ns[who] = now

    def asks(self, miss: p.Miss, voters: Collection[register.Voter], now: int) -> bool:
        """Take in that somebody asks; return whether it is a member, which so has lost it too."""
        who = (miss.node, miss.incarnation)
        if who not in voters:
            return False
        self._lost_ns.pop(who, None)
        self._lost_ns[who] = now
        return True

    def members(self, voters: Collection[register.Voter], now: int) -> Collection[register.Voter]:
        """Members of the committee that have lost the leader."""
        self._lost_ns.pop(self._me, None)
        if self._me in voters:
            self._lost_ns[self._me] = now
        _forget(self._lost_ns, now - self._counts_ns)
        return [who for who in self._lost_ns if who in voters]


def _forget(times_ns: dict[register.Voter, int], oldest: int) -> None:
    """Drop times that are too long ago; the oldest is the first."""
    while times_ns:
        who = next(iter(times_ns))
        if times_ns[who] >= oldest:
            return
        del times_ns[who]
