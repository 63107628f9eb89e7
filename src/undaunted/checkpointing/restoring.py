"""Loading: the newest checkpoint that can be used, the same on all ranks.

The first load of a process looks into the memory of its node as well: what earlier rounds have
left there becomes a checkpoint if it is newer than all others, and is read from memory.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from undaunted.base.shown import Shown
from undaunted.checkpointing import announce
from undaunted.checkpointing.dcp import loading
from undaunted.checkpointing.errors import (
    CheckpointError,
    DamagedCheckpointError,
    NoCheckpointError,
    OccupiedError,
    SaveError,
)
from undaunted.checkpointing.finding import find_together
from undaunted.checkpointing.keeping.copies import Copies, rescue

if TYPE_CHECKING:
    from undaunted.agreement.agreement import Agreeing
    from undaunted.checkpointing.files.storage import Storage
    from undaunted.checkpointing.format.manifest import Manifest
    from undaunted.checkpointing.keeping.client import ShelfClient
    from undaunted.checkpointing.publishing import Publisher
    from undaunted.checkpointing.trust import Trust

_READ_THREADS = 4


class Loader:
    """Loads checkpoints on one rank, together with the loaders of all others."""

    def __init__(
        self,
        storage: Storage,
        agreement: Agreeing,
        publisher: Publisher,
        shelf: ShelfClient | None,
        trust: Trust,
        timeout_s: float,
    ) -> None:
        """Args: where, with whom, who commits what is rescued, who keeps memory, which to take."""
        self._storage = storage
        self._agreement = agreement
        self._publisher = publisher
        self._shelf = shelf
        self._trust = trust
        self._timeout_s = timeout_s
        self._looked = False  # for copies that earlier rounds have left
        self._aborted = False

    def load(self, state_dict: dict[str, Any], wanted: int | None) -> int | None:
        """See `Checkpointer.load`."""
        copies = self._copies()
        try:
            return self._load_newest(state_dict, wanted, copies)
        finally:
            copies.close()

    def abort(self) -> None:
        """Have a load that another thread is in read no further block."""
        self._aborted = True

    def _load_newest(
        self, state_dict: dict[str, Any], wanted: int | None, copies: Copies
    ) -> int | None:
        reasons: dict[int, str] = {}
        while True:
            which = (
                "the newest checkpoint" if wanted is None else f"the checkpoint of step {wanted}"
            )
            # Without a count of its own: ranks that have not searched equally often can meet.
            name = f"search for {which}" + (f", {len(reasons)} passed over" if reasons else "")
            found = find_together(
                self._storage,
                self._agreement,
                name,
                self._timeout_s,
                wanted,
                list(reasons),
                self._trust,
            )
            reasons.update(found.skipped)
            manifest = found.manifest
            if manifest is None:
                self._check_nothing(wanted, reasons)
                return None
            try:
                self._load(state_dict, manifest, copies)
            except DamagedCheckpointError as error:
                reasons[manifest.step] = str(error)
                aloud = self._agreement.speaks_of(error)
                announce.skipped(manifest.step, str(error), aloud=aloud)
            else:
                return manifest.step

    def _load(self, state_dict: dict[str, Any], manifest: Manifest, copies: Copies) -> None:
        began = time.monotonic()

        def advance(count: int) -> None:
            if self._aborted:
                raise SaveError("the load was aborted")
            shown.advance(count)

        with Shown(f"loading step {manifest.step}", self._agreement.rank) as shown:
            loading.load(
                state_dict,
                copies.overlay(self._storage, manifest),
                manifest,
                agreement=self._agreement,
                threads=_READ_THREADS,
                timeout_s=self._timeout_s,
                expect=shown.expect,
                progress=advance,
            )
        size = sum(file.size for file in manifest.files.values())
        announce.loaded(manifest.step, size, time.monotonic() - began)

    def _check_nothing(self, wanted: int | None, reasons: dict[int, str]) -> None:
        """Raise unless there is no checkpoint at all and none was asked for."""
        place = self._storage.place
        if reasons:
            listed = "".join(f"\n  step {step}: {why}" for step, why in reasons.items())
            raise NoCheckpointError(f"no checkpoint in {place} can be used:{listed}")
        if wanted is not None:
            there = self._storage.steps()
            raise NoCheckpointError(
                f"there is no checkpoint of step {wanted} in {place}; there are: {there or 'none'}"
            )

    def _copies(self) -> Copies:
        """Return what earlier rounds have left in memory; the first time, if it was not saved."""
        if self._looked:
            return Copies([])
        self._looked = True
        copies = Copies([])
        if self._shelf is not None:
            try:
                copies = Copies(self._shelf.left(), self._shelf.drop)
            except OSError as error:
                announce.log.warning("the agent hands out no copies of earlier rounds: %s", error)
                self._keep(copies)
        commit = self._publisher.commit_copies
        try:
            rescue(copies, self._storage, self._agreement, commit, self._timeout_s)
        except OccupiedError as error:  # it would replace checkpoints of another job, also later
            announce.log.warning("a copy in memory is dropped: %s", error)
        except CheckpointError as error:  # training goes on from the newest checkpoint there is
            if copies.all:
                announce.log.warning(
                    "a copy in memory could not be made a checkpoint: %s; it is kept, so that the "
                    "next round can try again, until this one has saved a checkpoint",
                    error,
                )
            self._keep(copies)
        return copies

    def _keep(self, copies: Copies) -> None:
        copies.keep()
        if self._shelf is not None:
            self._shelf.unsaved = True
