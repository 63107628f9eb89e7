"""Every duration of leases and take-overs, made of the lease; their order is checked.

docs/design/coordination.md, "Nobody runs in two worlds", says what each of them is for, and why two
rounds never run if they are in this order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

# From SIGKILL until nothing is left of a rank, and how much later than it was sent a renewal may be
# heard.
GONE_S = 1.0
# The time of ranks between SIGTERM and SIGKILL, at most, where others may take their places.
LONGEST_GRACE_S = 2.0
# Ranks of an agent that stands still end so long after the lease that it had, at most.
OUTLIVE_S = 0.5
# A member answers within this time: TCP, TLS, the token and the question are five ways there and
# back, of which one may be lost.
ANSWER_S = 2.0
# A leader of this job that asks at the endpoint is heard there within this time.
HEARD_S = 1.0
# A leader takes a connection within this time: TCP asks at once, and after 1 s.
DIAL_S = 3.0
# Pauses between attempts to connect, the first and the longest.
REDIAL_FIRST_S = 0.05
REDIAL_LONGEST_S = 1.0
# From `FollowerConfig.away_timeout_s` without a leader until the ranks of a node are gone: longer
# than any fence, whatever the lease.
AWAY_MARGIN_S = 5.0
# A leader that was restarted waits so long beyond a lease for its members: they pause, look for it
# at an address where nobody answers, and pause once more.
AFTER_RESTART_S = DIAL_S + 2 * REDIAL_LONGEST_S
# From the grant of a claim until the one who makes it is asked whether it leads.
REDIAL_GRANTED_S = 0.1
# A node without a vote asks so often at first, to learn soon of a leader that is elected after a
# reset.
SOON_S = 0.2
# The launchers of a job do not start at the same moment: a launcher is silent for so long.
SEEK_QUIETLY_S = 3.0
# A process of another job or version may still be at the endpoint for so long.
REFUSED_FOR_S = 10.0
# For how long another leader is waited for where the job is to end: a successor is there sooner.
ENDS_AFTER_LEASES = 3.0
# How often a leader looks whether time has made a start possible.
PROBE_S = 1.0
# A leader whose node leaves stays so long for a round to begin without it.
STAY_S = 15.0
# How long followers may take to hear of the end; in leases, where some may still look for this
# leader.
LINGER_S = 3.0
LINGER_LEASES = 2
# Launchers that may claim at the same moment, in a register outside of them, do so one after the
# other: at the start of a job within the first time; members so long after each other; at the last
# one member's turn, and that of all others.
FIRST_CLAIM_S = 0.2
REGISTER_TURN_S = 0.1
LAST_TURN_S = 1.0
# Before such a register is asked again, twice as long each time; of claims, which many make, the
# longest is longer.
PAUSE_FIRST_S = 0.1
PAUSE_LONGEST_S = 1.0
CLAIM_PAUSE_LONGEST_S = 5.0
# It loses requests with the member that leads the others. One that harms nobody is made again so
# long after, and again.
REGISTER_AGAIN_S = 0.5
# A look at it that takes longer is asked of its next member.
LOOK_S = 1.0
# etcd takes less than 2 s for its members to agree who leads them; what is held counts anew then.
SHORTEST_HOLD_S = 2
# For how long such a register knows that a job has ended, in seconds, at least: a launcher may have
# stood still at the end.
SHORTEST_ENDED_KEPT_S = 900
# How long the end may take: to give back the lead, and to say that the job is over.
RELEASE_S = 3.0


@dataclass(frozen=True, slots=True)
class Durations:
    """The durations of a job, in seconds.

    Args:
        lease_s: how long a follower may count on its leader after what it has sent, and the leader
            has answered.
    """

    lease_s: float

    def __post_init__(self) -> None:
        """Check their order."""
        assert 2 * self.renew_s < self.lease_s, "one renewal may be lost"
        assert self.renew_s + self.keeper_renews_s < self.lease_s / 2, (
            "a node renews its lease long before the majority that it knows of is over"
        )
        assert self.grace_s < self.stopped_s, "ranks are killed before they count as gone"
        assert self.claims_after_silence_s + self.grace_s < self.stopped_s, (
            "so they are where the leader has a moment to say first what it lacks"
        )
        assert self.stopped_s < AWAY_MARGIN_S, "so are those of a node that goes on by itself"
        assert self.grace_s + OUTLIVE_S < self.stopped_s, (
            "so are those of an agent that stands still"
        )
        assert self.asks_after_pause_s < self.lease_s, (
            "who has stood still does not ask for as long as it may be silent"
        )
        assert self.claims_after_reset_s < self.stops_after_reset_s <= self.lease_s, (
            "who has lost a leader by a reset finds the next one before it stops, and stops no "
            "later than after silence"
        )
        assert self.claims_after_silence_s + self.turn_s < self.stopped_s, (
            "the next leader is elected while ranks of the round before stop"
        )
        assert self.elected_s > self.stopped_s, "an election takes longer than ranks that stop"
        assert LINGER_LEASES < ENDS_AFTER_LEASES, "who waits for the end hears of it"
        assert self.hold_s <= max(SHORTEST_HOLD_S, self.lease_s), (
            "a register notices that a leader is silent before its followers do"
        )
        assert self.hold_s / 3 + self.register_answers_s < self.hold_s, (
            "another member of the register is asked before it has forgotten the leader"
        )
        assert PAUSE_LONGEST_S < SHORTEST_HOLD_S, "so is the same one again"
        assert FIRST_CLAIM_S <= LAST_TURN_S <= PAUSE_LONGEST_S, "turns are over before a second try"

    @property
    def renew_s(self) -> float:
        """Return how often a follower renews its lease."""
        return self.lease_s / 3

    @property
    def keeper_renews_s(self) -> float:
        """The same for one of the committee: the leader counts on a majority of it for all nodes.

        The leader's knowledge of that is so old at most.
        """
        return self.renew_s / 3

    @property
    def grace_s(self) -> float:
        """The time of ranks between SIGTERM and SIGKILL where others may take their places."""
        return min(LONGEST_GRACE_S, self.lease_s)

    @property
    def stopped_s(self) -> float:
        """From the end of a lease until no rank is left that counted on it: the fence.

        Ranks of a member are stopped when its lease is over, those of the leader when leases of a
        quorum are.
        """
        return self.grace_s + GONE_S

    @property
    def claims_after_silence_s(self) -> float:
        """From the end of a member's lease until it claims to lead, if a quorum has lost it too.

        The fence is of the next round, so nothing else has to be waited for.
        """
        return min(0.25, 0.05 * self.lease_s)

    @property
    def claims_after_reset_s(self) -> float:
        """The same from a reset: long enough to connect again."""
        return min(0.7, 0.14 * self.lease_s)

    @property
    def turn_s(self) -> float:
        """Members claim one after the other, in the order of group ranks, so that one wins."""
        return min(0.5, 0.1 * self.lease_s)

    @property
    def stops_after_reset_s(self) -> float:
        """From a reset until a node stops its ranks, unless it has found a leader."""
        return min(3.0, 0.6 * self.lease_s)

    @property
    def asks_after_pause_s(self) -> float:
        """A node that has stood still asks its leader for so long whether the job has gone on.

        All nodes may have stood still together (`scontrol suspend`), and go on at about the same
        moment. If they have not, its ranks live beside those that have their places meanwhile.
        """
        return min(2.0, 0.4 * self.lease_s)

    @property
    def ask_again_s(self) -> float:
        """Return how often members ask each other whether they have lost the leader."""
        return min(1.0, 0.2 * self.lease_s)

    @property
    def answer_counts_s(self) -> float:
        """For how long the answer of another member counts."""
        return 2.5 * self.ask_again_s

    @property
    def other_succeeds_s(self) -> float:
        """A member whose claim was granted has so long to lead before others claim again.

        Its claim counts as long: it began before it was granted.
        """
        return min(max(1.0, 0.4 * self.lease_s), 2.0)

    @property
    def after_take_over_s(self) -> float:
        """The time that an elected leader waits for members; those that granted come soon."""
        return min(max(1.0, 0.4 * self.lease_s), 2.0)

    @property
    def elected_s(self) -> float:
        """Members that have lost their leader have elected another one so long after their lease.

        The first claims may fail.
        """
        fails_s = 2 * self.other_succeeds_s
        return self.claims_after_silence_s + fails_s + self.after_take_over_s

    @property
    def hold_s(self) -> int:
        """For how long a register outside of the launchers hears of a leader after its last word.

        Whole seconds: leases of etcd are.
        """
        return max(SHORTEST_HOLD_S, ceil(0.6 * self.lease_s))

    def ended_kept_s(self, join_timeout_s: float, away_timeout_s: float) -> int:
        """Return how long such a register knows that a job has ended: whole seconds, as `hold_s`.

        By then a launcher that was cut off has stopped its ranks, has looked for a leader for
        ``join_timeout_s``, and has given up.
        """
        gives_up_s = self.lease_s + away_timeout_s + AWAY_MARGIN_S + join_timeout_s
        kept_s = max(SHORTEST_ENDED_KEPT_S, ceil(gives_up_s))
        assert self.hold_s < gives_up_s <= kept_s, "who has missed the end hears of it or gives up"
        return kept_s

    @property
    def register_answers_s(self) -> float:
        """The time in which a member of such a register answers; then the next one is asked."""
        return self.lease_s / 3
