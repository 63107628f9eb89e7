"""From files that every rank has written to a checkpoint that exists."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from undaunted import __version__
from undaunted.agreement.failures import AgreedError
from undaunted.checkpointing import announce, finding
from undaunted.checkpointing.errors import DamagedCheckpointError, SaveError
from undaunted.checkpointing.files.storage import discard
from undaunted.checkpointing.format import manifest as manifests
from undaunted.checkpointing.format import names, rules
from undaunted.checkpointing.format.manifest import file_of
from undaunted.checkpointing.keeping.copies import ATTEMPT
from undaunted.checkpointing.snapshot import Report, merged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.agreement.agreement import Agreeing
    from undaunted.agreement.failures import Failure
    from undaunted.checkpointing.files.storage import Storage
    from undaunted.checkpointing.keeping.copies import CopiedState as Copied
    from undaunted.checkpointing.snapshot import Snapshot
    from undaunted.checkpointing.trust import Trust

_TICK_S = 1e-3


class _Gate:
    """Commits go through it, until it is shut.

    Attributes:
        is_shut: whether it is.
        passed: how many have gone through: each of them may have made a checkpoint.
    """

    def __init__(self) -> None:
        self.is_shut = False
        self.passed = 0
        self._passing = threading.Lock()

    def shut(self, timeout_s: float) -> None:
        """Let nothing through any more; wait so long for what is going through."""
        self.is_shut = True
        if self._passing.acquire(timeout=timeout_s):
            self._passing.release()

    def __enter__(self) -> None:
        self._passing.acquire()
        if self.is_shut:
            self._passing.release()
            raise SaveError("not committed: the Checkpointer was aborted")
        self.passed += 1

    def __exit__(self, *_: object) -> None:
        self._passing.release()


class Publisher:
    """Agrees with the other ranks on a save; on rank 0 it commits and deletes.

    Attributes:
        has_saved: whether a save was committed.
    """

    def __init__(
        self,
        storage: Storage,
        agreement: Agreeing,
        epoch: int,
        rule: rules.Rule,
        trust: Trust,
    ) -> None:
        """Args: where, with whom, in which round, what is kept, and which are not trusted."""
        self._storage = storage
        self._agreement = agreement
        self._epoch = epoch
        self._rule = rule
        self._trust = trust
        self._gate = _Gate()
        self.has_saved = False
        self._failed: list[str] = []  # where attempts have failed; rank 0 only
        self._ages: dict[int, tuple[float, int]] = {}  # by step; rank 0 only
        self._certified: set[int] = set()  # likewise

    def commit_copies(self, snapshot: Copied, reports: Sequence[Report], drawn: bytes) -> None:
        """Make what was rescued a checkpoint; on rank 0 only. See `keeping.copies.rescue`."""
        from undaunted.checkpointing.dcp.metadata import (
            from_blueprint,  # torch: only if there is something
        )

        metadata = from_blueprint(drawn, [report.objects for report in reports])
        world_size, structure = snapshot.world_size, snapshot.structure
        self.commit(snapshot.step, ATTEMPT, world_size, structure, reports, metadata)

    def abort(self, timeout_s: float) -> None:
        """Commit and delete nothing any more; a commit that cannot be held is waited for.

        Args:
            timeout_s: how long. A file system that does not answer may still carry it out later.
        """
        self._gate.shut(timeout_s)

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._agreement.rank

    def speaks_of(self, error: AgreedError) -> bool:
        """Return whether this rank tells people of an error; see `Agreement.speaks_of`."""
        return self._agreement.speaks_of(error)

    def target(self, step: int, attempt: int) -> str:
        """Return where the files of an attempt are written."""
        return self._storage.target(step, self._agreement.session, attempt)

    def publish(
        self,
        snapshot: Snapshot,
        attempt: int,
        name: str,
        outcome: Report | Failure,
        timeout_s: float,
    ) -> None:
        """Make the checkpoint exist, or raise on all ranks.

        Args:
            snapshot: what is saved.
            attempt: its number, which no other attempt of this session has.
            name: of the attempt, for messages; the same on all ranks.
            outcome: of this rank's write.
            timeout_s: of the agreement.

        Raises:
            SaveError: a rank could not write, did not answer, or rank 0 could not commit.
        """

        def decide(contributions: Sequence[bytes]) -> bytes:
            reports = [msgspec.msgpack.decode(one, type=Report) for one in contributions]
            self._commit(snapshot, attempt, reports)
            return b""

        contribution = msgspec.msgpack.encode(outcome) if isinstance(outcome, Report) else outcome
        passed = self._gate.passed
        try:
            self._agreement.round(name, contribution, decide, timeout_s)
        except AgreedError as error:
            if self._gate.passed == passed:
                self._clean_up(snapshot, attempt, error)
            raise
        self.has_saved = True

    def _clean_up(self, snapshot: Snapshot, attempt: int, error: AgreedError) -> None:
        """Remove what this rank has written; later rank 0 removes what others could not."""
        target = self.target(snapshot.step, attempt)
        if self._agreement.rank == 0:
            self._failed.append(target)
        if error.undecided and snapshot.staged is not None and not self._gate.is_shut:
            discard(self._storage, target, [image.name for image in snapshot.staged.files])

    def discard_failed(self) -> None:
        """Remove on rank 0 what failed saves have left, when no rank writes to their places."""
        failed, self._failed = self._failed, []
        for target in failed:
            if not self._gate.is_shut:
                discard(self._storage, target)

    def _commit(self, snapshot: Snapshot, attempt: int, reports: Sequence[Report]) -> None:
        if snapshot.planned is None:
            raise SaveError("rank 0 has no plan")
        metadata = snapshot.planned.metadata([report.objects for report in reports])
        world_size = self._agreement.world_size
        structure = snapshot.planned.structure
        self.commit(
            snapshot.step,
            attempt,
            world_size,
            structure,
            reports,
            metadata,
            certified=snapshot.planned.certified,
        )

    def commit(
        self,
        step: int,
        attempt: int,
        world_size: int,
        structure: str,
        reports: Sequence[Report],
        metadata: bytes,
        *,
        certified: bool = False,
    ) -> None:
        """Make the files of an attempt a checkpoint; on rank 0 only.

        Args:
            step: of training.
            attempt: whose files they are.
            world_size: of the ranks that took the state.
            structure: its fingerprint.
            reports: of these ranks.
            metadata: content of ``.metadata``.
            certified: see `Manifest`.

        Raises:
            SaveError: it is not committed.
            OSError: likewise.
        """
        target = self.target(step, attempt)
        with self._discarded_if_not_committed(target):
            files = merged(reports)
            files[names.METADATA] = file_of(metadata)
            self._storage.write_small(target, names.METADATA, metadata)
            self._by_age()
            # Later than all others, also if the clock was set back or is another node's.
            latest = max((at for at, _ in self._ages.values()), default=0.0)
            manifest = manifests.Manifest(
                format=manifests.FORMAT_VERSION,
                step=step,
                epoch=self._epoch,
                world_size=world_size,
                session=self._agreement.session,
                attempt=attempt,
                structure=structure,
                block_bytes=manifests.BLOCK_BYTES,
                files=files,
                saved_at=max(time.time(), latest + _TICK_S),
                writer=f"undaunted {__version__}",
                certified=certified,
            )
            self._storage.commit(target, manifest, self._gate, aside=step in self._trust.steps)
            self._trust.steps.discard(step)
            self._note(manifest)

    @contextlib.contextmanager
    def _discarded_if_not_committed(self, target: str) -> Iterator[None]:
        """Remove an attempt that fails before its commit: all ranks have written their files."""
        passed = self._gate.passed
        try:
            yield
        except BaseException:
            if self._gate.passed == passed and not self._gate.is_shut:
                discard(self._storage, target)
            raise

    def _note(self, manifest: manifests.Manifest) -> None:
        self._ages[manifest.step] = finding.age(manifest)
        (self._certified.add if manifest.certified else self._certified.discard)(manifest.step)

    def _by_age(self) -> list[int]:
        """Return the steps of all checkpoints, the one that was committed last at the end."""
        steps = self._storage.steps()
        for step in steps:
            if step not in self._ages:
                try:
                    manifest = self._storage.manifest(step, check_files=False)
                    self._note(manifest)
                except DamagedCheckpointError:
                    self._ages[step] = (0.0, step)
        self._ages = {step: self._ages[step] for step in steps}
        return sorted(steps, key=self._ages.__getitem__)

    def delete_old(self, good: int) -> None:
        """Delete what the rule does not keep, on rank 0; a failure of that harms no checkpoint.

        Args:
            good: step of a checkpoint that stays in any case.
        """
        if self._agreement.rank != 0:
            return
        self.discard_failed()  # all ranks have come to a later save
        try:
            steps = [step for step in self._by_age() if step not in self._trust.steps]
            for step in rules.to_delete(steps, self._rule, good, self._certified):
                if self._gate.is_shut:
                    return
                with contextlib.suppress(FileNotFoundError):  # someone else has
                    self._storage.delete(step)
                    announce.deleted(step)
        except Exception as error:  # noqa: BLE001 - later saves need this thread
            announce.log.warning("old checkpoints could not be deleted: %s", error)
