"""The ledger's upkeep: what a leader has taken over, and what it notes from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import election
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core import messages as m

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.coordinator.core.policy import JobPolicy


class Record:
    """What one leader knows of the job, in its own name.

    Attributes:
        ledger: the newest; every change of it has a later version.
        epoch: of the leader.
        inherited: the ledger is of a job that had begun before.
        doubtful: seats that the leader before has prepared, and perhaps started.
        started: version of the ledger whose table was started.
        replaceable: the job can go on without one of the nodes of the round; it may become true.
    """

    def __init__(self, config: c.LeaderConfig, ledger: p.Ledger, epoch: int) -> None:
        self._config = config
        self._version = 0  # of the newest ledger that was replaced by an adopted one
        self._elects = False  # members of the adopted ledger have yet to elect this leader
        self.epoch = epoch
        self.started = 0
        self.replaceable = False
        self._unconfirmed: set[election.Voter] = set()  # may not know that the round began
        self.ledger = p.NO_LEDGER
        self.adopt(ledger)

    @property
    def agreed(self) -> bool:
        """Whether the ledger is of the leader's epoch, see `agree`."""
        return self.ledger.epoch == self.epoch

    def adopt(self, ledger: p.Ledger) -> None:
        """Go on from what ``ledger`` says; it stays as it is until members agree."""
        known, ledger = self.ledger, p.settled_by(ledger, self.ledger)
        self.inherited = ledger.run_id != "" and ledger.round >= 0
        self.doubtful = ledger.pending if ledger.pending_round > ledger.round else ()
        if known.pending_round > max(ledger.round, ledger.pending_round):
            self.doubtful += known.pending
            number, seats = known.pending_round, known.pending
            ledger = msgspec.structs.replace(ledger, pending_round=number, pending=seats)
        about = {"run_id": self._config.run_id, "attempt": self._config.attempt}
        self.ledger = msgspec.structs.replace(ledger, **about)
        self._version = max(self._version, known.version)
        self._unconfirmed = {election.voter(seat) for seat in ledger.table}
        self._elects = election.votes_count(ledger)
        self.agree({})

    def take_epoch(self, epoch: int) -> None:
        """Lead with a later epoch; the ledger stays of the earlier one until members agree."""
        self.epoch = epoch
        self.agree({})

    def agree(self, following: Mapping[election.Voter, p.Ledger]) -> bool:
        """Make the ledger one of the leader's epoch, if enough members follow; return whether.

        They take no orders of an earlier epoch any more, and none of them has come with a newer
        round. Before that, another leader may have begun one that is not heard of here: a ledger of
        this epoch would pass for newer.

        Args:
            following: who follows under the leader's epoch, each with the ledger it has come with.
        """
        enough = election.may_lead if self._elects else election.may_start
        if self.agreed or not enough(following, self.ledger):
            return False
        self._elects = False
        self.ledger = msgspec.structs.replace(
            self.ledger,
            epoch=self.epoch,
            version=max(self._version, self.ledger.version) + 1,
            leader=self._config.node,
        )
        return True

    def prepare(self, number: int, seats: tuple[p.Seat, ...]) -> None:
        """Note the table of round ``number`` before anybody is asked to confirm it."""
        self._note(pending_round=number, pending=seats)

    def start(self, *, replaceable: bool) -> None:
        """Note that the table which was prepared is started."""
        self.replaceable, known = replaceable, self.ledger
        self.doubtful, self.started = (), known.version
        casting_vote = self._config.node if self._config.takeover else ""
        self.ledger = p.started(known, known.version + 1, casting_vote)
        self._unconfirmed = {election.voter(seat) for seat in self.ledger.table}

    def confirmed(self, who: election.Voter, number: int) -> bool:
        """Note that ``who`` knows of the start of round ``number``; return whether all members do.

        From then on nobody can be elected by the table before.
        """
        if not self.ledger.before or number < self.ledger.round:
            return False
        self._unconfirmed.discard(who)
        if self._unconfirmed:
            return False
        self._settle()
        return True

    def settled_by(self, other: p.Ledger) -> bool:
        """Note that all members know of the start, if ``other`` says so; return whether it does.

        That stays true, whoever has found it out, and under whatever leader.
        """
        if p.settled_by(self.ledger, other) is self.ledger:
            return False
        self._settle()
        return True

    def _settle(self) -> None:
        self.ledger = p.settled(self.ledger)
        if self.ledger.pending_round <= self.ledger.round:  # else this version is being confirmed
            self._note()

    @property
    def settled(self) -> int:
        """The round, if every member knows that it was started; otherwise -1."""
        return -1 if self.ledger.before else self.ledger.round

    def stop(self, policy: JobPolicy) -> None:
        """Note that the round is told to stop: once, so that all nodes hear of the same ledger."""
        known = self.ledger
        now = p.stopped(known, known.version, policy.restarts_used, dict(policy.roster.excluded))
        if now != known:
            self.ledger = msgspec.structs.replace(now, version=self._next_version)

    def catch_up(self, policy: JobPolicy) -> list[c.Command]:
        """Write down what the policy has changed by itself."""
        ledger = self.ledger
        reached, stalled = policy.tracker.known
        changed = {
            "restarts_used": policy.restarts_used,
            "excluded": dict(policy.roster.excluded),
            "reached": reached,
            "stalled": stalled,
            "history": policy.history,
            "failure": policy.failure,
            "slow": policy.slow_before,
            "turned": policy.turned,
        }
        if all(getattr(ledger, name) == now for name, now in changed.items()):
            return []
        self._note(**changed)
        return [self.persist()]

    def persist(self) -> c.Persist:
        """Have the ledger written down."""
        return c.Persist(self.ledger)

    def learn(self) -> p.Learn:
        """The ledger for a follower; for all followers the same object, which is encoded once."""
        return p.Learn(epoch=self.epoch, ledger=self.ledger)

    def order(self, command: m.NodeCommand) -> p.Order:
        """What the policy commands a node, in the name of this leader; it is numbered later."""
        change: p.Started | p.Stopped | None = None
        known = self.ledger
        match command:
            case m.Start():
                change = p.Started(
                    version=known.version,
                    prepared=self.started,
                    casting_vote=known.casting_vote,
                    replaceable=self.replaceable,
                )
            case m.Stop():
                change = p.Stopped(
                    version=known.version,
                    restarts_used=known.restarts_used,
                    excluded=known.excluded,
                )
        return p.Order(number=0, epoch=self.epoch, command=command, change=change)

    def _note(self, **changes: object) -> None:
        version = self._next_version
        self.ledger = msgspec.structs.replace(self.ledger, version=version, **changes)

    @property
    def _next_version(self) -> int:
        """Only the leader of its epoch makes new versions of a ledger."""
        return self.ledger.version + 1 if self.agreed else self.ledger.version
