"""Which checkpoint is loaded: the newest usable one, and the same on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.checkpointing import announce
from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.format.manifest import Manifest  # noqa: TC001 - a type of a field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.checkpointing.agreement.agreement import Agreeing
    from undaunted.checkpointing.files.storage import Storage


class Found(msgspec.Struct, frozen=True):
    """A checkpoint that can probably be loaded: its data have not been read.

    Attributes:
        manifest: of the checkpoint, None when there is none.
        skipped: newer ones (or the one that was asked for), and why they cannot be used.
    """

    manifest: Manifest | None
    skipped: dict[int, str]


def find(storage: Storage, wanted: int | None = None, below: int | None = None) -> Found:
    """Look for a checkpoint here, without asking anybody.

    Args:
        storage: where.
        wanted: the only step that will do; None means the newest.
        below: only steps less than this one count.
    """
    skipped: dict[int, str] = {}
    for step in reversed(storage.steps()):
        if (below is not None and step >= below) or (wanted is not None and step != wanted):
            continue
        try:
            return Found(storage.manifest(step), skipped)
        except DamagedCheckpointError as error:
            skipped[step] = str(error)
            announce.skipped(step, str(error))
    return Found(None, skipped)


def find_together(
    storage: Storage,
    agreement: Agreeing,
    name: str,
    timeout_s: float,
    wanted: int | None = None,
    below: int | None = None,
) -> Found:
    """Look on rank 0, and tell all ranks.

    Args:
        storage: where.
        agreement: of all ranks.
        name: of the round of agreement.
        timeout_s: for the agreement.
        wanted: see :func:`find`.
        below: see :func:`find`.

    Raises:
        SaveError: a rank did not answer, or the place cannot be read.
    """

    def decide(_: Sequence[bytes]) -> bytes:
        return msgspec.msgpack.encode(find(storage, wanted, below))

    answer = agreement.round(name, b"", decide, timeout_s)
    return msgspec.msgpack.decode(answer, type=Found)
