"""The ledger's upkeep: what a leader has taken over, and what it notes from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.tables import Tables, changes
from undaunted.coordinator.policy import messages as m

if TYPE_CHECKING:
    from collections.abc import Collection

    from undaunted.coordinator.policy.policy import JobPolicy


class Record:
    """The ledger of one leader, in its own name.

    Attributes:
        ledger: the newest; every change of it has a later version.
        epoch: of the leader.
        inherited: the ledger is of a job that had begun before.
        perhaps_started: seats that the leader before has prepared, and perhaps started.
        started: version of the ledger whose table was started.
        replaceable: the job can go on without one of the nodes of the round; it may become true.
        config: version of the first ledger of this epoch with its committees.
        grown: version in which a leader that kept the ledger alone has made a committee. A launcher
            that is started again on its node must not lead by a file that knows of none.
        tables: digests of the tables of the ledger that followers were sent last.
        kept: latest version that the register outside of the launchers, a file or etcd, has taken.
    """

    def __init__(self, config: c.LeaderConfig, ledger: p.Ledger, epoch: int) -> None:
        self._config = config
        self._version = 0  # of the newest ledger that was replaced by an adopted one
        self.epoch = epoch
        self.started = 0
        self.replaceable = False
        self.config = self.grown = self.kept = 0
        self.ledger = p.NO_LEDGER
        self.tables = (b"", b"")
        self._tables = Tables()
        # By the digest of the table that followers have: of this epoch and ledger.
        self._learn: dict[bytes, p.Learn] = {}
        self._learn_of = (epoch, self.ledger)
        self.adopt(ledger)

    @property
    def agreed(self) -> bool:
        """Return whether the ledger is of the leader's epoch, see `agree`."""
        return self.ledger.epoch == self.epoch

    def adopt(self, ledger: p.Ledger) -> None:
        """Go on from what ``ledger`` says; it stays as it is until its committee agrees."""
        known = self.ledger
        if not ledger.run_id:  # the job begins anew
            ledger = p.Ledger(run_id="", epoch=ledger.epoch)
        self.inherited = ledger.round >= 0
        self.perhaps_started = ledger.pending if ledger.pending_round > ledger.round else ()
        if known.pending_round > max(ledger.round, ledger.pending_round):
            self.perhaps_started += known.pending
            fenced = known.pending_fenced and (not ledger.pending or ledger.pending_fenced)
            number, seats = known.pending_round, known.pending
            ledger = msgspec.structs.replace(
                ledger, pending_round=number, pending=seats, pending_fenced=fenced
            )
        about = {"run_id": self._config.run_id, "attempt": self._config.attempt}
        self.ledger = msgspec.structs.replace(ledger, **about)
        self._version, self.grown = max(self._version, known.version), 0
        self.agree(())

    def take_epoch(self, epoch: int) -> None:
        """Lead with a later epoch; the ledger stays of the earlier one until members agree."""
        self.epoch = epoch
        self.agree(())

    def agree(self, following: Collection[register.Voter]) -> bool:
        """Write the ledger in the leader's epoch, if its committee grants that; return whether.

        Its members take no orders of an earlier epoch any more, and none of them has come with a
        later ledger. Before that, another leader may have begun a round that is not heard of here:
        a ledger of this epoch would pass for newer.

        Args:
            following: who follows under the leader's epoch.
        """
        if self.agreed or self.lacking(following):
            return False
        self.config = max(self._version, self.ledger.version) + 1
        self.ledger = msgspec.structs.replace(
            self.ledger, epoch=self.epoch, version=self.config, leader=self._config.node
        )
        return True

    # --- the committee --------------------------------------------------------------------------

    def holds(self, taken: dict[register.Voter, int], version: int = 0) -> bool:
        """Return whether the register holds a version, 0 = its committee; see `register.Writer`."""
        return register.Writer(self.ledger, self.config, taken).holds(version)

    @property
    def may_grow(self) -> bool:
        """Return whether a committee may be asked, which the file of a sole keeper names."""
        return self.kept >= self.grown

    @property
    def is_written(self) -> bool:
        """Return whether the file, or etcd, knows what it has to: the ledger, or who keeps that."""
        return self.kept >= (self.grown if self.ledger.committee else self.ledger.version)

    def settle(self, taken: dict[register.Voter, int]) -> bool:
        """Leave the committee before, once the present one has taken its place; return whether."""
        if not self.ledger.before or not self.holds(taken):
            return False
        self._note(before=())
        self.config = self.ledger.version
        return True

    def replace(self, committee: tuple[register.Member, ...]) -> bool:
        """Have others keep the ledger from its next version on, if they may; return whether."""
        known = self.ledger
        if committee == known.committee or known.before or not self.agreed:
            return False
        # Nobody else can lead a job that has not begun, so no committee of before has to agree.
        before = known.committee if known.round >= 0 else ()
        self._note(committee=committee, before=before)
        self.config = self.ledger.version
        if known.round >= 0 and not known.committee:
            self.grown = self.config
        return True

    def lacking(self, present: Collection[register.Voter]) -> tuple[register.Member, ...]:
        """The committee of which these are no majority, () = none is needed."""
        return register.lacking(present, self.ledger) if self.ledger.round >= 0 else ()

    # --- rounds ---------------------------------------------------------------------------------

    def prepare(self, number: int, seats: tuple[p.Seat, ...]) -> None:
        """Note the table of round ``number`` before anybody is asked to confirm it."""
        fenced = bool(self.ledger.committee)
        self._note(pending_round=number, pending=seats, pending_fenced=fenced)

    def start(self, *, replaceable: bool) -> None:
        """Note that the table which was prepared is started."""
        self.replaceable, known = replaceable, self.ledger
        self.perhaps_started, self.started = (), known.version
        self.ledger = p.started(known, known.version + 1, replaceable=replaceable)
        if known.before:
            self.config = self.ledger.version

    def stop(self, policy: JobPolicy) -> None:
        """Note the order to stop the round: once, so that all nodes hear of the same ledger."""
        known = self.ledger
        now = p.stopped(known, known.version, policy.restarts_used, dict(policy.roster.excluded))
        if now != known:
            self.ledger = msgspec.structs.replace(now, version=self._next_version)

    def catch_up(self, policy: JobPolicy) -> list[c.LeaderCommand]:
        """Write down what the policy has changed by itself."""
        ledger, changed = self.ledger, msgspec.structs.asdict(policy.memory)
        if all(getattr(ledger, name) == now for name, now in changed.items()):
            return []
        self._note(**changed)
        return [self.persist()]

    def persist(self) -> c.Persist:
        """Have the ledger written down."""
        return c.Persist(self.ledger)

    def learn(self, tables: Collection[bytes] = ()) -> p.Learn:
        """The ledger for a follower that has these tables, as far as their digests are known.

        It is the same object for all that have the table, and for all others: encoded once.
        """
        epoch, ledger = self.epoch, self.ledger
        if self._learn_of[0] != epoch or self._learn_of[1] is not ledger:
            self._learn, self._learn_of = {}, (epoch, ledger)
            self.tables = self._tables.of(ledger)
        known = self.tables[0] if self.tables[0] in tables else b""
        if known not in self._learn:
            complete = p.Learn(epoch=epoch, ledger=ledger)
            self._learn[known] = changes(complete, known) if known else complete
        return self._learn[known]

    def order(self, command: m.NodeCommand) -> p.Order:
        """A command of the policy to a node, in the name of this leader; it is numbered later."""
        change: p.Started | p.Stopped | None = None
        known = self.ledger
        match command:
            case m.Start():
                change = p.Started(
                    version=known.version,
                    prepared=self.started,
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
