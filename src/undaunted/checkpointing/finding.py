"""The checkpoint that is loaded: the newest usable one, and the same on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.checkpointing import announce
from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.format.ledger import Candidate
from undaunted.checkpointing.format.manifest import Manifest  # noqa: TC001 - a type of a field

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from undaunted.agreement.agreement import Agreeing
    from undaunted.checkpointing.files.storage import Storage
    from undaunted.checkpointing.trust import Trust


class Found(msgspec.Struct, frozen=True):
    """A checkpoint that can probably be loaded: its data have not been read.

    Attributes:
        manifest: of the checkpoint, None when there is none.
        skipped: those that cannot be used, and why; as far as this was looked at.
    """

    manifest: Manifest | None
    skipped: dict[int, str]


def find(
    storage: Storage,
    wanted: int | None = None,
    without: Collection[int] = (),
    trust: Trust | None = None,
) -> Found:
    """Look for a checkpoint here, without asking anybody.

    The newest is the one that was committed last: after a return to an older step, those of higher
    steps belong to what was given up.

    Args:
        storage: where.
        wanted: the only step that will do; None means the newest.
        without: steps that do not count.
        trust: passes newer ones over that lead to failures; None = the newest is taken.
    """
    steps = [step for step in storage.steps() if step not in without and wanted in (None, step)]
    skipped: dict[int, str] = {}
    # A look at every file of every checkpoint would take long: only that of the newest counts.
    ranked = sorted(_manifests(storage, steps, skipped), key=age, reverse=True)
    candidates = [candidate(one) for one in ranked]
    order = candidates if trust is None else trust.choose(candidates).order
    usable = _manifests(storage, [one.step for one in order], skipped, check_files=True)
    found = next(usable, None)
    if trust is not None and found is not None:
        trust.loaded(candidate(found))
    return Found(found, skipped)


def _manifests(
    storage: Storage, steps: Sequence[int], skipped: dict[int, str], *, check_files: bool = False
) -> Iterator[Manifest]:
    """Yield those that can be used; of the others say why not."""
    for step in steps:
        try:
            yield storage.manifest(step, check_files=check_files)
        except DamagedCheckpointError as error:
            if step not in storage.steps():
                continue  # deleted meanwhile, as old ones are
            skipped[step] = str(error)
            announce.skipped(step, str(error))


def candidate(manifest: Manifest) -> Candidate:
    """Return how the ledger knows a checkpoint."""
    name = f"{manifest.step}-{manifest.session}-{manifest.attempt}"
    return Candidate(
        name=name, step=manifest.step, session=manifest.session, certified=manifest.certified
    )


def age(manifest: Manifest) -> tuple[float, int]:
    """Return what checkpoints are ordered by, the oldest first."""
    return manifest.saved_at, manifest.step


def find_together(
    storage: Storage,
    agreement: Agreeing,
    name: str,
    timeout_s: float,
    wanted: int | None = None,
    without: Collection[int] = (),
    trust: Trust | None = None,
) -> Found:
    """Look on rank 0, and tell all ranks.

    A rank that comes after the others have given up waits for them to look again.

    Args:
        storage: where.
        agreement: of all ranks.
        name: of the round of agreement.
        timeout_s: for the agreement.
        wanted: see :func:`find`.
        without: see :func:`find`.
        trust: see :func:`find`.

    Raises:
        SaveError: a rank did not answer, or the place cannot be read.
    """

    def decide(_: Sequence[bytes]) -> bytes:
        found = find(storage, wanted, without, trust)
        if not without:  # the first search
            _name_strays(storage, wanted, found.skipped)
        return msgspec.msgpack.encode(found)

    answer = agreement.round(name, b"", decide, timeout_s, join_later=True)
    return msgspec.msgpack.decode(answer, type=Found)


def _name_strays(storage: Storage, wanted: int | None, skipped: dict[int, str]) -> None:
    """Tell what looks like a checkpoint and is none; it counts only if it was asked for."""
    for step, stray in storage.strays().items():
        if wanted in (None, step):
            why = f"{stray.path} {stray.why}"
            announce.skipped(step, why)
            if wanted == step:
                skipped.setdefault(step, why)
